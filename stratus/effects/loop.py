"""The one thing that repeats a `step()`: wake-ups, polling, backoff with jitter, health and a clean end.

A step does one transaction's worth of work and says whether there was any, so a seeded scheduler can also drive steps itself.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from stratus.effects.chance import Chance
from stratus.effects.clock import Clock

_BACKOFF_MAX_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass
class LoopHealth:
    """What `/readyz` and the metrics say of a loop. `failing_since` is monotonic seconds, None while healthy."""

    name: str
    steps: int = 0
    errors: int = 0
    failing_since: float | None = None
    last_error: str = ""
    running: bool = False


@dataclass
class Loop:
    """Repeats `step` until stopped.

    `step` returns True when there was work, so that the next one follows at once; otherwise the loop waits for `wake()` or `poll_seconds`.
    An exception never ends the loop: it backs off (0.1 s doubling to 5 s, with jitter) and says so in its health.
    """

    name: str
    step: Callable[[], Awaitable[bool]]
    poll_seconds: float
    clock: Clock = field(default_factory=Clock)
    chance: Chance = field(default_factory=Chance)

    def __post_init__(self) -> None:
        self.health = LoopHealth(self.name)
        self._wake = asyncio.Event()
        self._within = math.inf
        self._stopping = False

    def wake(self) -> None:
        """Let the next step start now: a hint, always safe to give or to lose."""
        self._wake.set()

    def wake_within(self, seconds: float) -> None:
        """From a step: let the next one start after so many seconds, more or less, where the poll would come later."""
        self._within = seconds

    def stop(self) -> None:
        """Ask for the end after the step in hand; `run()` then returns."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Repeat until `stop()` or cancellation."""
        self.health.running = True
        failures = 0
        try:
            while not self._stopping:
                self._wake.clear()
                self._within = math.inf
                try:
                    busy = await self.step()
                except Exception as error:  # a loop outlives every fault of a step
                    failures += 1
                    self._failed(error, failures)
                    await self._pause(min(0.1 * 2.0 ** min(failures - 1, 10), _BACKOFF_MAX_SECONDS))
                    continue
                failures = 0
                self.health.steps += 1
                self.health.failing_since = None
                if not busy:
                    await self._pause(min(self.poll_seconds, self._within))
        finally:
            self.health.running = False

    def _failed(self, error: Exception, failures: int) -> None:
        self.health.errors += 1
        self.health.last_error = f"{type(error).__name__}: {error}"[:300]
        if self.health.failing_since is None:
            self.health.failing_since = self.clock.monotonic()
        if failures in (1, 2, 4, 8) or failures % 16 == 0:  # an outage of minutes must not write a line every step
            log.warning("loop.failed", loop=self.name, failures=failures, error=self.health.last_error)

    async def _pause(self, seconds: float) -> None:
        if self._stopping:
            return
        try:
            async with asyncio.timeout(self.chance.spread(seconds)):
                await self._wake.wait()
        except TimeoutError:
            pass
