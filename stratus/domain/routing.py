"""What an incoming event means: who may speak, what is a command, which session it belongs to. Pure; the router carries it out."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from stratus.channel.values import Event
from stratus.domain.errors import BadInput
from stratus.domain.values import Value

HELP = """I pass your messages to an agent and bring back its answers.

/new [agent] - start a new conversation
/stop - stop the answer in the making, and drop what is queued
/status - what is going on here
/approve [code] - allow what I asked about
/deny [code] [why] - do not allow it
/agents - who can answer
/agent NAME - start a new conversation with NAME
/whoami - who you are to me, and whether I listen
/help - this text"""


class Access(Value):
    """Who may talk on a channel. The default is nobody."""

    mode: Literal["allowlist", "open"] = "allowlist"
    allow: Sequence[str] = Field(default_factory=tuple)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Access:
        """From a channel's options: `access` is a mode by name, or an object with `mode` and `allow`. Raises BadInput."""
        given = options.get("access") or {}
        try:
            return cls.model_validate({"mode": given} if isinstance(given, str) else given)
        except ValidationError as error:
            expected = '"open", or {"mode": "allowlist", "allow": ["4711"]} with ids of the platform'
            raise BadInput(f"the option access must be {expected}") from error

    def allows(self, event: Event) -> bool:
        """By the platform's immutable sender id, never by a name."""
        return self.allows_sender(event.sender.id)

    def allows_sender(self, sender_id: str) -> bool:
        """As `allows`, by the sender's id alone."""
        return self.mode == "open" or sender_id in self.allow


@dataclass(frozen=True)
class Speak:
    """A message for the agent: of this channel, or in a group of the one whose bot is meant."""

    responder: int | None = None


@dataclass(frozen=True)
class Obey:
    """A command with its arguments."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Ignore:
    """Stored, and nothing follows from it, unless the chat is to be told."""

    reason: str
    tell: str | None = None


@dataclass(frozen=True)
class Hold:
    """Judged again later: whoever is meant cannot answer now."""

    reason: str


@dataclass(frozen=True)
class Refuse:
    """The sender may not speak here; told at most once an hour."""

    reason: str


Meaning = Speak | Obey | Ignore | Hold | Refuse

_APPROVAL = re.compile("[0-9a-f]{32}")
_SILENT = {
    "edit": "edits do not change what was asked",
    "member": "membership changes need no answer",
    "migrate": "the chat goes on under its new id",
    "other": "this kind of event has no meaning here",
}


def meaning(event: Event, access: Access) -> Meaning:
    """Judge one event."""
    if event.sender.is_bot:
        return Ignore("written by a bot")
    if event.kind in _SILENT:
        return Ignore(_SILENT[event.kind])
    if event.kind == "callback":
        return _tapped(event, access)
    if not event.direct and not event.addressed:
        return Ignore("not addressed to me")
    if event.command == "whoami":  # the one answer that everybody may have: it says why the others are refused
        return Obey("whoami", "")
    if not access.allows(event):
        return Refuse("not on this channel's list")
    if event.command is not None:
        return Obey(event.command, event.text.strip())
    if not event.text.strip() and not event.attachments:
        return Ignore("empty")
    return Speak()


def _tapped(event: Event, access: Access) -> Meaning:
    """A button: what it sends back is ours (domain/approval.py) or has no meaning here."""
    verdict, _, approval = (event.callback or "").partition(":")
    if verdict not in ("approve", "deny") or not _APPROVAL.fullmatch(approval):
        return Ignore("no button of ours")
    return Obey(verdict, approval) if access.allows(event) else Refuse("not on this channel's list")


def refusal(event: Event) -> str:
    """What a stranger is told."""
    return (
        f"I do not know you yet, so I cannot answer. Whoever runs me can let you in: your id here is {event.sender.id}."
    )


def whoami(event: Event, access: Access, agent_id: str) -> str:
    """Who the sender is to us, and why a message would be ignored."""
    heard = (
        f"I listen to you, and {agent_id} answers."
        if access.allows(event)
        else "I do not listen to you: you are not on this channel's list."
    )
    group = "" if event.direct else " In this group I only read what is addressed to me."
    return f"You are {event.sender.name or 'nameless'} with the id {event.sender.id}. {heard}{group}"


def session_id_for(channel: str, chat: str, thread: str, revision: int) -> str:
    """The stable id of a chat's session: readable while it is short, a digest of the chat where it is not."""
    place = f"{chat}/{thread}" if thread else chat
    if len(place) > 120:
        place = hashlib.sha256(place.encode()).hexdigest()
    return f"{channel}:{place}:{revision}"
