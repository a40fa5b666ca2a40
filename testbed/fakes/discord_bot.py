"""One bot at the fake Discord: its sessions with their replay, and the messages that it and people have written.

Rules: https://discord.com/developers/docs/events/gateway (identify, resume, sequences), resources/message.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EPOCH_MS = 1_420_070_400_000
NONCE_SECONDS = 180.0

Json = dict[str, Any]


@dataclass
class Session:
    """A gateway session: everything it was sent, and how much of it the bot says it has."""

    id: str
    events: list[Json] = field(default_factory=list)
    acked: int = 0
    beats: int = 0
    outgoing: asyncio.Queue[Json] | None = None

    def emit(self, name: str, data: Json) -> None:
        """Send a dispatch, or keep it until the session is resumed."""
        frame = {"op": 0, "t": name, "s": len(self.events) + 1, "d": data}
        self.events.append(frame)
        if self.outgoing is not None:
            self.outgoing.put_nowait(frame)


def token(bot: str) -> str:
    """A token as Discord makes them: its first part is the bot's id."""
    return base64.urlsafe_b64encode(bot.encode()).decode().rstrip("=") + ".Gtests.a-secret_of-tests"


class FakeBot:
    """A bot account. The first token seen for its id is the right one, until another is set."""

    def __init__(self, number: str) -> None:
        self.id = number
        self.username = f"bot{number}"
        self.token: str | None = None
        self.sessions: dict[str, Session] = {}
        self.messages: dict[str, list[Json]] = {}
        self.said: list[Json] = []
        self.guilds: list[Json] = []
        self.commands: list[Json] = []
        self.interactions: dict[str, Json] = {}
        self.gateway_log: list[Json] = []
        self.message_content = True
        self.starts_left = 1000
        self.beat_seconds = 0.3
        self.acks = True
        self.on_identify: Callable[[Session], None] | None = None
        self.close_codes: list[int] = []
        self.nonces: dict[tuple[str, str], tuple[float, Json]] = {}
        self._numbers = 0

    def next_id(self) -> str:
        """A fresh snowflake."""
        self._numbers += 1
        return str(((int(time.time() * 1000) - EPOCH_MS) << 22) + self._numbers)

    def user(self) -> Json:
        """The bot as a user object."""
        return {"id": self.id, "username": self.username, "discriminator": "0", "bot": True, "avatar": None}

    def emit(self, name: str, data: Json) -> None:
        """To all sessions."""
        for session in self.sessions.values():
            session.emit(name, data)

    def say(self, text: str, chat: str = "7000", author: str = "4711", **fields: Any) -> Json:
        """A person writes; see `message` for what may be given."""
        message = self.message(text, chat, author, **fields)
        self.messages.setdefault(chat, []).append(message)
        self.said.append(message)
        self.emit("MESSAGE_CREATE", message)
        return message

    def message(self, text: str, chat: str, author: str, **fields: Any) -> Json:
        """A message object with what is missing filled in."""
        made: Json = {
            "id": self.next_id(),
            "channel_id": chat,
            "author": {"id": author, "username": f"user{author}", "discriminator": "0", "avatar": None},
            "content": text,
            "timestamp": "2026-01-01T00:00:00+00:00",
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [],
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 0,
        }
        return made | fields

    def interact(self, data: Json, chat: str = "7000", author: str = "4711", **fields: Any) -> Json:
        """A person uses a command (`{"name", "options"?}`) or, with `type=3`, taps a button (`{"custom_id"}`)."""
        number = self.next_id()
        made: Json = {
            "id": number,
            "application_id": self.id,
            "type": 2,
            "token": f"itoken{number}",
            "version": 1,
            "channel_id": chat,
            "data": data,
            "user": {"id": author, "username": f"user{author}", "discriminator": "0", "avatar": None},
        } | fields
        self.interactions[number] = {"at": time.monotonic(), "type": None, "ended": False, "flags": 0}
        self.emit("INTERACTION_CREATE", made)
        return made

    def find(self, chat: str, number: str) -> Json | None:
        """A message of a chat."""
        return next((one for one in self.messages.get(chat, ()) if one["id"] == number), None)

    def taken(self, nonce: Any, chat: str) -> Json | None:
        """The message that this nonce has made in the past few minutes."""
        at, message = self.nonces.get((chat, str(nonce)), (0.0, {}))
        return message if nonce and message and time.monotonic() - at < NONCE_SECONDS else None

    def acknowledged(self) -> set[str]:
        """The messages that the bot says it has, by heartbeat or resume."""
        return {
            str(frame["d"]["id"])
            for session in self.sessions.values()
            for frame in session.events[: session.acked]
            if frame["t"] == "MESSAGE_CREATE"
        }
