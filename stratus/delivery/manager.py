"""Which channels this replica runs: takes free ones, follows what renewals say of its own, and gives them back in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from stratus.channel.registry import adapter_class
from stratus.delivery.balance import TOPIC, Balance
from stratus.delivery.drafts import Drafts, Easel
from stratus.delivery.receipts import Receipts
from stratus.delivery.runtime import UNRULY_SECONDS, AdapterClass, ChannelRuntime
from stratus.delivery.tenure import Tenure
from stratus.delivery.terms import DeliverEvents, Doors, Ending, Spawn, Terms
from stratus.domain.errors import DatabaseAway
from stratus.effects import Loop
from stratus.store import channel_lease, outbox
from stratus.store.channel_lease import ChannelRenewal, HealthReport, OwnedChannel, Seeker
from stratus.store.database import Database
from stratus.store.hints import Hints
from stratus.store.inbox import ChannelLease
from stratus.store.vault import Vault

log = structlog.get_logger(__name__)

_TAKE_MAX = 8
_STORE_SECONDS = 2.0
# Beyond its share a replica takes what has been free for so long, and what it gave away when nobody has taken it for so long.
_PATIENCE_POLLS = 2.0
_GIVEN_POLLS = 6.0
# How long another replica gets the chance to do better, in multiples of the TTL.
_COOL_DOWN_TTLS = {Ending.UNREACHABLE: 1.0, Ending.UNSTARTABLE: 2.0}


@dataclass
class _Slot:
    runtime: ChannelRuntime
    task: asyncio.Task[None]
    platform: str
    reported: HealthReport | None = None
    ending: Ending = Ending.STOPPED


class ChannelManager:
    """Owns the runtimes of one replica. `loop` runs `step`, `drafts.loop` shows what is being written.

    The lease keeper renews `leases()` and calls `on_renewals` on the event loop.

    `spawn` is a task group's `create_task`; what it is given raises nothing.
    """

    def __init__(
        self,
        db: Database,
        vault: Vault,
        deliver: DeliverEvents,
        terms: Terms,
        spawn: Spawn,
        hints: Hints,
        adapters: AdapterClass = adapter_class,
        doors: Doors | None = None,
    ) -> None:
        self._db = db
        self._vault = vault
        self._deliver = deliver
        self._terms = terms
        self._spawn = spawn
        self._adapters = adapters
        self._doors = doors or Doors()
        self._slots: dict[int, _Slot] = {}
        self._cooling: dict[int, float] = {}
        self._balance = Balance(db, hints, terms.platforms or (), terms.ttl, self._doors.clock)
        self._leftovers = Receipts(db, self._doors.failpoints)
        self._look = False
        self._draining = False
        self._clearing = asyncio.Lock()
        self.loop = Loop("channels", self.step, terms.poll, self._doors.clock, self._doors.chance)
        self.drafts = Drafts(db, self._easels, self._doors.clock, self._doors.chance)
        self._hints = hints
        hints.on("outbox", self._something_to_send)
        hints.on("media", self._something_to_fetch)
        hints.on("channels", self._something_configured)
        hints.on(TOPIC, self._asked_for)

    def leases(self) -> list[ChannelLease]:
        """What must be renewed: the leases of all runtimes, also of those that are ending in order. Safe to call from another thread."""
        return [slot.runtime.tenure.lease for slot in list(self._slots.values()) if not slot.task.done()]

    def on_renewals(self, renewals: Sequence[ChannelRenewal], sent_at: float) -> None:
        """Follow what a renewal found that was sent at `sent_at` (monotonic seconds, taken before it was)."""
        deadline = self._terms.deadline(sent_at)
        for renewal in renewals:
            slot = self._slot_of(renewal.lease)
            if slot is not None:
                if renewal.ours:
                    slot.runtime.tenure.extend(deadline)
                _follow(slot.runtime, renewal)

    async def step(self) -> bool:
        """Look, report, wake who has something to send, clear away, take."""
        if self._look:
            await self._inspect()
        await self._report()
        await self._wake_due()
        ended = await self._clear_away()
        await self._share()
        return await self._take() or ended

    async def drain(self, seconds: float) -> None:
        """Stop receiving, let sends in hand end within `seconds`, and give all channels back. Nothing is taken from now on."""
        self._draining = True
        tasks = [slot.task for slot in self._slots.values()]
        for slot in self._slots.values():
            slot.runtime.stop(within=seconds)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds + _STORE_SECONDS + UNRULY_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.wait(tasks)
        try:
            async with asyncio.timeout(_STORE_SECONDS):
                await self._clear_away()
        except (DatabaseAway, TimeoutError):
            log.warning("channels.drain_incomplete", channels=list(self._slots), receipts=len(self._leftovers))

    def _slot_of(self, lease: ChannelLease) -> _Slot | None:
        slot = self._slots.get(lease.channel_id)
        return slot if slot is not None and slot.runtime.tenure.lease == lease else None

    async def _inspect(self) -> None:
        self._look = False
        leases = self.leases()
        if not leases:
            return
        try:
            found = await channel_lease.inspect(self._db, leases)
        except DatabaseAway:
            self._look = True
            raise
        for one in found:
            slot = self._slot_of(one.lease)
            if slot is not None:
                _follow(slot.runtime, one)

    async def _wake_due(self) -> None:
        """The poll behind the hints, for all channels at once: idle ones cost nothing of their own."""
        leases = self.leases()
        due, live = await outbox.stirring(self._db, leases) if leases else ([], [])
        for channel_id in due:
            if channel_id in self._slots:
                self._slots[channel_id].runtime.wake()
        self.drafts.stir(live)

    def _easels(self) -> list[Easel]:
        return [slot.runtime.easel for slot in self._slots.values() if slot.runtime.easel is not None]

    async def _report(self) -> None:
        reports = {}
        for channel_id, slot in self._slots.items():
            report = slot.runtime.report()
            if report != slot.reported:
                reports[channel_id] = report
        if not reports:
            return
        await channel_lease.report_health(self._db, list(reports.values()))
        for channel_id, report in reports.items():
            if channel_id in self._slots:
                self._slots[channel_id].reported = report

    async def _clear_away(self) -> bool:
        async with self._clearing:  # a drain must not return while the loop's own step still gives channels back
            ended = await self._give_back_ended()
            await self._leftovers.store()
            return ended

    async def _give_back_ended(self) -> bool:
        ended = {channel_id: slot for channel_id, slot in self._slots.items() if slot.task.done()}
        if not ended:
            return False
        await self._report()  # why it ended: it can be told only while the lease is ours
        now = self._doors.clock.monotonic()
        for channel_id, slot in ended.items():
            del self._slots[channel_id]
            self._leftovers.add(slot.runtime.leftovers)
            if slot.ending in _COOL_DOWN_TTLS:
                self._cooling[channel_id] = now + self._terms.ttl * _COOL_DOWN_TTLS[slot.ending]
                self._balance.failed()
        try:
            await channel_lease.release(self._db, [slot.runtime.tenure.lease for slot in ended.values()])
        except DatabaseAway:
            log.warning("channel.not_released", channels=list(ended))  # nobody renews them: they end with their TTL
        return True

    async def _share(self) -> None:
        """Tell of channels that nobody here can run; ask for some, or give one, so that all replicas have their share."""
        held = [(channel_id, slot.platform) for channel_id, slot in self._slots.items() if not slot.task.done()]
        given = await self._balance.to_give(held)
        if given is not None:
            log.info("channel.given", channel=given, held=len(held))
            self._cooling[given] = self._doors.clock.monotonic() + self._terms.poll * _GIVEN_POLLS
            self._slots[given].runtime.stop()
        if self._terms.platforms is None or not self._may_take() or not self._balance.due():
            return
        for name in await channel_lease.note_unserved(self._db, self._terms.platforms, self._terms.ttl):
            log.warning("channel.no_adapter", channel=name)
        await self._balance.ask(len(held))

    async def _take(self) -> bool:
        if not self._may_take():
            return False
        now = self._doors.clock.monotonic()
        self._cooling = {channel_id: until for channel_id, until in self._cooling.items() if until > now}
        taken = await channel_lease.acquire(
            self._db,
            self._terms.replica,
            self._terms.ttl,
            _TAKE_MAX,
            [*self._slots, *self._cooling],
            seeker=Seeker(self._terms.platforms, len(self._slots), self._terms.poll * _PATIENCE_POLLS, self._doors.ids),
        )
        if not self._may_take():  # the drain began meanwhile
            await channel_lease.release(self._db, [owned.lease for owned in taken])
            return False
        for owned in taken:
            self._start(owned, self._terms.deadline(now))
        return bool(taken)

    def _may_take(self) -> bool:
        return self._terms.lease_channels and not self._draining

    def _start(self, owned: OwnedChannel, deadline: float) -> None:
        tenure = Tenure(owned.lease, deadline, self._doors.clock)
        runtime = ChannelRuntime(
            self._db,
            owned,
            tenure,
            self._adapters,
            self._vault,
            self._deliver,
            self._terms,
            self._doors,
            self.loop.wake,
            partial(self._hints.send, "inbox"),
        )
        self._slots[owned.row.id] = _Slot(runtime, self._spawn(self._run(owned.row.id, runtime)), owned.row.platform)
        log.info("channel.taken", channel=owned.row.id, token=owned.lease.token)

    async def _run(self, channel_id: int, runtime: ChannelRuntime) -> None:
        ending = await runtime.run()
        self._slots[channel_id].ending = ending
        log.info("channel.ended", channel=channel_id, ending=str(ending))
        self.loop.wake()

    def _something_to_send(self, key: str) -> None:
        for channel_id, slot in self._slots.items():
            if key in ("", str(channel_id)):
                slot.runtime.wake()

    def _asked_for(self, key: str) -> None:
        self._balance.asked(key)
        if key:
            self.loop.wake()

    def _something_to_fetch(self, key: str) -> None:
        for channel_id, slot in self._slots.items():
            if key in ("", str(channel_id)):
                slot.runtime.fetch()

    def _something_configured(self, _key: str) -> None:
        self._look = True
        self._cooling.clear()
        for slot in self._slots.values():
            slot.runtime.reconsider()
        self.loop.wake()


def _follow(runtime: ChannelRuntime, found: ChannelRenewal) -> None:
    """Stop a runtime that may not go on as it is; a wanted one comes back as a new tenure, with what is configured then."""
    if not found.ours:
        runtime.tenure.end()
        runtime.stop(Ending.LOST)
    elif found.deleted or not found.enabled or found.config_revision != runtime.revision:
        runtime.stop()
