"""One owned channel at work: its adapter, the receiving link and the dispatcher, from the start to an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from stratus.channel.errors import AccountStopped
from stratus.channel.protocol import Adapter
from stratus.channel.registry import UnknownPlatform
from stratus.channel.values import Event
from stratus.delivery.dispatcher import Dispatcher
from stratus.delivery.drafts import Easel, easel
from stratus.delivery.fetcher import Fetcher
from stratus.delivery.health import ChannelHealth, State
from stratus.delivery.leash import Leash
from stratus.delivery.link import MISCONFIGURED, Link
from stratus.delivery.tenure import Tenure
from stratus.delivery.terms import DeliverEvents, Doors, Ending, Terms
from stratus.domain.errors import StratusError
from stratus.store.adapter_config import adapter_config
from stratus.store.channel_lease import AccountTaken, HealthReport, OwnedChannel
from stratus.store.database import Database
from stratus.store.inbox import ChannelLease
from stratus.store.rate import UNLIMITED, rates_of
from stratus.store.settle import Outcome
from stratus.store.vault import Vault

log = structlog.get_logger(__name__)

REFUSED_PAUSE_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
_CANCEL_SECONDS = 1.0
# What an adapter that ignores its cancellations may hold up a drain for: receive(), close(), and close() cancelled.
UNRULY_SECONDS = _CLOSE_SECONDS + 2 * _CANCEL_SECONDS
_TEST_PLATFORM = "testchan"

AdapterClass = Callable[[str], type[Adapter]]


class NotAllowed(StratusError):
    """This replica may not run the platform."""


class BadRates(StratusError):
    """The channel's options ask for rates that are none."""


