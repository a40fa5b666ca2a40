"""From what the gateway or the REST history says of a message to an Event.

Pure: a replay, a backfill and another replica make the same event of the same message. A thread is a channel of its own
on Discord, and messages do not name its parent: here it is a chat of its own too.

Shapes: https://discord.com/developers/docs/resources/message#message-object, topics/gateway-events.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stratus.channel import Attachment, Event, Sender
from stratus.channel.text import clean, clean_json

Raw = Mapping[str, Any]

_WRITTEN = frozenset({0, 19})  # DEFAULT and REPLY; all other types are notices of Discord's or answers to commands
_JOINED = frozenset({7})
_FORWARD = 1
_COMMAND = re.compile(r"/([a-z]{1,32})(?:\s+|$)", re.ASCII)
_MENTION = re.compile(r"<@!?(\d{1,20})>")


@dataclass(frozen=True)
class Me:
    """Our bot: its id, and the ids of the roles that Discord made for it in its servers."""

    id: str
    roles: frozenset[str] = frozenset()


def event_from_dispatch(name: str, data: Any, me: Me) -> Event | None:
    """The event of a gateway dispatch, None for one that says nothing to us.

    What is malformed becomes kind `other`: it never raises, so that one message never blocks the rest.
    """
    try:
        return _known(name, data, me)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        return other(name, data)


def event_from_history(message: Any, me: Me, guild: str | None) -> Event | None:
    """The event of a message in a channel's REST history, which leaves out the guild."""
    shaped = {**message, "guild_id": guild} if guild and isinstance(message, Mapping) else message
    return event_from_dispatch("MESSAGE_CREATE", shaped, me)


def other(name: str, data: Any) -> Event:
    """The event of a dispatch that cannot be read, keyed by its digest."""
    payload = clean_json(data) if isinstance(data, Mapping) else {"raw": clean_json(data)}
    digest = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    return _bare(clean(f"{name[:40]}:digest:{digest}"), payload)


def person(user: Raw, member: Raw | None = None) -> Sender:
    """Who a user object, and in a server the member object, names."""
    shown = (member or {}).get("nick") or user.get("global_name") or user["username"]
    return Sender(
        id=snowflake(user["id"]),
        name=clean(str(shown)),
        username=clean(str(user["username"])),
        is_bot=user.get("bot") is True,
    )


def snowflake(value: Any) -> str:
    """An id. Discord's are 64-bit numbers, and strings in JSON. Raises TypeError for anything else."""
    if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20):
        raise TypeError("not a snowflake")
    return value


def _known(name: str, data: Raw, me: Me) -> Event | None:
    if name == "MESSAGE_CREATE":
        return _message(data, me)
    if name == "MESSAGE_UPDATE":
        return _edit(data, me)
    if name == "MESSAGE_DELETE":
        return _deleted(data, snowflake(data["id"]))
    return None


def _message(message: Raw, me: Me) -> Event | None:
    chat, number = snowflake(message["channel_id"]), snowflake(message["id"])
    if "webhook_id" not in message and message["author"]["id"] == me.id:
        return _ours(message, chat, number)
    fields = _fields(message, me)
    command, text = _command(message, fields["text"])
    if command is not None and not fields["addressed"]:
        command, text = None, fields["text"]
    kind = _kind(message, fields, command)
    return Event.model_validate(
        {**fields, "key": f"{chat}:message:{number}", "kind": kind, "text": text, "command": command}
    )


def _edit(message: Raw, me: Me) -> Event | None:
    """An edit by a person; Discord also sends this for a link preview, without a time of edit or even an author."""
    edited = message.get("edited_timestamp")
    if not edited or "author" not in message or "content" not in message or message["author"]["id"] == me.id:
        return None
    fields = _fields(message, me)
    key = clean(f"{fields['chat']}:edit:{fields['message_id']}:{edited}")
    return Event.model_validate({**fields, "key": key, "kind": "edit" if fields["text"] else "other"})


def _deleted(data: Raw, number: str) -> Event:
    chat = snowflake(data["channel_id"])
    return _bare(f"{chat}:delete:{number}", data, chat=chat, message_id=number, direct=not data.get("guild_id"))


def _ours(message: Raw, chat: str, number: str) -> Event | None:
    """Our own message: its nonce proves that an op has arrived; others of ours say nothing new."""
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or not nonce:
        return None
    direct = not message.get("guild_id")
    return _bare(f"{chat}:message:{number}", {}, chat=chat, message_id=number, direct=direct, echo=clean(nonce))


