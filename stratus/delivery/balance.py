"""Spreads channels over replicas: who has less than its share asks, and who has more gives one back.

Nothing rests on it: a hint that is lost is sent again after a TTL, and a channel that nobody takes is taken again by whoever gave it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratus.effects import Clock
from stratus.store import channel_lease
from stratus.store.database import Database
from stratus.store.hints import Hints

TOPIC = "balance"
# A replica that could not run a channel asks for none for so many TTLs: it would only be given what it fails again.
_SHY_TTLS = 20.0


class Balance:
    """Asks by a hint of the topic `balance`, whose key names the platforms, and remembers who has asked."""

    def __init__(self, db: Database, hints: Hints, platforms: Sequence[str], ttl: float, clock: Clock) -> None:
        self._db = db
        self._hints = hints
        self._platforms = platforms
        self._ttl = ttl
        self._clock = clock
        self._next_at = clock.monotonic() + ttl
        self._shy_until = 0.0
        self._asked: set[str] = set()

    def due(self) -> bool:
        """Once in a TTL."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._ttl
        return True

    def failed(self) -> None:
        """A channel could not be run here."""
        self._shy_until = self._clock.monotonic() + self._ttl * _SHY_TTLS

    async def ask(self, held: int) -> None:
        """Ask the others for a channel, if `held` is less than everybody should have at least."""
        if self._clock.monotonic() < self._shy_until:
            return
        channels, replicas = await channel_lease.census(self._db, self._platforms)
        if replicas > 1 and held < channels // replicas:
            self._hints.send(TOPIC, ",".join(self._platforms))

    def asked(self, key: str) -> None:
        """Somebody, perhaps we, would run a channel of one of these platforms."""
        self._asked |= {name for name in key.split(",") if name}

    async def to_give(self, held: Sequence[tuple[int, str]]) -> int | None:
        """Which channel to give to who has asked, of those `held` (id and platform): one, and only if we have more than our share."""
        asked, self._asked = self._asked, set()
        wanted = [channel_id for channel_id, platform in held if platform in asked]
        if not wanted:
            return None
        channels, replicas = await channel_lease.census(self._db, self._platforms)
        return max(wanted) if len(held) > -(-channels // max(replicas, 1)) else None
