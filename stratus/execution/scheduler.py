"""Lets schedules run: on any replica, each occurrence once, as a run or a stated skip, in one transaction with the schedule's next time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from stratus.domain.errors import BadInput
from stratus.domain.schedule import Due, Occurrence, SkipReason, due
from stratus.effects import Failpoints
from stratus.store import occurrence
from stratus.store.database import Connection, Database
from stratus.store.hints import Hints
from stratus.store.occurrence import Decided, DueSchedule
from stratus.store.session import NewRun, enqueue

BATCH = 20
# Not shorter: what is due and not taken is being worked on by another replica.
_PAUSE_MIN_SECONDS = 0.5

log = structlog.get_logger(__name__)


@dataclass
class _Step:
    """What one step decides; `wanted` are the occurrences to run, in the order of their schedules and times."""

    skipped: list[Decided] = field(default_factory=list)
    wanted: list[tuple[DueSchedule, datetime]] = field(default_factory=list)
    next_at: dict[int, datetime | None] = field(default_factory=dict)
    more: bool = False


class Scheduler:
    """`step()` takes one batch of due schedules. `wake_within(seconds)` is told how soon the next one is due."""

    def __init__(
        self, db: Database, hints: Hints, failpoints: Failpoints, wake_within: Callable[[float], None] = lambda _: None
    ) -> None:
        self._db = db
        self._hints = hints
        self._failpoints = failpoints
        self.wake_within = wake_within

    async def step(self) -> bool:
        """True when there may be more."""

        async def work(connection: Connection) -> tuple[bool, list[str]]:
            taken = await occurrence.take_due(connection, BATCH)
            if not taken:
                return False, []
            step = await _decided(connection, taken)
            runs = await enqueue(connection, [_run(one, at) for one, at in step.wanted]) if step.wanted else []
            ran = [Decided(one.id, at, run.run_id) for (one, at), run in zip(step.wanted, runs, strict=True)]
            await occurrence.record(connection, [*step.skipped, *ran], step.next_at)
            await self._failpoints.hit("schedule.before_commit")
            return step.more or len(taken) == BATCH, sorted({run.session_id for run in runs})

        # Its own locks, the occurrences' key and the runs' request keys make a repeat find what a doubtful one has done.
        more, sessions = await self._db.transact(work, idempotent=True)
        for session_id in sessions:
            self._hints.send("session", session_id)
        if sessions:
            self._hints.send("runs")
        if not more and (left := await occurrence.seconds_left(self._db)) is not None:
            self.wake_within(max(left, _PAUSE_MIN_SECONDS))
        return more


async def _decided(connection: Connection, taken: Sequence[DueSchedule]) -> _Step:
    plans = [(one, _planned(one)) for one in taken]
    recorded = await occurrence.known(connection, [(one.id, each.due_at) for one, plan in plans for each in plan[0]])
    step = _Step()
    for one, (each_due, next_at) in plans:
        step.next_at[one.id] = next_at
        step.more = step.more or (next_at is not None and next_at <= one.now)
        for each in each_due:
            reason = each.skip or one.obstacle
            if (one.id, each.due_at) in recorded:
                continue
            if reason is None:
                step.wanted.append((one, each.due_at))
            else:
                step.skipped.append(Decided(one.id, each.due_at, reason=reason))
    return step


def _planned(one: DueSchedule) -> tuple[Sequence[Occurrence], datetime | None]:
    """The schedule's occurrences and its next time; one that this release cannot read states that, and is disabled."""
    try:
        plan: Due = due(one.cron, one.time_zone, one.catch_up, one.next_at, one.now)
    except BadInput as error:
        log.warning("schedule.unreadable", schedule=str(one.public_id), error=str(error))
        return [Occurrence(one.next_at, SkipReason.UNREADABLE)], None
    return plan.occurrences, plan.next_at


def _run(one: DueSchedule, due_at: datetime) -> NewRun:
    key = f"schedule:{one.public_id}:{due_at.isoformat()}"
    return NewRun(
        session_id=one.session_id,
        agent_id=one.agent_id,
        owner_id=one.owner_id,
        principal_id=one.owner_id,
        actor=one.actor,
        input=one.input,
        title=one.name,
        kind="scheduled",
        request_key=key,
        request_hash=hashlib.sha256(key.encode()).digest(),
        reply_to=one.reply_to,
    )
