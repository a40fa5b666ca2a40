"""Groups: a batch's messages judged once each for all of our bots that see them, under the chats' locks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from stratus.domain.group import (
    BOT_TURNS_MAX,
    LOOP_NOTICE,
    Bot,
    Decision,
    GroupState,
    Known,
    context,
    context_limit,
    decide,
)
from stratus.domain.routing import Access, Hold, Ignore, Meaning, Refuse, Speak, meaning
from stratus.store import group
from stratus.store.database import Connection
from stratus.store.group import MessageKey, NewDecision
from stratus.store.inbox import ChannelFacts, ReadyEvent


class Groups:
    """Judges a batch of one channel in order. `write` records what was decided of those that the transaction takes."""

    def __init__(self, connection: Connection, channel: ChannelFacts) -> None:
        self._connection = connection
        self._channel = channel
        self._access = Access.of(channel.config)
        self._messages: dict[int, MessageKey] = {}
        self._known: Mapping[int, Known] = {}
        self._bots: Mapping[tuple[str, str], Sequence[Bot]] = {}
        self._turns: dict[str, int] = {}
        self._decided: dict[int, Decision] = {}

    @classmethod
    async def of(cls, connection: Connection, channel: ChannelFacts, batch: Sequence[ReadyEvent]) -> Self:
        """Locks the groups of a batch, before anything else, and reads what is known of its messages."""
        made = cls(connection, channel)
        here = [one for one in batch if one.event.chat and not one.event.direct]
        if here:
            made._turns = await group.lock_chats(connection, channel.platform, [one.event.chat for one in here])
        said = [one for one in here if one.event.kind == "message"]
        if said:
            made._messages = {one.id: _key(channel, one) for one in said}
            made._known = await group.known(connection, channel.platform, made._messages)
            places = [(one.event.chat, one.event.thread) for one in said]
            made._bots = await group.bots(connection, channel.platform, places)
        return made

    def meaning(self, ready: ReadyEvent) -> Meaning:
        """Judge one event; those of a batch in order."""
        event = ready.event
        alone = meaning(event, self._access)
        if ready.id not in self._messages:
            return alone
        bots = self._bots[event.chat, event.thread]
        me = next(bot for bot in bots if bot.channel_id == self._channel.id)
        decided = decide(event, me, bots, self._known.get(ready.id), self._turns[event.chat])
        self._decided[ready.id] = decided
        if decided.state is GroupState.SILENT and isinstance(alone, Refuse):
            return alone
        if decided.repeated:
            return Ignore(f"decided before: {decided.state}, {decided.reason}")
        if decided.state is GroupState.HOLD:
            return Hold(decided.reason)
        if decided.state is not GroupState.ACCEPT:
            return Ignore(decided.reason, LOOP_NOTICE if decided.notice else None)
        return Speak(decided.responder)

    def of_another(self, verdict: Meaning) -> bool:
        """Whether another of our channels is to answer."""
        return isinstance(verdict, Speak) and verdict.responder not in (None, self._channel.id)

    def counted(self, ready: ReadyEvent) -> None:
        """Let a judged event count for those after it: a person's word ends the bots' turns, an accepted bot's is one more."""
        decided = self._decided.get(ready.id)
        if decided is None or decided.repeated:
            return
        chat = ready.event.chat
        if not ready.event.sender.is_bot:
            self._turns[chat] = 0
        elif decided.state is GroupState.ACCEPT or decided.notice:
            self._turns[chat] = min(self._turns[chat] + 1, BOT_TURNS_MAX + 1)

    async def write(self, taken: Sequence[ReadyEvent]) -> None:
        """Record the decisions of these."""
        fresh = [one for one in taken if (made := self._decided.get(one.id)) is not None and not made.repeated]
        if not fresh:
            return
        decisions = []
        for one in fresh:
            made = self._decided[one.id]
            decisions.append(
                NewDecision(self._messages[one.id], one.event.thread, one.id, made.responder, made.state, made.reason)
            )
        await group.decide(self._connection, self._channel.platform, self._channel.id, decisions)
        turns = {one.event.chat: self._turns[one.event.chat] for one in fresh}
        await group.count_turns(self._connection, self._channel.platform, turns)

    async def said_before(self, ready: ReadyEvent, responder: ChannelFacts) -> str:
        """What the responder is told of the talk before, of people whom it listens to."""
        limit = context_limit(responder.config)
        message = self._messages.get(ready.id)
        if not limit or message is None:
            return ""
        said = await group.said_before(self._connection, self._channel.platform, message, limit)
        access = Access.of(responder.config)
        accounts = {bot.account_key: bot.channel_id for bot in self._bots[ready.event.chat, ready.event.thread]}
        heard = [
            (sender, text)
            for sender, text in said
            if text.strip()
            and accounts.get(sender.id) != responder.id
            and (sender.id in accounts or (access.allows_sender(sender.id) and not sender.is_bot))
        ]
        return context(heard)


def _key(channel: ChannelFacts, ready: ReadyEvent) -> MessageKey:
    event = ready.event
    if event.shared_id and event.message_id is not None:
        return MessageKey(event.chat, event.message_id)
    # Each bot numbers the messages for itself: then each is judged by who saw it.
    return MessageKey(event.chat, f"{channel.public_id.hex}/{event.key}")
