"""Reads the event log for all of a replica's watchers at once, and hands it on to each: a thousand readers cost one statement a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import structlog

from stratus.effects import Clock, Loop
from stratus.observe.watch import Watch
from stratus.store import event
from stratus.store.database import Database
from stratus.store.hints import Hints

# Rows of one step, shared out among the places that are read at.
_STEP_ROWS = 5_000
_PAGE_ROWS_MIN = 20
_PAGE_ROWS_MAX = 500
_STALL_SECONDS = 30.0

log = structlog.get_logger(__name__)


class Tailer:
    """Run `loop`; `watch` gives a reader its window. Events come from the database only, so only after their commit.

    A hint makes the next step read the hinted sessions; every `poll_seconds` a step reads all that are watched, so that a lost hint costs
    no more than that.
    """

    def __init__(self, db: Database, hints: Hints, *, poll_seconds: float, clock: Clock | None = None) -> None:
        self._db = db
        self._clock = clock or Clock()
        self._poll_seconds = poll_seconds
        self._watches: defaultdict[str, set[Watch]] = defaultdict(set)
        self._hinted: set[str] = set()
        self._read_all_at = self._clock.monotonic()
        self._closed = False
        self.loop = Loop("tail", self.step, poll_seconds, clock=self._clock)
        hints.on("session", self.hint)

    @property
    def watchers(self) -> int:
        """How many windows are open."""
        return sum(len(watches) for watches in self._watches.values())

    def hint(self, session_id: str) -> None:
        """Read this session in the next step; "" for all."""
        if session_id:
            if session_id not in self._watches:
                return
            self._hinted.add(session_id)
        else:
            self._read_all_at = self._clock.monotonic()
        self.loop.wake()

    def watch(self, session_id: str, after: int) -> Watch:
        """A window on the session's events after seq `after`. One that is opened after `close` has ended already."""
        watch = Watch(session_id, after, clock=self._clock, wanted=self.hint, gone=self._forget)
        if self._closed:
            watch.close()
        self._watches[session_id].add(watch)
        self.hint(session_id)
        return watch

    def close(self) -> None:
        """End every window, and those to come, for the drain: their readers go on elsewhere."""
        self._closed = True
        for watch in self._each(list(self._watches)):
            watch.close()

    async def step(self) -> bool:
        """Read once for all that wait. True when there is more to read at once. Raises DatabaseAway; the windows stay open."""
        places = self._places(self._due())
        if not places:
            return False
        rows = min(max(_STEP_ROWS // len(places), _PAGE_ROWS_MIN), _PAGE_ROWS_MAX)
        keys = list(places)
        pages = await event.tail(self._db, keys, rows)
        more = False
        for key, page in zip(keys, pages, strict=True):
            for watch in places[key]:
                watch.offer(page)
            if len(page) == rows and any(watch.room for watch in places[key]):
                self._hinted.add(key[0])
                more = True
        return more

    def _due(self) -> list[str]:
        now = self._clock.monotonic()
        if now < self._read_all_at:
            due, self._hinted = list(self._hinted), set()
            return due
        self._read_all_at = now + self._poll_seconds
        self._hinted.clear()
        self._end_stalled()
        return list(self._watches)

    def _places(self, sessions: Iterable[str]) -> dict[tuple[str, int], list[Watch]]:
        """The windows with room, by what they have read up to: those side by side share one read."""
        places: defaultdict[tuple[str, int], list[Watch]] = defaultdict(list)
        for watch in self._each(sessions):
            if watch.room:
                places[watch.session_id, watch.position].append(watch)
        return places

    def _each(self, sessions: Iterable[str]) -> list[Watch]:
        return [watch for session_id in sessions for watch in self._watches.get(session_id, ())]

    def _end_stalled(self) -> None:
        for watch in self._each(list(self._watches)):
            if watch.full_seconds > _STALL_SECONDS:
                log.info("tail.slow_reader", session=watch.session_id)
                watch.close()

    def _forget(self, watch: Watch) -> None:
        watches = self._watches.get(watch.session_id)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                del self._watches[watch.session_id]
                self._hinted.discard(watch.session_id)
