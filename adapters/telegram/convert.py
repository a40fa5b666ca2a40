"""From a Telegram update, as raw JSON, to an Event.

Pure: polling and webhook, on any replica, make the same event of the same update.

Shapes are those of https://core.telegram.org/bots/api (Update, Message, MessageEntity, CallbackQuery); entity offsets
count UTF-16 code units.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.telegram.files import attachments
from stratus.channel import Event, Sender
from stratus.channel.text import clean, clean_json

GENERAL_TOPIC = "1"

_MESSAGES = ("message", "channel_post")
_EDITS = ("edited_message", "edited_channel_post")
_MEMBERS = ("my_chat_member", "chat_member")
_JOINS = ("new_chat_members", "left_chat_member")
_FORWARDS = ("forward_origin", "forward_date")
_SERVICE = (
    "channel_chat_created",
    "delete_chat_photo",
    "forum_topic_closed",
    "forum_topic_created",
    "forum_topic_edited",
    "forum_topic_reopened",
    "group_chat_created",
    "message_auto_delete_timer_changed",
    "new_chat_photo",
    "new_chat_title",
    "pinned_message",
    "supergroup_chat_created",
    "video_chat_ended",
    "video_chat_started",
)

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Me:
    """Our bot: its numeric id, and its username where it is known (a replica that only serves webhooks may not have
    asked).
    """

    id: int
    username: str = ""


def event_from_update(update: Any, me: Me) -> Event:
    """The update's event.

    What is unknown or malformed becomes kind `other`: it never raises, so that one update never blocks the rest.
    """
    try:
        return _known(update, me)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        return _other(update)


def event_from_garbage(body: bytes) -> Event:
    """The event of a webhook body that is no JSON, keyed by its digest: stored, so that Telegram need not send it for
    ever.
    """
    return _bare(f"digest:{hashlib.sha256(body).hexdigest()}", {"unparsable_bytes": len(body)})


def update_id(update: Any) -> int | None:
    """The update's number, None if it has none."""
    number = update.get("update_id") if isinstance(update, Mapping) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _known(update: Raw, me: Me) -> Event:
    for name in (*_MESSAGES, *_EDITS):
        if name in update:
            return _message(update, name, me)
    if "callback_query" in update:
        return _callback(update)
    for name in _MEMBERS:
        if name in update:
            return _member(update, name)
    if "message_reaction" in update:
        return _reaction(update)
    return _other(update)


def _message(update: Raw, name: str, me: Me) -> Event:
    message: Raw = update[name]
    chat = _chat_id(message["chat"])
    fields = _fields(update, message)
    edited = name in _EDITS
    if edited:
        # two edits within the one second that edit_date resolves are told apart by the update
        key = f"{chat}:{name}:{_number(message['message_id'])}:{_number(message['edit_date'])}:{update_id(update)}"
    else:
        key = f"{chat}:{name}:{_number(message['message_id'])}"
    if (moved := _migration(message, chat)) is not None:
        return Event.model_validate({**fields, "key": key, "kind": "migrate", "chat": moved[0], "text": moved[1]})
    direct = fields["direct"]
    command, foreign = (None, False) if edited else _command(message, me)
    text = _text(message)
    if command is not None:
        text = _utf16(text, _entities(message)[0]["length"], None).strip()
    addressed = not foreign and (direct or command is not None or _meant(message, me))
    return Event.model_validate(
        {
            **fields,
            "key": key,
            "kind": _kind(message, command, edited=edited),
            "text": text,
            "command": command,
            "addressed": addressed,
            "mentions": list(_named(message)),
            "shared_id": message["chat"]["type"] == "supergroup",  # elsewhere each bot has numbers of its own
            "reply_to": _reply_to(message),
            "album": _optional(message.get("media_group_id")),
            "attachments": attachments(message),
        }
    )


def _callback(update: Raw) -> Event:
    query: Raw = update["callback_query"]
    if "message" not in query or "data" not in query:
        return _other(update)
    return Event.model_validate(
        {
            **_fields(update, query["message"]),
            "key": clean(f"cb:{query['id']}"),
            "kind": "callback",
            "sender": _person(query["from"]),
            "callback": clean(query["data"]),
            "addressed": True,
        }
    )


def _member(update: Raw, name: str) -> Event:
    change: Raw = update[name]
    return Event.model_validate(
        {
            "key": f"update:{_number(update['update_id'])}",
            "kind": "member",
            "chat": _chat_id(change["chat"]),
            "sender": _person(change["from"]),
            "direct": change["chat"]["type"] == "private",
            "addressed": False,
            "payload": clean_json(update),
        }
    )


def _reaction(update: Raw) -> Event:
    """A change of somebody's reactions to a message: `text` has the emoji that are there now."""
    change: Raw = update["message_reaction"]
    author = change.get("user")
    now = [clean(str(one["emoji"])) for one in change["new_reaction"] if one.get("type") == "emoji"]
    return Event.model_validate(
        {
            "key": f"update:{_number(update['update_id'])}",
            "kind": "other",
            "chat": _chat_id(change["chat"]),
            "sender": _sender({"chat": change.get("actor_chat")}) if author is None else _person(author),
            "message_id": str(_number(change["message_id"])),
            "text": " ".join(now),
            "direct": change["chat"]["type"] == "private",
            "addressed": False,
            "payload": clean_json(update),
        }
    )


