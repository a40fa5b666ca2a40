"""A lease as its holder sees it: with a local deadline, past which nothing is polled or sent, whatever the database would say."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator

from stratus.domain.errors import LeaseLost
from stratus.effects import Clock
from stratus.store.inbox import ChannelLease


class TenureExpired(LeaseLost):
    """No renewal is known to have come in time. The lease may still be ours: the next renewal tells."""


class Tenure:
    """The holding of one lease. The deadline is monotonic seconds and only ever makes the holder stop earlier than it had to."""

    def __init__(self, lease: ChannelLease, deadline: float, clock: Clock) -> None:
        self.lease = lease
        self._deadline = deadline
        self._clock = clock
        self._limits: set[asyncio.Timeout] = set()

    def left(self) -> float:
        """Seconds until the deadline; 0 or less: stop."""
        return self._deadline - self._clock.monotonic()

    def valid(self) -> bool:
        """Whether polling and sending are allowed now."""
        return self.left() > 0

    def extend(self, deadline: float) -> None:
        """A renewal has come. An ended tenure stays ended."""
        if self._deadline < deadline and self._deadline != -math.inf:
            self._move(deadline)

    def end(self) -> None:
        """The lease is lost: stop at once, for good."""
        self._move(-math.inf)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The block is cancelled when the deadline passes, and not entered after it. Raises TenureExpired then."""
        left = self.left()
        if left <= 0:
            raise TenureExpired(f"the lease of channel {self.lease.channel_id} was not renewed in time")
        limit = asyncio.timeout(left)
        try:
            async with limit:
                self._limits.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise TenureExpired(f"the lease of channel {self.lease.channel_id} was not renewed in time") from None
            raise
        finally:
            self._limits.discard(limit)

    def _move(self, deadline: float) -> None:
        self._deadline = deadline
        at = asyncio.get_running_loop().time() + max(self.left(), 0)
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(at)
