"""Stores what platforms deliver, whether polled or pushed, and answers only after the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratus.channel.values import Event
from stratus.domain.errors import DatabaseAway
from stratus.domain.media import waits
from stratus.effects import Batcher, Failpoints
from stratus.store import inbox
from stratus.store.database import Database
from stratus.store.hints import Hints
from stratus.store.inbox import Arrival, ChannelLease


class Intake:
    """Polled events come with their lease and cursor; pushed ones of many requests and channels share a statement."""

    def __init__(self, db: Database, hints: Hints, failpoints: Failpoints) -> None:
        self._db = db
        self._hints = hints
        self._failpoints = failpoints
        self._pushed: Batcher[Arrival, None] = Batcher(self._store, whole=(DatabaseAway,))

    async def deliver(self, lease: ChannelLease, events: Sequence[Event], cursor: Mapping[str, Any] | None) -> None:
        """Commit a polled batch with the cursor that covers it. Raises LeaseLost or DatabaseAway; then nothing may be acknowledged."""
        await self._failpoints.hit("ingest.before_commit")
        arrivals = [Arrival(lease.channel_id, event) for event in events]
        await inbox.intake(self._db, arrivals, lease=lease, cursor=cursor)
        await self._failpoints.hit("ingest.after_commit")
        if events:
            self._hint([(lease.channel_id, event) for event in events])

    async def push(self, channel_id: int, account: str | None, events: Sequence[Event]) -> None:
        """Commit the events of one webhook request, which `account` received. Raises DatabaseAway."""
        for event in events:
            await self._pushed.submit(Arrival(channel_id, event, account))

    async def run(self) -> None:
        """Serve pushes until cancelled."""
        await self._pushed.run()

    async def _store(self, arrivals: Sequence[Arrival]) -> Sequence[None]:
        await self._failpoints.hit("ingest.before_commit")
        await inbox.intake(self._db, arrivals)
        await self._failpoints.hit("ingest.after_commit")
        self._hint([(arrival.channel_id, arrival.event) for arrival in arrivals])
        return [None] * len(arrivals)

    def _hint(self, events: Sequence[tuple[int, Event]]) -> None:
        self._hints.send("inbox")
        for channel_id in {channel_id for channel_id, event in events if waits(event)}:
            self._hints.send("media", str(channel_id))
