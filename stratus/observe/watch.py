"""One reader's bounded window on a session's log: filled by the tailer, emptied at the reader's own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from stratus.domain.event import StoredEvent
from stratus.effects import Clock

COUNT_MAX = 1_000
BYTES_MAX = 1_000_000
# What an event weighs beside its payload.
_EVENT_BYTES = 400


class Watch:
    """Events of a session after a seq, in order and without a gap. A context manager, so that the tailer forgets it.

    It holds at most COUNT_MAX events of about BYTES_MAX together; while it is full the tailer reads nothing more for it, and ends it when
    it stays so. It holds no database connection.
    """

    def __init__(
        self, session_id: str, after: int, *, clock: Clock, wanted: Callable[[str], None], gone: Callable[[Watch], None]
    ) -> None:
        self.session_id = session_id
        self.position = after
        self._events: list[StoredEvent] = []
        self._bytes = 0
        self._clock = clock
        self._wanted = wanted
        self._gone = gone
        self._full_since: float | None = None
        self._stir = asyncio.Event()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gone(self)

    @property
    def room(self) -> int:
        """How many more events it takes; 0 while it is full, or has ended."""
        return 0 if self._closed or self._bytes >= BYTES_MAX else max(COUNT_MAX - len(self._events), 0)

    @property
    def full_seconds(self) -> float:
        """For how long it has been full without being read."""
        return 0.0 if self._full_since is None else self._clock.monotonic() - self._full_since

    def offer(self, events: Sequence[StoredEvent]) -> None:
        """Take what there is room for of the events that follow its position; the tailer offers the rest again."""
        for event in events:
            if not self.room:
                break
            if event.seq > self.position:
                self._events.append(event)
                self._bytes += len(event.payload) + _EVENT_BYTES
                self.position = event.seq
        if not self.room and self._full_since is None:
            self._full_since = self._clock.monotonic()
        self._stir.set()

    def close(self) -> None:
        """End it: the reader still gets what is here, and then None."""
        self._closed = True
        self._stir.set()

    async def take(self, seconds: float) -> list[StoredEvent] | None:
        """What has come; empty when nothing came within `seconds`; None once it has ended."""
        if not self._events and not self._closed:
            self._stir.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._stir.wait()
            except TimeoutError:
                return []
        if not self._events and self._closed:
            return None
        taken, self._events, self._bytes = self._events, [], 0
        if self._full_since is not None:
            self._full_since = None
            self._wanted(self.session_id)
        return taken
