"""An operator's verdict on an op whose outcome only a person can tell: moved, recorded with who said so, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stratus.domain.errors import Conflict, NotFound
from stratus.domain.outbox import OUTBOX, VERDICTS, OpState
from stratus.store.database import Connection, Database
from stratus.store.settle import cancel_dependents

_NOTE_MAX = 500

_SAID = "SELECT op_id, to_state FROM outbox_verdict WHERE key = $1"

_LOCK = "SELECT channel_id, state FROM channel_outbox WHERE id = $1 FOR UPDATE"

_LAST = "SELECT action, by FROM outbox_verdict WHERE op_id = $1 ORDER BY id DESC LIMIT 1"

# The error stays: it is the evidence that the verdict was passed on.
_SETTLE = """
UPDATE channel_outbox o
   SET state = $2, settled_at = CASE WHEN $2 <> 'pending' THEN clock_timestamp() END,
       attempt_token = NULL, attempt_deadline = NULL,
       not_before = clock_timestamp(), attempts = CASE WHEN $2 = 'pending' THEN 0 ELSE o.attempts END,
       sent_message_id = CASE WHEN $2 = 'sent' THEN $3 ELSE o.sent_message_id END,
       receipt = CASE WHEN $2 = 'sent' THEN jsonb_build_object('resolved_by', $4::text, 'message_id', $3::text) ELSE o.receipt END,
       error = coalesce(o.error, '{}') || jsonb_build_object('resolved_by', $4::text)
 WHERE o.id = $1 AND o.state = ANY($5)
RETURNING o.channel_id
"""

_RECORD = """
INSERT INTO outbox_verdict (op_id, key, action, by, from_state, to_state, note) VALUES ($1, $2, $3, $4, $5, $6, $7)
"""


@dataclass(frozen=True)
class Verdict:
    """What `by` says of the op: `action` is `sent`, `resend` or `cancel`.

    `key` names this saying, so that a repeat after a lost answer is recognised. `message_id` is the message's id on the platform, for `sent`,
    where the operator knows it.
    """

    op_id: int
    action: str
    by: str
    key: UUID
    note: str = ""
    message_id: str | None = None


@dataclass(frozen=True)
class Settled:
    """What the verdict led to. `repeated`: the same person had said the same before, and nothing was moved now."""

    op_id: int
    channel_id: int
    state: str
    repeated: bool = False


async def settle(db: Database, verdict: Verdict) -> Settled:
    """Pass the verdict. Canceling takes along what depends on the op; resending gives it new attempts.

    Raises NotFound, and Conflict, which says what the op is now, when its state allows no such verdict (any more).
    """

    async def work(connection: Connection) -> Settled:
        row = await connection.fetchrow(_LOCK, verdict.op_id)
        if row is None:
            raise NotFound(f"there is no operation {verdict.op_id}")
        said = await connection.fetchrow(_SAID, verdict.key)
        if said is not None and said["op_id"] == verdict.op_id:
            return Settled(verdict.op_id, row["channel_id"], said["to_state"])
        return await _pass(connection, verdict, row)

    return await db.transact(work, idempotent=True)


async def _pass(connection: Connection, verdict: Verdict, row: Mapping[str, Any]) -> Settled:
    event, state = VERDICTS[verdict.action], str(row["state"])
    to = str(OUTBOX.target(event))
    note = verdict.note.strip()[:_NOTE_MAX] or None
    if state not in OUTBOX.sources(event):
        last = await connection.fetchrow(_LAST, verdict.op_id)
        if state == to and last is not None and (last["action"], last["by"]) == (verdict.action, verdict.by):
            return Settled(verdict.op_id, row["channel_id"], state, repeated=True)
        raise Conflict(_refusal(verdict, state))
    await connection.execute(_SETTLE, verdict.op_id, to, verdict.message_id, verdict.by, list(OUTBOX.sources(event)))
    await connection.execute(_RECORD, verdict.op_id, verdict.key, verdict.action, verdict.by, state, to, note)
    if to == OpState.CANCELED:
        await cancel_dependents(connection, [verdict.op_id])
    return Settled(verdict.op_id, row["channel_id"], to)


def _refusal(verdict: Verdict, state: str) -> str:
    why = {
        "pending": "it waits to be sent and can only be canceled",
        "sending": "it is being sent right now: wait for how that ends",
        "sent": "the platform has it",
        "failed": "the platform refused it, and would again",
        "canceled": "it was given up",
    }[state]
    return f"operation {verdict.op_id} is {state}: {why}"
