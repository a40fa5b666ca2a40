"""A process's own clock: for deadlines inside one process and for waiting, never for what another process compares."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

# A holder's local deadline must run on while the machine sleeps; Linux' CLOCK_MONOTONIC stops then (clock_gettime(2)).
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Monotonic seconds that also count suspended time, and cancellable waiting."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; only differences mean anything."""
        return time.clock_gettime(_BOOTTIME)

    def now(self) -> datetime:
        """The wall clock in UTC, for telling a person or a model the time. Never compared with anything: it
        may jump.
        """
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait; a caller must be able to be cancelled here."""
        await asyncio.sleep(seconds)