def _other(update: Any) -> Event:
    payload = clean_json(update) if isinstance(update, Mapping) else {"raw": clean_json(update)}
    number = update_id(update)
    if number is not None:
        return _bare(f"update:{number}", payload)
    return _bare(f"digest:{hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()}", payload)


def _bare(key: str, payload: Raw) -> Event:
    return Event(key=key, kind="other", chat="", sender=Sender(id=""), direct=False, addressed=False, payload=payload)


def _fields(update: Raw, message: Raw) -> dict[str, Any]:
    thread = str(_number(message["message_thread_id"])) if message.get("is_topic_message") is True else ""
    return {
        "chat": _chat_id(message["chat"]),
        "thread": "" if thread == GENERAL_TOPIC else thread,
        "sender": _sender(message),
        "message_id": str(_number(message["message_id"])),
        "direct": message["chat"]["type"] == "private",
        "payload": clean_json(update),
    }


def _kind(message: Raw, command: str | None, *, edited: bool) -> str:
    if edited:
        return "edit"
    if command is not None:
        return "command"
    if any(name in message for name in _JOINS):
        return "member"
    return "other" if any(name in message for name in _SERVICE) else "message"


def _migration(message: Raw, chat: str) -> tuple[str, str] | None:
    """The old and the new chat; both of the two messages that tell of a migration give the same."""
    if "migrate_to_chat_id" in message:
        return chat, str(_number(message["migrate_to_chat_id"]))
    if "migrate_from_chat_id" in message:
        return str(_number(message["migrate_from_chat_id"])), chat
    return None


def _sender(message: Raw) -> Sender:
    # `from` of an anonymous admin or a channel is a stand-in account that many chats share
    author = message.get("sender_chat") or (None if "from" in message else message["chat"])
    if author is None:
        return _person(message["from"])
    name = clean(str(author.get("title") or ""))
    return Sender(id=f"chat:{_chat_id(author)}", name=name, username=clean(str(author.get("username") or "")))


def _person(user: Raw) -> Sender:
    name = " ".join(str(user[part]) for part in ("first_name", "last_name") if user.get(part))
    return Sender(
        id=str(_number(user["id"])),
        name=clean(name),
        username=clean(str(user.get("username") or "")),
        is_bot=user.get("is_bot") is True,
    )


def _command(message: Raw, me: Me) -> tuple[str | None, bool]:
    """The command's name if the message is one for us, and whether it is one for somebody else."""
    entities = _entities(message)
    if "text" not in message or any(name in message for name in _FORWARDS) or not entities:
        return None, False
    first = entities[0]
    if first["type"] != "bot_command" or first["offset"] != 0:
        return None, False
    name, at, bot = _utf16(_text(message), 0, first["length"])[1:].partition("@")
    if at and not _same_name(bot, me):
        return None, True
    return (name.lower() or None), False


def _meant(message: Raw, me: Me) -> bool:
    """Whether a message in a group is for us: it mentions us, or answers us."""
    for entity in _entities(message):
        if entity["type"] == "text_mention" and entity["user"]["id"] == me.id:
            return True
        if entity["type"] == "mention":
            name = _utf16(_text(message), entity["offset"], entity["offset"] + entity["length"])
            if _same_name(name.removeprefix("@"), me):
                return True
    answered = _answered(message)
    return answered is not None and answered.get("from", {}).get("id") == me.id


def _named(message: Raw) -> Iterator[str]:
    """The ids of those whom a message mentions or answers. Whoever is mentioned by a username alone is not told from it."""
    for entity in _entities(message):
        if entity["type"] == "text_mention":
            yield str(_number(entity["user"]["id"]))
    answered = _answered(message)
    if answered is not None and "from" in answered:
        yield str(_number(answered["from"]["id"]))


def _answered(message: Raw) -> Raw | None:
    # every message of a topic answers the service message that opened it
    answered: Raw | None = message.get("reply_to_message")
    return None if answered is None or "forum_topic_created" in answered else answered


def _reply_to(message: Raw) -> str | None:
    answered = _answered(message)
    return None if answered is None else str(_number(answered["message_id"]))


def _text(message: Raw) -> str:
    found = message.get("text", message.get("caption"))
    return clean(found) if found is not None else "\n".join(_described(message))


def _described(message: Raw) -> Iterator[str]:
    """Words for contents that are neither text nor a file."""
    if sticker := message.get("sticker"):
        yield clean(str(sticker.get("emoji") or ""))
    if place := message.get("location"):
        yield f"{float(place['latitude'])}, {float(place['longitude'])}"
    if contact := message.get("contact"):
        yield clean(f"{contact['first_name']} {contact['phone_number']}")
    if poll := message.get("poll"):
        yield clean(str(poll["question"]))


def _entities(message: Raw) -> list[Raw]:
    found = message.get("entities" if "text" in message else "caption_entities") or []
    return sorted(found, key=lambda entity: int(entity["offset"]))


def _utf16(text: str, start: int, end: int | None) -> str:
    units = text.encode("utf-16-le")
    return units[2 * start : None if end is None else 2 * end].decode("utf-16-le", "replace")


def _same_name(name: str, me: Me) -> bool:
    return bool(me.username) and name.casefold() == me.username.casefold()


def _chat_id(chat: Raw) -> str:
    return str(_number(chat["id"]))


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not an id")
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else clean(str(value))
