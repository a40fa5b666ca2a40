"""One op, one REST call: how an Op becomes a message, an edit or a reaction. Nothing that we send pings anybody.

Shapes: https://discord.com/developers/docs/resources/message#create-message, #edit-message, components/reference#button.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from adapters.discord.failures import send_error
from stratus.channel import Attachment, Limits, Op, Receipt, SendError, SendFailure
from stratus.channel.files import bytes_to_send
from stratus.channel.protocol import Guard
from stratus.channel.text import clean, length

if TYPE_CHECKING:
    from discord.http import MultipartParameters

    from adapters.discord.rest import Rest

_BUTTONS_A_ROW = 5
_BUTTONS_MAX = 25
_LABEL_MAX = 80
_CUSTOM_ID_MAX = 100
_NONCE_MAX = 25
_SUPPRESS_EMBEDS = 1 << 2
_ACTION_ROW, _BUTTON, _SECONDARY = 1, 2, 2
_NOBODY: Mapping[str, Any] = {"parse": [], "replied_user": False}


async def send(rest: Rest, limits: Limits, op: Op) -> Receipt:
    """Send the op's text, with its file where it has one; its key is the nonce, which Discord takes once. Raises SendError."""
    body = _content(limits, op)
    chat = _snowflake(op.thread or op.chat, "chat")
    if len(op.key) <= _NONCE_MAX:
        body |= {"nonce": op.key, "enforce_nonce": True}
    if op.reply_to is not None:
        body["message_reference"] = {
            "message_id": str(_snowflake(op.reply_to, "reply_to")),
            "fail_if_not_exists": False,
        }
    params = _parameters(body) if op.attachment is None else _with_file(body, op.attachment, limits)
    try:
        sent: Any = await rest.send_message(chat, params=params)
    except Exception as error:
        raise send_error(error) from error
    return Receipt(message_id=str(sent["id"]))


async def edit(rest: Rest, limits: Limits, op: Op) -> Receipt:
    """Give the op's message its text and its buttons, none included; without a text only the buttons go. Raises SendError."""
    body = _content(limits, op)
    if not op.text:
        body = {"components": [], "allowed_mentions": dict(_NOBODY)}
    body.setdefault("components", [])
    chat, message = _snowflake(op.thread or op.chat, "chat"), _message(op)
    try:
        await rest.edit_message(chat, message, params=_parameters(body))
    except Exception as error:
        raise send_error(error) from error
    return Receipt(message_id=op.message_id)


async def react(rest: Rest, op: Op, guard: Guard) -> Receipt:
    """Add the emoji in the op's text to its message; an empty text takes our own reactions away. Raises SendError."""
    chat, message = _snowflake(op.thread or op.chat, "chat"), _message(op)
    if op.text:
        await _called(rest.add_reaction(chat, message, op.text))
        return Receipt(message_id=op.message_id)
    found = await _called(rest.get_message(chat, message))
    for reaction in found.get("reactions", ()):
        if reaction.get("me"):
            await guard()
            await _called(rest.remove_own_reaction(chat, message, _emoji(reaction["emoji"])))
    return Receipt(message_id=op.message_id)


async def _called(call: Any) -> Any:
    try:
        return await call
    except Exception as error:
        raise send_error(error) from error


def _emoji(emoji: Mapping[str, Any]) -> str:
    return f"{emoji['name']}:{emoji['id']}" if emoji.get("id") else str(emoji["name"])


def _content(limits: Limits, op: Op) -> dict[str, Any]:
    if length(op.text, limits.text_unit) > limits.text_max:
        raise SendError(SendFailure.PERMANENT, "too_long", f"text is longer than {limits.text_max} UTF-16 units")
    body: dict[str, Any] = {
        "content": clean(op.text),
        "allowed_mentions": dict(_NOBODY),
        "flags": _SUPPRESS_EMBEDS,
    }
    if op.buttons:
        body["components"] = _rows(op)
    return body


def _rows(op: Op) -> list[dict[str, Any]]:
    if len(op.buttons) > _BUTTONS_MAX or any(not 1 <= len(data) <= _CUSTOM_ID_MAX for _, data in op.buttons):
        raise SendError(
            SendFailure.PERMANENT, "bad_button", "at most 25 buttons, each with data of 1 to 100 characters"
        )
    made = [
        {"type": _BUTTON, "style": _SECONDARY, "label": clean(label)[:_LABEL_MAX], "custom_id": data}
        for label, data in op.buttons
    ]
    starts = range(0, len(made), _BUTTONS_A_ROW)
    return [{"type": _ACTION_ROW, "components": made[at : at + _BUTTONS_A_ROW]} for at in starts]


def _with_file(body: dict[str, Any], file: Attachment, limits: Limits) -> MultipartParameters:
    from discord import File
    from discord.http import MultipartParameters

    data = bytes_to_send(file, limits)
    name = clean(file.name).replace('"', "'").replace("\r", " ").replace("\n", " ") or "file"
    body["attachments"] = [{"id": 0, "filename": name}]
    form: list[dict[str, Any]] = [
        {"name": "payload_json", "value": json.dumps(body), "content_type": "application/json"},
        {"name": "files[0]", "value": data, "filename": name, "content_type": file.mime},
    ]
    return MultipartParameters(payload=None, multipart=form, files=[File(io.BytesIO(data), filename=name)])


def _parameters(body: dict[str, Any]) -> MultipartParameters:
    from discord.http import MultipartParameters

    return MultipartParameters(payload=body, multipart=None, files=None)


def _message(op: Op) -> int:
    if op.message_id is None:
        raise SendError(SendFailure.PERMANENT, "no_message", "the op names no message")
    return _snowflake(op.message_id, "message_id")


def _snowflake(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise SendError(SendFailure.PERMANENT, "bad_address", f"{what} is no Discord id")
    return int(text)
