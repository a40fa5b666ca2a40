"""Renews every lease of this replica from a thread and a connection of its own, so that no work can starve it.

It does so only while the work's own loop still turns: a hung replica must lose its leases. A thread, not a task, for the same reason.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import structlog

from stratus.effects import Chance, Clock
from stratus.store.database import Connection, Timeouts, connect

# The work's loop must have turned this lately, as a share of the TTL, for its leases to be renewed.
_PULSE_SHARE = 1.0 / 3.0
# A holder stops this much earlier, as a share of the TTL, than the database would say.
_MARGIN_SHARE = 0.1

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Renewable:
    """One kind of lease, renewed in one statement for `ttl` seconds.

    `held` lists what to renew; it is called in the keeper's thread and must return a copy. `answered` gets the results on the work's loop, with
    the monotonic moment just before the statement was sent (see `local_deadline`).
    """

    name: str
    ttl: float
    held: Callable[[], Sequence[Any]]
    renew: Callable[[Connection, Sequence[Any], float], Awaitable[Sequence[Any]]]
    answered: Callable[[Sequence[Any], float], None]


def local_deadline(sent_at: float, ttl: float) -> float:
    """Until when (monotonic) a lease may be relied on that was taken or renewed by a statement sent at `sent_at`: a little less than the TTL."""
    return sent_at + ttl * (1 - _MARGIN_SHARE)


class LeaseKeeper:
    """The thread. `pulse()` must be called from the work's loop at least every TTL / 6."""

    def __init__(self, dsn: str, timeouts: Timeouts, application_name: str, kinds: Sequence[Renewable]) -> None:
        self._dsn = dsn
        self._timeouts = Timeouts(timeouts.statement, timeouts.idle_in_transaction, min(0.5, timeouts.lock))
        self._name = f"{application_name}/renew"
        self._kinds = kinds
        self._period = min(kind.ttl for kind in kinds) / 3.0
        self._clock = Clock()
        self._chance = Chance()
        self._pulse = self._clock.monotonic()
        self._stop = threading.Event()
        self._due_now = threading.Event()
        self._work_loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="leases", daemon=True)
        self.last_success = self._clock.monotonic()

    def start(self) -> None:
        """Begin; call from the work's loop."""
        self._work_loop = asyncio.get_running_loop()
        self._thread.start()

    def pulse(self) -> None:
        """Says that the work's loop turns."""
        self._pulse = self._clock.monotonic()

    def hurry(self) -> None:
        """Renew at once: a lease that took long to get has little left of its time."""
        self._due_now.set()

    async def stop(self) -> None:
        """End the thread; leases that are still held then expire by themselves."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, self._timeouts.statement + 2.0)

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        connection: asyncpg.Connection[asyncpg.Record] | None = None
        while not self._stop.is_set():
            try:
                if connection is None or connection.is_closed():
                    connection = await connect(self._dsn, self._timeouts, self._name)
                await self._renew_all(connection)
            except Exception as error:  # without this thread every lease would be lost
                log.warning("leases.not_renewed", error=type(error).__name__)
                if connection is not None:
                    connection.terminate()
                connection = None
            await self._wait()
        if connection is not None:
            connection.terminate()

    async def _wait(self) -> None:
        pause = self._chance.spread(self._period, 0.1)
        until = self._clock.monotonic() + pause
        while not (self._stop.is_set() or self._due_now.is_set()) and self._clock.monotonic() < until:
            await self._clock.sleep(min(0.05, pause))
        self._due_now.clear()

    async def _renew_all(self, connection: Connection) -> None:
        for kind in self._kinds:
            if self._clock.monotonic() - self._pulse > kind.ttl * _PULSE_SHARE:
                log.warning("leases.loop_stalled", kind=kind.name)
                continue
            leases = list(kind.held())
            if leases:
                sent_at = self._clock.monotonic()
                self._tell(kind, await kind.renew(connection, leases, kind.ttl), sent_at)
        self.last_success = self._clock.monotonic()

    def _tell(self, kind: Renewable, results: Sequence[Any], sent_at: float) -> None:
        if self._work_loop is not None and not self._work_loop.is_closed():
            self._work_loop.call_soon_threadsafe(kind.answered, results, sent_at)
