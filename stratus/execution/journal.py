"""One turn's writes, in order: streamed deltas gathered for the recorder, and steps that take the gathered ones with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from stratus.domain.errors import DatabaseAway
from stratus.domain.event import NewEvent
from stratus.domain.values import Message
from stratus.effects import Clock, finished
from stratus.store.database import Database
from stratus.store.execution import Append, CallMove, ExecutionLease, NewCall, Step, commit_step

# Unwritten text beyond this makes the turn wait for the recorder, and so the model's stream wait for the turn.
PENDING_MAX = 256_000
_RETRY_SECONDS = 0.3


class Journal:
    """`run_seq` counts the run's committed events; it moves only with a commit. `streamed` counts deltas, written or not."""

    def __init__(
        self, db: Database, lease: ExecutionLease, attempt: int, run_seq: int, *, dirty: Callable[[Journal], None]
    ) -> None:
        self.lease = lease
        self.attempt = attempt
        self.run_seq = run_seq
        self.streamed = 0
        self.lock = asyncio.Lock()
        self._db = db
        self._dirty = dirty
        self._pending: list[NewEvent] = []
        self._spoken: dict[int, str] = {}
        self._size = 0
        self._room = asyncio.Event()
        self._room.set()
        self._clock = Clock()

    def delta(self, kind: str, part: int, text: str) -> None:
        """Gather a streamed piece; pieces of one part that wait together become one event."""
        self.streamed += 1
        if kind == "text.delta":
            self._spoken[part] = self._spoken.get(part, "") + text
        last = self._pending[-1] if self._pending else None
        if last is not None and last.kind == kind and last.payload["part"] == part:
            text = str(last.payload["text"]) + text
            self._pending.pop()
        else:
            self._size += 100
        self._pending.append(NewEvent(kind, {"part": part, "text": text}))
        self._size += len(text)
        if self._size > PENDING_MAX:
            self._room.clear()
        self._dirty(self)

    def spoken(self) -> str:
        """The visible text that was streamed since the last step."""
        return "".join(text for _, text in sorted(self._spoken.items()))

    async def room(self) -> None:
        """Wait while too much is unwritten."""
        await self._room.wait()

    def take(self) -> list[NewEvent]:
        """The gathered events, for whoever holds `lock` and will write them."""
        taken, self._pending, self._size = self._pending, [], 0
        return taken

    def give_back(self, events: Sequence[NewEvent]) -> None:
        """Put back what could not be written, before what has come since."""
        self._pending = [*events, *self._pending]
        self._size = sum(len(str(event.payload.get("text", ""))) + 100 for event in self._pending)

    def written(self, count: int) -> None:
        """`count` events have committed."""
        self.run_seq += count
        if self._size <= PENDING_MAX:
            self._room.set()

    def append(self, events: Sequence[NewEvent]) -> Append:
        """`events` as the recorder writes them."""
        return Append(self.lease, self.run_seq, self.attempt, events)

    async def commit(
        self,
        step: int,
        events: Sequence[NewEvent],
        *,
        messages: Sequence[Message] = (),
        proposed: Sequence[NewCall] = (),
        moves: Sequence[CallMove] = (),
    ) -> None:
        """Commit a step, what was gathered first. Repeats while the database is away: the lease's end ends that. Raises LeaseLost.

        A cancellation lets a commit that has been sent come to its end, so that what is counted here is what is there.
        """
        async with self.lock:
            events = [*self.take(), *events]
            record = Step(self.lease, self.run_seq, self.attempt, step, events, messages, proposed, moves)
            while True:
                try:
                    await finished(self._write(record))
                    return
                except DatabaseAway:
                    await self._clock.sleep(_RETRY_SECONDS)

    async def _write(self, record: Step) -> None:
        await commit_step(self._db, record)
        self._spoken.clear()
        self.written(len(record.events))
