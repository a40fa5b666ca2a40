"""Drains ready events, in order for each chat, under a per-channel advisory transaction lock; any replica may do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from stratus.domain.chain import notice
from stratus.domain.errors import Broken, DatabaseAway
from stratus.domain.inbox import InboxState
from stratus.domain.routing import Meaning, Obey, Speak
from stratus.effects import Failpoints
from stratus.ingress.assembly import Assembly, reply_to
from stratus.ingress.commands import obey
from stratus.ingress.groups import Groups
from stratus.store import binding, chat_move, group, inbox
from stratus.store.database import Connection, Database
from stratus.store.hints import Hints
from stratus.store.inbox import ChannelFacts, ReadyEvent
from stratus.store.plan import addressed, plan

BATCH = 200
_ALONE = frozenset({"stop", "approve", "deny"})
SORRY = "I could not take in a message of yours, and have put it aside. Later ones are not affected."

log = structlog.get_logger(__name__)


class UnreadableEvent(Broken):
    """A stored event cannot be decoded: a replica of another version may be able to."""

    code = "unreadable_event"


@dataclass(frozen=True)
class Routed:
    """What one transaction did: events settled, sessions that got runs, those whose turn is to end, and the channel that answers."""

    events: int
    sessions: Sequence[str] = ()
    canceled: Sequence[str] = ()
    by: int | None = None


class Router:
    """`step()` routes one batch of each channel that has any."""

    def __init__(self, db: Database, hints: Hints, failpoints: Failpoints) -> None:
        self._db = db
        self._hints = hints
        self._failpoints = failpoints

    async def step(self) -> bool:
        """True when events were settled, so that there may be more. Raises a channel's fault after all the others had their turn."""
        settled = 0
        fault: Exception | None = None
        for channel_id in await inbox.channels_with_work(self._db):
            try:
                settled += await self._channel(channel_id)
            except DatabaseAway:
                raise
            except Exception as error:
                log.error("route.channel_failed", channel=channel_id, error=type(error).__name__)
                fault = error
        if fault is not None:
            raise fault
        return settled > 0

    async def _channel(self, channel_id: int) -> int:
        try:
            routed = await self._route(channel_id, BATCH)
        except DatabaseAway:
            raise
        except Exception as error:
            log.warning("route.batch_failed", channel=channel_id, error=type(error).__name__)
            return await self._one_by_one(channel_id)
        return routed.events

    async def _one_by_one(self, channel_id: int) -> int:
        """A row made its batch raise: route each alone, and put that one aside."""
        settled = 0
        while True:
            first: list[ReadyEvent] = []
            try:
                routed = await self._route(channel_id, 1, first)
            except DatabaseAway:
                raise
            except Exception as error:
                if not first:
                    raise
                await self._put_aside(channel_id, first[0], error)
                settled += 1
                continue
            if not routed.events:
                return settled
            settled += routed.events

    async def _route(self, channel_id: int, limit: int, taken: list[ReadyEvent] | None = None) -> Routed:
        async def work(connection: Connection) -> Routed:
            batch = await inbox.take_batch(connection, channel_id, limit)
            if not batch:
                return Routed(0)
            if taken is not None:
                taken[:] = batch
            await self._failpoints.hit("route.rule")
            return await _settle_batch(connection, channel_id, batch)

        # A repeat finds the rows settled: they are this transaction's markers.
        routed = await self._db.transact(work, idempotent=True)
        if routed.events:
            await self._failpoints.hit("route.after_commit")
            self._tell(channel_id, routed)
        return routed

    def _tell(self, channel_id: int, routed: Routed) -> None:
        if routed.sessions:
            self._hints.send("runs")
        for session_id in routed.sessions:
            self._hints.send("session", session_id)
        for session_id in routed.canceled:
            self._hints.send("cancel", session_id)
            self._hints.send("session", session_id)
        if routed.canceled:
            self._hints.send("family")
        self._hints.send("outbox", str(routed.by or channel_id))

    async def _put_aside(self, channel_id: int, ready: ReadyEvent, error: Exception) -> None:
        async def tell(connection: Connection) -> None:
            channel = await inbox.facts(connection, channel_id)
            if channel is not None and ready.event.chat and not ready.event.sender.is_bot:
                to = reply_to(channel, ready)
                await plan(connection, addressed([notice(SORRY, to, f"dead:{ready.id}")], to))

        state = await inbox.back_off(self._db, ready.id, f"{type(error).__name__}: {error}", on_death=tell)
        log.warning("route.put_aside", channel=channel_id, inbox=ready.id, state=state, error=type(error).__name__)
        if state is InboxState.DEAD:
            self._hints.send("outbox", str(channel_id))


