"""One replica: builds the parts, starts the loops with ingress last, and drains them in order when it is told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog

from stratus.agents.pool import ModelPool
from stratus.agents.tools import installed_tools
from stratus.agents.toolsets import Toolsets
from stratus.channel.registry import adapter_class, platforms
from stratus.channel.values import Limits
from stratus.config import Settings
from stratus.delivery.manager import ChannelManager
from stratus.delivery.off_channels import OffChannels
from stratus.delivery.terms import Doors, Terms
from stratus.domain.errors import DatabaseAway
from stratus.effects import Batcher, Chance, Clock, Failpoints, Ids, Loop
from stratus.execution.ending import TurnTools
from stratus.execution.family import FamilySweeper
from stratus.execution.recorder import Recorder
from stratus.execution.scheduler import Scheduler
from stratus.execution.sweeper import Sweeper
from stratus.execution.waiting import Waiting
from stratus.execution.worker import Worker
from stratus.http.app import create_app
from stratus.http.server import HttpServer
from stratus.http.services import Services
from stratus.ingress.intake import Intake
from stratus.ingress.router import Router
from stratus.ingress.webhooks import Webhooks
from stratus.observe.tailer import Tailer
from stratus.store import channel_lease, execution, outbox, replica
from stratus.store.database import Database, Timeouts
from stratus.store.hints import Hints
from stratus.store.renewal import LeaseKeeper, Renewable
from stratus.store.run import Ending, finish
from stratus.store.vault import Vault

# Shares of the drain budget: what turns may take, then sends, then connections.
_TURNS_SHARE, _SENDS_SHARE = 0.6, 0.25
_FAILING_SECONDS = 3.0
_HEARTBEAT_SECONDS = 2.0

log = structlog.get_logger(__name__)


async def serve(settings: Settings, environment: Mapping[str, str] | None = None) -> int:
    """Run one replica on a migrated database until SIGTERM or SIGINT, then drain. Returns the process's exit code.

    Raises BadSetting or DatabaseAway when it cannot start.
    """
    return await Replica(settings, os.environ if environment is None else environment).run()


@dataclass(frozen=True)
class _Doors:
    """The replica's own clock, chance, ids and failpoints."""

    clock: Clock
    chance: Chance
    ids: Ids
    failpoints: Failpoints