class ChannelRuntime:
    """One tenure of one channel: it is run once. Another configuration, or another try after a failure, is a new one.

    `leftovers` are, at its end, outcomes that the database has not taken yet.
    """

    def __init__(
        self,
        db: Database,
        owned: OwnedChannel,
        tenure: Tenure,
        adapters: AdapterClass,
        vault: Vault,
        deliver: DeliverEvents,
        terms: Terms,
        doors: Doors,
        changed: Callable[[], None],
        ready: Callable[[], None],
    ) -> None:
        self.tenure = tenure
        self.revision = owned.row.config_revision
        self.health = ChannelHealth(owned.row.id, changed)
        self.leftovers: list[Outcome] = []
        self._db = db
        self._owned = owned
        self._adapters = adapters
        self._vault = vault
        self._deliver = deliver
        self._ready = ready
        self._terms = terms
        self._doors = doors
        self._ending: Ending | None = None
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._settle_seconds = terms.send_budget
        self._dispatcher: Dispatcher | None = None
        self._fetcher: Fetcher | None = None
        self._rates = UNLIMITED
        self.easel: Easel | None = None  # once sending may begin, if the channel shows drafts
        self._sends: dict[asyncio.Task[None], Leash] = {}
        self._idle = False

    def stop(self, ending: Ending = Ending.STOPPED, within: float | None = None) -> None:
        """Ask for the end: receiving stops at once, sends in hand may take `within` seconds (else their own budget). The first reason stays."""
        if self._ending in (None, Ending.REFUSED):
            self._ending = ending
        if within is not None:
            self._settle_seconds = min(self._settle_seconds, within)
        self._stopping.set()
        if ending is not Ending.REFUSED:
            self._over.set()

    def reconsider(self) -> None:
        """What the platform or another channel refused may have changed: a refused runtime ends, and is tried anew."""
        if self._idle:
            self._over.set()

    def wake(self) -> None:
        """There may be something to send."""
        if self._dispatcher is not None:
            self._dispatcher.loop.wake()

    def fetch(self) -> None:
        """An event may wait for its files."""
        if self._fetcher is not None:
            self._fetcher.loop.wake()

    def report(self) -> HealthReport:
        """How it does, for the channel's row."""
        health = self.health
        return HealthReport(self.tenure.lease, str(health.state), health.cause, health.error, self.revision)

    async def run(self) -> Ending:
        """Until `stop`, or until it cannot go on. Raises nothing but a cancellation."""
        try:
            adapter = self._make()
        except AccountStopped as error:
            return await self._refused(str(error))
        except (UnknownPlatform, ImportError) as error:
            self.health.set(State.FAILED, "no_adapter", f"{self._owned.row.platform}: {error}")
            return Ending.UNSTARTABLE
        except StratusError as error:
            self.health.set(State.FAILED, error.code, str(error))
            return Ending.UNSTARTABLE
        except Exception as error:
            log.exception("channel.start_failed", channel=self.tenure.lease.channel_id)
            self.health.set(State.FAILED, "start_failed", f"the adapter did not start: {type(error).__name__}")
            return Ending.UNSTARTABLE
        try:
            await self._work(adapter)
        except Exception:
            log.exception("channel.crashed", channel=self.tenure.lease.channel_id)
            self.health.set(State.FAILED, "crashed", "an unexpected error, see the replica's log")
            self.stop(Ending.UNSTARTABLE)
        finally:
            if self._dispatcher is not None:
                self.leftovers = self._dispatcher.unstored()
            await self._close(adapter)
        if self._ending is Ending.REFUSED:
            return await self._refused("the platform refuses the credentials")
        return self._ending or Ending.STOPPED

    def _make(self) -> Adapter:
        row = self._owned.row
        if row.platform == _TEST_PLATFORM and not self._terms.test_channels:
            raise NotAllowed("test channels are off (STRATUS_TEST_CHANNELS)")
        adapter = self._adapters(row.platform)(adapter_config(row, self._vault, self._terms.public_url))
        try:
            self._rates = rates_of(adapter.limits, row.config)
        except (TypeError, ValueError):
            raise BadRates("the options chat_rate and bot_rate must be messages a second, numbers above 0") from None
        return adapter

    async def _work(self, adapter: Adapter) -> None:
        async with asyncio.TaskGroup() as group:
            dispatcher = Dispatcher(
                self._db,
                self._owned.row.public_id,
                self.tenure,
                adapter,
                self._terms,
                self._doors,
                partial(self._leashed, group),
                self.stop,
                self._rates,
            )
            fetcher = Fetcher(
                self._db,
                self._owned.row,
                self.tenure,
                adapter,
                self._terms,
                self._doors,
                partial(self._leashed, group),
                self._made_ready,
            )
            draining: list[asyncio.Task[None]] = []

            def begin() -> None:
                self._dispatcher, self._fetcher = dispatcher, fetcher
                self.easel = easel(self.tenure.lease, adapter, self._owned.row.config, self.wake)
                draining.extend(group.create_task(one.loop.run()) for one in (dispatcher, fetcher))

            receive = Leash(self._receive(adapter, begin))
            receiving = group.create_task(receive.run())
            await self._stopping.wait()
            self.easel = None
            # Never cut off in a step: an intent that commits unseen would hold its lane until the next owner.
            dispatcher.loop.stop()
            fetcher.loop.stop()
            if not await receive.end(receiving, _CANCEL_SECONDS):
                self._ignored("receive")
            await asyncio.gather(*draining, return_exceptions=True)
            await fetcher.end()
            await dispatcher.settle(self._settle_seconds)
            for task, send in list(self._sends.items()):
                if not await send.end(task, 0):
                    self._ignored("send or fetch")

    def _leashed(self, group: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        leash = Leash(work)
        task = group.create_task(leash.run())
        self._sends[task] = leash
        task.add_done_callback(lambda ended: self._sends.pop(ended, None))
        return task

    def _ignored(self, method: str) -> None:
        log.error(
            "adapter.ignored_cancellation",
            channel=self.tenure.lease.channel_id,
            platform=self._owned.row.platform,
            method=method,
        )

    async def _receive(self, adapter: Adapter, begin: Callable[[], None]) -> None:
        link = Link(
            self._db,
            self._owned,
            self.tenure,
            adapter,
            self._take_in,
            self.health,
            self._terms,
            self._doors,
            begin,
        )
        self.stop(await link.run())

    async def _take_in(self, lease: ChannelLease, events: Sequence[Event], cursor: Mapping[str, Any] | None) -> None:
        await self._deliver(lease, events, cursor)
        if self._fetcher is not None:
            self._fetcher.heard()

    def _made_ready(self) -> None:
        """An event has its files; of those that could not be had its sender is told."""
        self._ready()
        self.wake()

    async def _refused(self, error: str) -> Ending:
        """Keep the channel for a while, idle: another replica would only be refused as well.

        What the operator must mend at the platform is not tried again by itself: each try may count against the bot.
        """
        if self.health.cause not in (AccountTaken.code, MISCONFIGURED):
            self.health.set(State.FAILED, "credentials_refused", error)
        self._idle = True
        try:
            async with asyncio.timeout(None if self.health.cause == MISCONFIGURED else REFUSED_PAUSE_SECONDS):
                await self._over.wait()
        except TimeoutError:
            pass
        return self._ending or Ending.REFUSED

    async def _close(self, adapter: Adapter) -> None:
        closing = Leash(self._closed(adapter))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(closing.run())
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
            if not await closing.end(task, _CANCEL_SECONDS):
                self._ignored("close")

    async def _closed(self, adapter: Adapter) -> None:
        try:
            await adapter.close()
        except Exception as error:
            log.warning("channel.close_failed", channel=self.tenure.lease.channel_id, error=type(error).__name__)
