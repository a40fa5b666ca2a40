"""Plays the worker: a claimed run whose events a test writes one after the other, so that it decides when observers see what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.values import Message, RunError, TextPart
from stratus.store.database import Database
from stratus.store.execution import Append, append
from stratus.store.hints import Hints
from stratus.store.run import ClaimedRun, Ending, claim, finish
from stratus.store.steer import take_up
from testbed.eventually import eventually

STEERS = "UPDATE agent_run SET busy = 'steer' WHERE session_id = $1 AND state = 'queued'"


class Player:
    """A claimed run. `attempt` is that of the events to come; without `hints` their readers find them by polling."""

    def __init__(self, db: Database, claimed: ClaimedRun, hints: Hints | None) -> None:
        self.attempt = 1
        self.said = ""
        self.run = str(claimed.run)
        self.session = claimed.lease.session_id
        self._db = db
        self._hints = hints
        self._claimed = claimed
        self._run_seq = claimed.run_seq

    @classmethod
    async def next(cls, db: Database, hints: Hints | None = None) -> Player:
        """Wait for a queued run, and take it."""
        taken: list[ClaimedRun] = []

        async def one() -> bool:
            taken.extend(await claim(db, "worker", 1, 60))
            return bool(taken)

        await eventually(one, 20, "a message queued by the client")
        return cls(db, taken[0], hints)

    async def tell(self, *events: NewEvent) -> None:
        """Write events of the present attempt."""
        appended = Append(self._claimed.lease, self._run_seq, self.attempt, events)
        assert await append(self._db, [appended]) == [True]
        self._run_seq += len(events)
        self._hint()

    async def event(self, kind: str, **payload: Any) -> None:
        """Write one event."""
        await self.tell(NewEvent(kind, payload))

    async def say(self, words: Sequence[str]) -> None:
        """Stream words of the answer."""
        await self.tell(*(NewEvent("text.delta", {"part": 0, "text": word}) for word in words))
        self.said += "".join(words)

    async def resume(self, reason: str) -> None:
        """Begin the next attempt, with nothing said."""
        self.attempt += 1
        self.said = ""
        await self.event("run.resumed", worker="another", reason=reason)

    async def merged(self) -> None:
        """Take the message that waits behind the run up, as soon as there is one."""

        async def taken() -> bool:
            await self._db.transact(lambda c: c.execute(STEERS, self.session))
            messages = await take_up(self._db, self._claimed.lease, self._run_seq, self.attempt)
            self._run_seq += len(messages)
            return bool(messages)

        await eventually(taken, 20, "a message to take up")
        self._hint()

    async def end(self, event: RunEvent = RunEvent.COMPLETE, error: RunError | None = None) -> None:
        """Finish the run with what was said."""
        texts = [NewEvent("text.completed", {"part": 0, "text": self.said}), NewEvent("message.assistant", {})]
        ending = Ending(
            lease=self._claimed.lease,
            attempt=self.attempt,
            run_seq=self._run_seq,
            event=event,
            finish_token=uuid4(),
            events=texts if self.said else [],
            messages=[Message(role="assistant", parts=[TextPart(text=self.said)])],
            error=error,
        )
        assert await finish(self._db, [ending]) == [True]
        self._hint()

    def _hint(self) -> None:
        if self._hints is not None:
            self._hints.send("session", self.session)