class Replica:
    """Composition root. Everything is built in the constructor; nothing runs before `run()`."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._doors = _Doors(Clock(), Chance(), Ids(), Failpoints(settings.failpoints))
        self._id = self._doors.ids.uuid()
        self.name = f"{socket.gethostname()}:{os.getpid()}:{self._id.hex[:8]}"
        timeouts = Timeouts.below(min(settings.lease_ttl, settings.channel_ttl))
        application = f"stratus/{self._id.hex[:8]}"
        self._db = Database(settings.dsn, timeouts=timeouts, application_name=application)
        self._hints = Hints(settings.listen_dsn, timeouts, application)
        self._timeouts, self._application = timeouts, application
        self._models = ModelPool(environment, concurrency=settings.model_concurrency)
        self._toolsets = Toolsets(installed_tools(), environment, self._doors.clock)
        self._vault = Vault([key.get_secret_value() for key in settings.secret_key])
        self._finisher: Batcher[Ending, bool] = Batcher(
            lambda endings: finish(self._db, endings), whole=(DatabaseAway,)
        )
        self._intake = Intake(self._db, self._hints, self._doors.failpoints)
        self._loops: list[Loop] = []
        self._draining = asyncio.Event()
        self._signaled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> int:
        """Start, serve, drain."""
        # Bind first: a port in use must be found before anything else has an effect.
        self._tailer = Tailer(self._db, self._hints, poll_seconds=self._settings.poll)
        self._webhooks = Webhooks(self._db, self._vault, self._intake, self._settings.public_url, adapter_class)
        self._http = HttpServer(create_app(self._services()), self._settings.host, self._settings.port)
        self._http.listen()
        await self._db.open()
        await self._register()
        self._catch_signals()
        try:
            async with asyncio.TaskGroup() as group:
                await self._start(group)
                log.info("replica.started", replica=self.name, address=self._settings.bind, **self._roles())
                await self._signaled.wait()
                clean = await self._drain()
                for task in self._tasks:
                    task.cancel()
        finally:
            await self._models.close()
            await self._webhooks.close()
            await self._db.close()
        log.info("replica.ended", replica=self.name, clean=clean)
        return 0 if clean else 1

    async def _register(self) -> None:
        await replica.register(
            self._db,
            self._id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=version("stratus"),
            roles=self._roles(),
            capabilities=self._capabilities(),
        )

    def _capabilities(self) -> list[str]:
        served = platforms() if self._settings.channel_lease else ()
        return [
            *self._models.capabilities(),
            *self._toolsets.capabilities(),
            *(channel_lease.PLATFORM + name for name in served),
        ]

    def health(self) -> list[str]:
        """Why this replica is not ready; empty when it is."""
        reasons = ["draining"] if self._draining.is_set() else []
        if not self._loops:
            reasons.append("starting")
        now = self._doors.clock.monotonic()
        for loop in self._loops:
            state = loop.health
            if not state.running and not self._draining.is_set():
                reasons.append(f"loop {state.name} is not running")
            elif state.failing_since is not None and now - state.failing_since > _FAILING_SECONDS:
                reasons.append(f"loop {state.name} fails: {state.last_error}")
        return reasons

    def _roles(self) -> dict[str, bool]:
        return {"channel_lease": self._settings.channel_lease, "run_worker": self._settings.run_worker}

    def _services(self) -> Services:
        return Services(
            db=self._db,
            hints=self._hints,
            tailer=self._tailer,
            settings=self._settings,
            vault=self._vault,
            health=self.health,
            providers=self._models.available,
            loops=lambda: [loop.health for loop in self._loops],
            webhooks=self._webhooks.handle,
            draining=self._draining,
        )

    def _catch_signals(self) -> None:
        running = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            running.add_signal_handler(number, self._told_to_end)

    def _told_to_end(self) -> None:
        if self._signaled.is_set():
            os._exit(1)  # told twice: leases expire by themselves, nothing here needs an orderly end
        self._signaled.set()

    async def _start(self, group: asyncio.TaskGroup) -> None:
        """Loops in order: what others wait for first, ingress last."""
        settings, doors = self._settings, self._doors
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] = group.create_task
        for service in (self._hints.run(), self._finisher.run(), self._intake.run(), self._toolsets.run()):
            self._tasks.append(spawn(service))
        self._worker, recorder = self._make_worker(group)
        self._manager = ChannelManager(
            self._db,
            self._vault,
            self._intake.deliver,
            self._terms(),
            spawn,
            self._hints,
            doors=Doors(doors.clock, doors.chance, doors.ids, doors.failpoints),
        )
        sweeper = Sweeper(self._db, self._hints, doors.ids)
        waiting = Loop("waiting", Waiting(self._db, self._hints).step, min(1.0, settings.sweep))
        family = Loop("family", FamilySweeper(self._db, self._hints).step, min(1.0, settings.sweep))
        router = Router(self._db, self._hints, doors.failpoints)
        self._keeper = LeaseKeeper(settings.dsn, self._timeouts, self._application, self._renewables())
        self._keeper.start()
        self._claims = Loop("worker", self._worker.step, settings.poll)
        cancels = Loop("cancels", self._worker.check_cancels, settings.lease_ttl)
        record = Loop("recorder", recorder.step, settings.poll)
        route = Loop("router", router.step, settings.poll)
        recorder.wake = record.wake
        schedules = self._schedules()
        for topic, loop in (
            ("runs", self._claims),
            ("cancel", cancels),
            ("inbox", route),
            ("waiting", waiting),
            ("family", family),
            ("schedules", schedules),
        ):
            self._hints.on(topic, partial(_wake, loop))
        self._loops = [
            record,
            Loop("watch", self._watch, min(0.25, settings.lease_ttl / 20)),
            Loop("sweeper", sweeper.step, settings.sweep),
            Loop("off_channels", OffChannels(self._db, settings.send_grace).step, settings.sweep),
            waiting,
            family,
            Loop("heartbeat", self._heartbeat, _HEARTBEAT_SECONDS),
            *([self._claims, cancels, schedules] if settings.run_worker else []),
            self._tailer.loop,
            route,
            self._manager.loop,
            self._manager.drafts.loop,
        ]
        for loop in self._loops:
            self._tasks.append(spawn(loop.run()))
        self._served = spawn(self._http.run())

    def _schedules(self) -> Loop:
        scheduler = Scheduler(self._db, self._hints, self._doors.failpoints)
        loop = Loop("scheduler", scheduler.step, self._settings.sweep)
        scheduler.wake_within = loop.wake_within
        return loop

    def _make_worker(self, group: asyncio.TaskGroup) -> tuple[Worker, Recorder]:
        doors = self._doors
        recorder = Recorder(self._db, self._hints, doors.clock, lambda session_id: self._worker.lost(session_id))
        turn_tools = TurnTools(
            db=self._db,
            models=self._models,
            toolsets=self._toolsets,
            finisher=self._finisher,
            limits=_limits,
            clock=doors.clock,
            ids=doors.ids,
            failpoints=doors.failpoints,
        )
        worker = Worker(
            self._db,
            self._hints,
            turn_tools,
            recorder,
            worker_id=self.name,
            slots=self._settings.workers,
            ttl=self._settings.lease_ttl,
            group=group,
            failpoints=doors.failpoints,
            renew_soon=lambda: self._keeper.hurry(),
            capabilities=self._capabilities(),
        )
        return worker, recorder

    def _terms(self) -> Terms:
        return Terms(
            replica=self.name,
            public_url=self._settings.public_url,
            lease_channels=self._settings.channel_lease,
            ttl=self._settings.channel_ttl,
            send_budget=self._settings.send_budget,
            send_grace=self._settings.send_grace,
            poll=self._settings.poll,
            test_channels=self._settings.test_channels,
            platforms=platforms(),
        )

    def _renewables(self) -> list[Renewable]:
        return [
            Renewable("runs", self._settings.lease_ttl, self._worker.leases, execution.renew, self._worker.renewed),
            Renewable(
                "channels",
                self._settings.channel_ttl,
                self._manager.leases,
                channel_lease.renew,
                self._manager.on_renewals,
            ),
        ]

    async def _watch(self) -> bool:
        self._keeper.pulse()
        return await self._worker.watch()

    async def _heartbeat(self) -> bool:
        if not await replica.seen(self._db, self._id, self._draining.is_set()):
            await self._register()  # paused for so long that others have struck it off
        return False

    async def _drain(self) -> bool:
        """Unready, no more claims; turns end or are given back; sends end, channels are given back; streams are told; connections close."""
        budget = self._settings.drain
        log.info("replica.draining", replica=self.name, turns=self._worker.busy, seconds=budget)
        self._draining.set()
        self._claims.stop()
        clean = True
        try:
            async with asyncio.timeout(budget):
                await self._worker.drain(budget * _TURNS_SHARE)
                await self._send_what_is_due(budget * _SENDS_SHARE)
                await self._manager.drain(budget * _SENDS_SHARE)
                await replica.seen(self._db, self._id, True)
        except (TimeoutError, DatabaseAway) as error:
            log.warning("replica.drain_cut", replica=self.name, error=type(error).__name__)
            clean = False
        self._tailer.close()
        self._http.stop()
        await asyncio.wait([self._served])
        await self._keeper.stop()
        return clean

    async def _send_what_is_due(self, seconds: float) -> None:
        """The answers of the turns that have just ended, where the channel is ours."""
        try:
            async with asyncio.timeout(seconds):
                while (await outbox.stirring(self._db, self._manager.leases()))[0]:
                    await self._doors.clock.sleep(0.05)
        except TimeoutError:
            pass


def _wake(loop: Loop, _key: str) -> None:
    loop.wake()


def _limits(platform: str) -> Limits:
    return adapter_class(platform).limits
