"""Writes the gathered deltas of all of a replica's turns in one statement, at most once a window."""

from __future__ import annotations

from collections.abc import Callable

from stratus.domain.errors import DatabaseAway
from stratus.effects import Clock
from stratus.execution.journal import Journal
from stratus.store.database import Database
from stratus.store.execution import append
from stratus.store.hints import Hints

WINDOW_SECONDS = 0.04
# What comes at once is written at once: a short answer then goes into its turn's end, without a statement of its own.
GATHER_SECONDS = 0.01


class Recorder:
    """`lost` is told of a session whose lease another holds."""

    def __init__(self, db: Database, hints: Hints, clock: Clock, lost: Callable[[str], None]) -> None:
        self._db = db
        self._hints = hints
        self._clock = clock
        self._lost = lost
        self._dirty: dict[str, Journal] = {}
        self._next = 0.0
        self.wake: Callable[[], None] = lambda: None

    def mark(self, journal: Journal) -> None:
        """`journal` has something to write."""
        if not self._dirty:
            self._next = max(self._next, self._clock.monotonic() + GATHER_SECONDS)
        self._dirty[journal.lease.session_id] = journal
        self.wake()

    async def step(self) -> bool:
        """One statement for everything that has gathered. True when there was anything."""
        if not self._dirty:
            return False
        pause = self._next - self._clock.monotonic()
        if pause > 0:
            await self._clock.sleep(pause)
        # A journal whose lock is taken is being written by its own step, which takes the deltas along.
        journals = [journal for journal in self._dirty.values() if not journal.lock.locked()]
        self._dirty.clear()
        for journal in journals:
            await journal.lock.acquire()
        try:
            await self._write(journals)
        finally:
            for journal in journals:
                journal.lock.release()
        self._next = self._clock.monotonic() + WINDOW_SECONDS
        return True

    async def _write(self, journals: list[Journal]) -> None:
        batches = [(journal, events) for journal in journals if (events := journal.take())]
        if not batches:
            return
        try:
            written = await append(self._db, [journal.append(events) for journal, events in batches])
        except DatabaseAway:
            for journal, events in batches:
                journal.give_back(events)
                self._dirty[journal.lease.session_id] = journal
            raise
        for (journal, events), fenced in zip(batches, written, strict=True):
            if fenced:
                journal.written(len(events))
                self._hints.send("session", journal.lease.session_id)
            else:
                self._lost(journal.lease.session_id)