async def _settle_batch(connection: Connection, channel_id: int, batch: Sequence[ReadyEvent]) -> Routed:
    for one in batch:
        if not one.readable:
            raise UnreadableEvent(f"event {one.id} is stored in a form that this version does not know")
    channel = await inbox.facts(connection, channel_id)
    if channel is None:
        gone = [inbox.Settled(one.id, InboxState.IGNORED, None, {"reason": "channel deleted"}) for one in batch]
        await inbox.settle(connection, gone)
        await group.give_up(connection, [one.id for one in batch], "the channel that saw it was deleted")
        return Routed(len(batch))
    batch = await _moved(connection, channel, batch)
    groups = await Groups.of(connection, channel, batch)
    judged = _together(groups, batch)
    by, judged = await _answering(connection, channel, judged)
    places = [(one.event.chat, one.event.thread) for one, _ in judged]
    assembly = Assembly(connection, by, await binding.read(connection, by.id, places))
    await assembly.learn_senders(judged)
    await groups.write([ready for ready, _ in judged])
    stopped: list[str | None] = []
    resumed: list[str | None] = []
    for ready, verdict in judged:
        if isinstance(verdict, Obey):
            answer = await obey(assembly, ready, verdict)
            stopped.append(answer.stopped)
            resumed.append(answer.resumed)
        else:
            before = await groups.said_before(ready, by) if isinstance(verdict, Speak) else ""
            assembly.add(ready, verdict, before)
    sessions = await assembly.commit()
    canceled = [*filter(None, stopped), *assembly.interrupted]
    return Routed(len(judged), [*sessions, *filter(None, resumed)], canceled, by.id)


async def _moved(connection: Connection, channel: ChannelFacts, batch: Sequence[ReadyEvent]) -> Sequence[ReadyEvent]:
    """The batch, with what was said in a chat that is called otherwise now moved there, as all that is open is."""
    now = {one.event.chat: one.event.text for one in batch if one.event.kind == "migrate"}
    if not now:
        return batch
    # The groups' locks come before all others.
    await group.lock_chats(
        connection, channel.platform, [*(one.event.chat for one in batch if one.event.chat), *now.values()]
    )
    for old, new in now.items():
        await chat_move.move(connection, channel.id, old, new)
    return [
        replace(one, event=one.event.model_copy(update={"chat": now[one.event.chat]})) if one.event.chat in now else one
        for one in batch
    ]


def _together(groups: Groups, batch: Sequence[ReadyEvent]) -> list[tuple[ReadyEvent, Meaning]]:
    """The part of a batch that one transaction may take.

    What locks a lease's or a session's row before the others' goes alone, and what another channel answers.
    """
    judged: list[tuple[ReadyEvent, Meaning]] = []
    for ready in batch:
        verdict = groups.meaning(ready)
        alone = verdict.name in _ALONE if isinstance(verdict, Obey) else groups.of_another(verdict)
        if alone and judged:
            break
        judged.append((ready, verdict))
        groups.counted(ready)
        if alone:
            break
    return judged


async def _answering(
    connection: Connection, channel: ChannelFacts, judged: list[tuple[ReadyEvent, Meaning]]
) -> tuple[ChannelFacts, list[tuple[ReadyEvent, Meaning]]]:
    """The channel that answers these, and whose account does: in a group not always the one that saw it."""
    ready, verdict = judged[0]
    if not isinstance(verdict, Speak) or verdict.responder in (None, channel.id):
        return channel, judged
    by = await inbox.facts(connection, verdict.responder)
    if by is None:
        raise LookupError(f"channel {verdict.responder} was deleted a moment ago")
    return by, [(replace(ready, account_key=by.account_key), verdict)]