def _bare(key: str, payload: Raw, **fields: Any) -> Event:
    shown = {"chat": "", "sender": Sender(id=""), "direct": False, "addressed": False, **fields}
    return Event.model_validate({**shown, "key": key, "kind": "other", "payload": clean_json(payload)})


def _fields(message: Raw, me: Me) -> dict[str, Any]:
    direct = not message.get("guild_id")
    text = _text(message, me)
    return {
        "chat": snowflake(message["channel_id"]),
        "sender": _sender(message),
        "message_id": snowflake(message["id"]),
        "direct": direct,
        "addressed": direct or _meant(message, me),
        "mentions": list(_named(message, me)),
        "shared_id": True,
        "text": text,
        "reply_to": _reply_to(message),
        "attachments": [_attachment(file) for file in message.get("attachments", ())],
        "payload": clean_json(message),
    }


def _kind(message: Raw, fields: Raw, command: str | None) -> str:
    if message.get("type", 0) in _JOINED:
        return "member"
    if message.get("type", 0) not in _WRITTEN:
        return "other"
    if command is not None:
        return "command"
    # without the intent for message contents, or for a poll or an embed, there is nothing to give to a model
    return "message" if fields["text"] or fields["attachments"] else "other"


def _sender(message: Raw) -> Sender:
    if "webhook_id" in message:
        name = clean(str(message["author"].get("username") or ""))
        return Sender(id=f"webhook:{snowflake(message['webhook_id'])}", name=name, is_bot=True)
    return person(message["author"], message.get("member"))


def _meant(message: Raw, me: Me) -> bool:
    """Whether a message in a server is for us: it names us or the role that Discord made for us, or answers us."""
    if any(user["id"] == me.id for user in message.get("mentions", ())):
        return True
    if me.roles.intersection(message.get("mention_roles", ())):
        return True
    answered = message.get("referenced_message")
    return isinstance(answered, Mapping) and answered["author"]["id"] == me.id


def _named(message: Raw, me: Me) -> Iterator[str]:
    """Whom a message names, in the order of its text, or answers; we ourselves also by the role that Discord made for us."""
    named = {snowflake(user["id"]) for user in message.get("mentions", ())}
    for found in _MENTION.finditer(str(message.get("content") or "")):
        if found[1] in named:
            named.discard(found[1])
            yield found[1]
    yield from sorted(named)  # such as who is answered, whom Discord counts among them
    if me.roles.intersection(message.get("mention_roles", ())):
        yield me.id
    answered = message.get("referenced_message")
    if isinstance(answered, Mapping):
        yield snowflake(answered["author"]["id"])


def _reply_to(message: Raw) -> str | None:
    reference = message.get("message_reference") or {}
    if reference.get("type", 0) == _FORWARD or "message_id" not in reference:
        return None
    return snowflake(reference["message_id"])


def _text(message: Raw, me: Me) -> str:
    """The text with names for ids: our own mention at its start goes, other people's become @name."""
    names = {user["id"]: str(user["username"]) for user in message.get("mentions", ())}
    text = clean(str(message.get("content") or "")) or "\n".join(_described(message))
    text = text.strip()
    if (first := _MENTION.match(text)) and first[1] == me.id:
        text = text[first.end() :].lstrip(" ,:")
    return clean(_MENTION.sub(lambda found: f"@{names[found[1]]}" if found[1] in names else found[0], text))


def _described(message: Raw) -> Iterator[str]:
    """Words for contents that are neither text nor a file."""
    for sticker in message.get("sticker_items", ()):
        yield clean(f"[sticker {sticker['name']}]")
    for forwarded in message.get("message_snapshots", ()):
        yield clean(str(forwarded["message"].get("content") or ""))


def _command(message: Raw, text: str) -> tuple[str | None, str]:
    """A typed slash command and its arguments: never in a forward, nor in a message that carries files."""
    reference = message.get("message_reference") or {}
    found = _COMMAND.match(text)
    if found is None or reference.get("type", 0) == _FORWARD or message.get("attachments"):
        return None, text
    return found[1], text[found.end() :].strip()


def _attachment(file: Raw) -> Attachment:
    mime = clean(str(file.get("content_type") or "application/octet-stream")).partition(";")[0].strip()
    family = mime.partition("/")[0]
    kind = family if family in ("image", "audio", "video") else "document"
    if "waveform" in file:
        kind = "voice"
    return Attachment.model_validate(
        {"kind": kind, "name": clean(str(file["filename"])), "mime": mime, "size": file.get("size"), "ref": file["url"]}
    )
