"""From a stored op to the adapter's call: its values, its key on the platform, and which method makes it."""

from __future__ import annotations

import hashlib
from uuid import UUID

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.protocol import Adapter, CanEdit, CanPrompt, CanReact, Guard
from stratus.channel.values import Op, Receipt
from stratus.domain.chain import PREVIEW, SETTLES
from stratus.store.intent import Intent

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY_OCTETS = 15
# Ops that may say their text in a message that is there already.
_EDITABLE = frozenset({"draft_update", "send_reply", "send_group_reply", "send_text"})


def op_of(intent: Intent, channel: UUID, owner: str) -> Op:
    """The call to make. Raises ValueError for a row that does not describe one (pydantic's ValidationError is one)."""
    return Op.model_validate(
        {
            **intent.payload,
            "id": intent.op_id,
            "kind": intent.kind,
            "chat": intent.address.get("chat"),
            "thread": intent.address.get("thread") or "",
            "key": platform_key(channel, intent.op_id),
            "attempt": intent.attempt,
            "owner": owner,
        }
    )


def platform_key(channel: UUID, op_id: int) -> str:
    """The op's key at the platform: 24 characters or fewer of [0-9a-z], the same for every try.

    It takes in the channel's unguessable id: op ids of another database, behind the same bot, start at 1 as well.
    """
    digest = hashlib.sha256(channel.bytes + op_id.to_bytes(8)).digest()
    number, key = int.from_bytes(digest[:_KEY_OCTETS]), ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        key = _DIGITS[digit] + key
    return key


async def call(adapter: Adapter, op: Op, guard: Guard) -> Receipt:
    """Make the op's one call. Raises what the adapter raises; what the platform cannot do is a permanent refusal."""
    if op.kind == "reaction":
        if isinstance(adapter, CanReact):
            return await adapter.react(op, guard)
        raise _cannot("reactions")
    if op.kind == "edit_prompt":
        return await _close_prompt(adapter, op, guard)
    if op.kind in _EDITABLE and op.message_id is not None:
        if isinstance(adapter, CanEdit):
            return await adapter.edit(op, guard)
        raise _cannot("edits")
    return await adapter.send(op, guard)


def nothing_to_settle(intent: Intent) -> bool:
    """Whether the op would end a preview that there is none of, or of which nothing certain is known."""
    return intent.payload.get(PREVIEW) == SETTLES and "message_id" not in intent.payload


async def _close_prompt(adapter: Adapter, op: Op, guard: Guard) -> Receipt:
    if not isinstance(adapter, CanPrompt):
        return Receipt(message_id=op.message_id, detail={"left": "the platform has no buttons to take off"})
    if op.message_id is None:  # without it, an edit would be a new message
        raise SendError(SendFailure.PERMANENT, "no_message", "it is not known which message the prompt is")
    return await adapter.close_prompt(op, guard)


def _cannot(what: str) -> SendError:
    return SendError(SendFailure.PERMANENT, "unsupported", f"the platform has no {what}")
