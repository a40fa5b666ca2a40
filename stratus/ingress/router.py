"""Drains ready events, in order for each chat, under a per-channel advisory transaction lock; any replica may do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from stratus.domain.chain import notice
from stratus.domain.errors import Broken, DatabaseAway
from stratus.domain.inbox import InboxState
from stratus.domain.routing import Meaning, Obey, meaning
from stratus.effects import Failpoints
from stratus.ingress.assembly import Assembly, reply_to
from stratus.ingress.commands import obey
from stratus.store import binding, inbox
from stratus.store.database import Connection, Database
from stratus.store.hints import Hints
from stratus.store.inbox import ReadyEvent
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
    """What one transaction did: events settled, sessions that got runs, and those whose turn is to end."""

    events: int
    sessions: Sequence[str] = ()
    canceled: Sequence[str] = ()


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
        self._hints.send("outbox", str(channel_id))

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
        return Routed(len(batch))
    places = [(one.event.chat, one.event.thread) for one in batch]
    assembly = Assembly(connection, channel, await binding.read(connection, channel_id, places))
    judged = _alone_or_none([(one, meaning(one.event, assembly.access)) for one in batch])
    await assembly.learn_senders([one for one, _ in judged])
    stopped: list[str | None] = []
    resumed: list[str | None] = []
    for ready, verdict in judged:
        if isinstance(verdict, Obey):
            answer = await obey(assembly, ready, verdict)
            stopped.append(answer.stopped)
            resumed.append(answer.resumed)
        else:
            assembly.add(ready, verdict)
    sessions = await assembly.commit()
    return Routed(len(judged), [*sessions, *filter(None, resumed)], [*filter(None, stopped), *assembly.interrupted])


def _alone_or_none(judged: list[tuple[ReadyEvent, Meaning]]) -> list[tuple[ReadyEvent, Meaning]]:
    """The part of a batch that one transaction may take: what locks a lease's or a session's row before the others' goes alone."""
    for index, (_, verdict) in enumerate(judged):
        if isinstance(verdict, Obey) and verdict.name in _ALONE:
            return judged[: index or 1]
    return judged
