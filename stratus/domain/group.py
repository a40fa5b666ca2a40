"""Who answers a message in a group: one decision for each message of the platform, whichever of our bots saw it. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Any

from stratus.channel.values import Event, Sender
from stratus.domain.machine import Machine
from stratus.domain.routing import Access

# So many turns may follow each other in a chat at the word of a bot; then somebody of flesh must speak.
BOT_TURNS_MAX = 3
HOLD_SECONDS = 3600.0
HOLD_LOOK_SECONDS = 5.0
CONTEXT_MESSAGES_MAX = 20
CONTEXT_BYTES_MAX = 8_000
_NAME_CHARACTERS = 40

NOT_ADDRESSED = "not addressed to any of us"
LOOP = f"{BOT_TURNS_MAX} turns in a row were between bots: the next needs a person"
LOOP_NOTICE = f"We bots have answered each other {BOT_TURNS_MAX} times in a row, so I stop here. Write to go on."


@unique
class GroupState(StrEnum):
    """States of `group_message`. The comment says who moves it on."""

    SILENT = "silent"  # another bot of ours, to which it turns out to be addressed
    HOLD = "hold"  # the router: when the responder is back, or when the wait is over
    ACCEPT = "accept"
    EXPIRED = "expired"


@unique
class GroupEvent(StrEnum):
    """What moves a decision."""

    ADDRESS = "address"
    DEFER = "defer"
    RELEASE = "release"
    EXPIRE = "expire"


_ANSWERED = frozenset({GroupState.HOLD, GroupState.ACCEPT, GroupState.EXPIRED})

GROUP: Machine[GroupState, GroupEvent] = Machine(
    name="group_message",
    table="group_message",
    states=GroupState,
    initial=frozenset({GroupState.SILENT, GroupState.HOLD, GroupState.ACCEPT}),
    moves={
        (GroupState.SILENT, GroupEvent.ADDRESS): GroupState.ACCEPT,
        (GroupState.SILENT, GroupEvent.DEFER): GroupState.HOLD,
        (GroupState.HOLD, GroupEvent.RELEASE): GroupState.ACCEPT,
        (GroupState.HOLD, GroupEvent.EXPIRE): GroupState.EXPIRED,
    },
    columns={"responder_id": _ANSWERED},
)


@dataclass(frozen=True)
class Bot:
    """One of our channels on the platform; `unavailable` says why it cannot answer now."""

    channel_id: int
    name: str
    account_key: str | None
    access: Access
    unavailable: str | None = None


@dataclass(frozen=True)
class Known:
    """What was decided before of this message. `mine` says that it waits on this very event; `age` is in seconds."""

    state: GroupState
    reason: str
    mine: bool = False
    age: float = 0.0


@dataclass(frozen=True)
class Decision:
    """`responder` is the channel that answers, or is to answer. `repeated`: an earlier decision stands, nothing is written."""

    state: GroupState
    reason: str
    responder: int | None = None
    repeated: bool = False
    notice: bool = False


def decide(event: Event, me: Bot, bots: Sequence[Bot], known: Known | None, bot_turns: int) -> Decision:
    """Judge a message that `me` saw. `bots` are all of ours on the platform, `bot_turns` how many turns came at the word of bots."""
    judged = _judged(event, me, bots, bot_turns)
    if known is None:
        return judged
    if known.state is GroupState.SILENT and known.reason == NOT_ADDRESSED and judged.responder is not None:
        return judged  # who saw it first could not tell whom it is for
    if known.state is GroupState.HOLD and known.mine:
        if judged.state is GroupState.HOLD and known.age <= HOLD_SECONDS:
            return judged
        if judged.state is GroupState.ACCEPT:
            return judged
        return Decision(GroupState.EXPIRED, known.reason, judged.responder)
    return Decision(known.state, known.reason, None, repeated=True)


def _judged(event: Event, me: Bot, bots: Sequence[Bot], bot_turns: int) -> Decision:
    author = next((bot for bot in bots if bot.account_key == event.sender.id), None)
    if (silent := _unheard(event, me, author)) is not None:
        return Decision(GroupState.SILENT, silent)
    responder = _named(event, me, bots, author)
    if responder is None:
        return Decision(GroupState.SILENT, NOT_ADDRESSED)
    if author is None and not responder.access.allows(event):
        return Decision(GroupState.SILENT, f"the sender is not on the list of {responder.name}")
    if event.sender.is_bot and bot_turns >= BOT_TURNS_MAX:
        return Decision(GroupState.SILENT, LOOP, notice=bot_turns == BOT_TURNS_MAX)
    if responder.unavailable is not None:
        return Decision(GroupState.HOLD, responder.unavailable, responder.channel_id)
    return Decision(GroupState.ACCEPT, f"addressed to {responder.name}", responder.channel_id)


def _unheard(event: Event, me: Bot, author: Bot | None) -> str | None:
    if author is not None and author.channel_id == me.channel_id:
        return "my own words"
    if event.sender.is_bot and author is None and event.sender.id not in me.access.allow:
        return "written by a bot that is not ours"
    return None if event.text.strip() or event.attachments else "empty"


def _named(event: Event, me: Bot, bots: Sequence[Bot], author: Bot | None) -> Bot | None:
    """The first of ours that the message names; else the one that saw it, if its platform says that it is meant."""
    by_account = {bot.account_key: bot for bot in bots if bot.account_key is not None and bot is not author}
    named = (by_account[one] for one in event.mentions if one in by_account)
    return next(named, me if event.addressed else None)


def speaker(sender: Sender) -> str:
    """A person's name for the model: one short line in which nothing can pass for another speaker."""
    given = sender.name or sender.username
    seen = "".join(" " if sign == ":" or unicodedata.category(sign)[0] in "CZ" else sign for sign in given)
    return " ".join(seen.split())[:_NAME_CHARACTERS].strip() or "Somebody"


def spoken(sender: Sender, text: str) -> str:
    """What somebody said, as the model reads it: further lines are set in, so that none passes for another speaker's."""
    return f"{speaker(sender)}: " + "\n  ".join(text.splitlines())


def context_limit(options: Mapping[str, Any]) -> int:
    """How many messages before the addressed one an agent is told: the channel's option `group_context`, a boolean."""
    return CONTEXT_MESSAGES_MAX if options.get("group_context", True) is True else 0


def context(lines: Sequence[tuple[Sender, str]]) -> str:
    """The newest of these, oldest first, within CONTEXT_BYTES_MAX; empty when there is nothing to tell."""
    kept: list[str] = []
    room = CONTEXT_BYTES_MAX
    for sender, text in reversed(lines):
        line = spoken(sender, text)
        room -= len(line.encode("utf-8", "replace")) + 1
        if room < 0:
            break
        kept.append(line)
    if not kept:
        return ""
    return "\n\n[Said in this group before, not to you, oldest first:]\n" + "\n".join(reversed(kept))
