"""One turn's writes, in order: streamed deltas gathered for the recorder, and steps that take the gathered ones with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stratus.channel.text import clean
from stratus.domain.errors import CancelAsked, DatabaseAway, NotApproved
from stratus.domain.event import NewEvent
from stratus.domain.values import Message
from stratus.effects import Clock, finished
from stratus.store.database import Database
from stratus.store.execution import Append, ExecutionLease, Step, commit_step
from stratus.store.park import Parking, park
from stratus.store.plan import NewOp
from stratus.store.steer import take_up, waiting_to_steer
from stratus.store.tool_call import CallMove, NewCall

# Unwritten text beyond this makes the turn wait for the recorder, and so the model's stream wait for the turn.
PENDING_MAX = 256_000
# A watcher sees this much of what a tool reports on its way.
OUTPUT_MAX = 64_000
_RETRY_SECONDS = 0.3


class Journal:
    """`run_seq` counts the run's committed events; it moves only with a commit. `streamed` counts deltas, written or not.

    `progressed_at` is the monotonic moment of the turn's last sign of life.
    """

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
        self._output: dict[str, int] = {}
        self._clock = Clock()
        self.progressed_at = self._clock.monotonic()

    def progress(self) -> None:
        """Something shows that the turn goes on."""
        self.progressed_at = self._clock.monotonic()

    def delta(self, kind: str, part: int, text: str) -> None:
        """Gather a streamed piece; pieces of one part that wait together become one event."""
        self.streamed += 1
        self.progress()
        if kind == "text.delta":
            self._spoken[part] = self._spoken.get(part, "") + text
        self._gather(kind, {"part": part}, text)

    def output(self, call_id: str, text: str) -> None:
        """Gather what a tool reports on its way, up to OUTPUT_MAX characters a call."""
        self.progress()
        room = OUTPUT_MAX - self._output.get(call_id, 0)
        if room > 0 and text:
            self._output[call_id] = self._output.get(call_id, 0) + len(text)
            self._gather("tool.output", {"call_id": call_id}, clean(text[:room]))

    def _gather(self, kind: str, of: Mapping[str, object], text: str) -> None:
        last = self._pending[-1] if self._pending else None
        if last is not None and last.kind == kind and {**last.payload, "text": ""} == {**of, "text": ""}:
            text = str(last.payload["text"]) + text
            self._size -= len(str(last.payload["text"]))
            self._pending.pop()
        else:
            self._size += 100
        self._pending.append(NewEvent(kind, {**of, "text": text}))
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
        blobs: Sequence[bytes] = (),
        ops: Sequence[NewOp] = (),
    ) -> None:
        """Commit a step, what was gathered first. Repeats while the database is away: the lease's end ends that. Raises LeaseLost, NotApproved.

        A cancellation lets a commit that has been sent come to its end, so that what is counted here is what is there.
        """
        async with self.lock:
            taken = self.take()
            record = Step(
                self.lease, self.run_seq, self.attempt, step, [*taken, *events], messages, proposed, moves, blobs, ops
            )
            try:
                await self._until_there(lambda: self._write(record))
            except NotApproved:
                self.give_back(taken)
                raise

    async def park(self, parking: Parking) -> None:
        """Give the lease back with what the turn waits for; `parking` without its place in the log. Raises LeaseLost, CancelAsked."""
        async with self.lock:
            taken = self.take()
            placed = replace(parking, run_seq=self.run_seq, attempt=self.attempt, events=[*taken, *parking.events])
            try:
                await self._until_there(lambda: park(self._db, placed))
            except CancelAsked:
                self.give_back(taken)
                raise

    async def take_up(self) -> list[Message]:
        """The messages that steer this turn, which are its own from now on. Raises LeaseLost."""
        taken: list[Message] = []

        async def write() -> None:
            taken.extend(await take_up(self._db, self.lease, self.run_seq, self.attempt))
            self.written(len(taken))

        try:
            if not await waiting_to_steer(self._db, self.lease):
                return []
        except DatabaseAway:  # nobody waits for it: it is taken up before the next request, or gets a turn of its own
            return []
        async with self.lock:
            await self._until_there(write)
        return taken

    async def _until_there(self, write: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await finished(write())
                self.progress()
                return
            except DatabaseAway:
                await self._clock.sleep(_RETRY_SECONDS)

    async def _write(self, record: Step) -> None:
        await commit_step(self._db, record)
        self._spoken.clear()
        self.written(len(record.events))
