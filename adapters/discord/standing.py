"""Where a bot stands with the gateway, as the channel's cursor: what another replica needs to go on from exactly here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stratus.channel import Event
from stratus.channel.protocol import Cursor

CHATS_MAX = 100
ROLES_MAX = 100


@dataclass(frozen=True)
class Standing:
    """The session and the highest sequence of it that is stored; `last` is the newest stored message of each known chat, with its server.

    `gap`: messages between `last` and the session's beginning may be missing, and are to be fetched.
    """

    session: str | None = None
    seq: int = 0
    url: str = ""
    application: str = ""
    last: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    roles: frozenset[str] = frozenset()
    gap: bool = False

    @classmethod
    def of(cls, cursor: Cursor | None) -> Standing:
        """From a stored cursor; one that cannot be read is a fresh start."""
        if not cursor:
            return cls()
        try:
            last = {str(chat): (str(one[0]), str(one[1])) for chat, one in cursor.get("last", {}).items()}
            return cls(
                session=cursor.get("session_id"),
                seq=int(cursor.get("seq", 0)),
                url=str(cursor.get("resume_gateway_url", "")),
                application=str(cursor.get("application", "")),
                last=last,
                roles=frozenset(str(role) for role in cursor.get("roles", ())),
                gap=bool(cursor.get("gap")),
            )
        except (AttributeError, IndexError, TypeError, ValueError):
            return cls()

    def cursor(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "v": 1,
            "session_id": self.session,
            "seq": self.seq,
            "resume_gateway_url": self.url,
            "application": self.application,
            "last": {chat: list(one) for chat, one in self.last.items()},
            "roles": sorted(self.roles),
            "gap": self.gap,
        }

    def without_session(self) -> Standing:
        """The session is gone: what it would have brought must be fetched."""
        return replace(self, session=None, seq=0, url="", gap=bool(self.last))

    def begun(self, ready: Mapping[str, Any], seq: int) -> Standing:
        """READY has come."""
        application = str((ready.get("application") or {}).get("id") or ready["user"]["id"])
        return replace(
            self,
            session=str(ready["session_id"]),
            seq=seq,
            url=str(ready["resume_gateway_url"]),
            application=application,
            gap=bool(self.last),
        )

    def seen(self, event: Event | None) -> Standing:
        """An event is about to be stored: its message is the newest of its chat, unless a newer one was there."""
        if event is None or event.kind not in ("message", "command") or event.message_id is None or event.echo:
            return self
        guild = str(event.payload.get("guild_id") or "")
        before = self.last.get(event.chat)
        if before is not None and int(before[0]) >= int(event.message_id):
            return self
        last = {**self.last, event.chat: (event.message_id, guild)}
        if len(last) > CHATS_MAX:
            del last[min(last, key=lambda chat: int(last[chat][0]))]
        return replace(self, last=last)

    def with_roles(self, found: frozenset[str]) -> Standing:
        """More roles that Discord made for us."""
        more = self.roles | found
        return self if more == self.roles or len(more) > ROLES_MAX else replace(self, roles=more)

    def without_chat(self, chat: str) -> Standing:
        """A chat that is gone, or that we may not read any more."""
        return replace(self, last={one: at for one, at in self.last.items() if one != chat})
