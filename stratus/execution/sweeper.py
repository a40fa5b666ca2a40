"""Takes runs from holders that are gone: to be carried on by another replica, or ended with what the user is told, in one transaction."""

from __future__ import annotations

import structlog

from stratus.domain.chain import notice
from stratus.domain.history import result_of
from stratus.domain.run import MAX_ATTEMPTS, RunEvent
from stratus.domain.values import Message, RunError
from stratus.effects import Ids
from stratus.store.database import Connection, Database
from stratus.store.execution import ExecutionLease
from stratus.store.hints import Hints
from stratus.store.orphan import Orphan, take_orphans
from stratus.store.plan import NewOp, addressed
from stratus.store.run import Ending, end_runs
from stratus.store.stalled import end_stalled

BATCH = 50
INTERRUPTED = RunError(
    code="interrupted", message="I was interrupted before I could finish. Please send your message again."
)

log = structlog.get_logger(__name__)


class Sweeper:
    """`step()` takes one batch of orphans. A run with a try left goes back to the head of its session and continues from its last step."""

    def __init__(self, db: Database, hints: Hints, ids: Ids) -> None:
        self._db = db
        self._hints = hints
        self._ids = ids

    async def step(self) -> bool:
        """True when there may be more."""
        try:
            return await self._reap()
        finally:  # also when the reaping failed: it may wait for what a stalled session locks
            if stalled := await end_stalled(self._db):
                log.warning("sessions.ended", count=stalled)

    async def _reap(self) -> bool:
        async def work(connection: Connection) -> list[Orphan]:
            orphans = await take_orphans(connection, BATCH)
            await end_runs(connection, [self._ending(orphan) for orphan in orphans])
            return orphans

        ended = await self._db.transact(work, idempotent=True)
        for orphan in ended:
            self._hints.send("session", orphan.session_id)
            if orphan.reply_to is not None:
                self._hints.send("outbox", str(orphan.reply_to.channel_id))
            log.warning("run.orphaned", run=str(orphan.run), session=orphan.session_id, attempts=orphan.attempts)
        if ended:
            self._hints.send("runs")
            self._hints.send("waiting")
        return len(ended) >= BATCH

    def _ending(self, orphan: Orphan) -> Ending:
        event = _fate(orphan)
        given_up = event is RunEvent.INTERRUPT
        return Ending(
            lease=ExecutionLease(orphan.session_id, orphan.run_id, 0, self._ids.uuid(), agent_id=""),
            attempt=orphan.claim,
            run_seq=orphan.run_seq,
            event=event,
            finish_token=self._ids.uuid(),
            messages=[_broken_off(orphan)] if orphan.unanswered and event is not RunEvent.RECOVER else [],
            ops=_told(orphan) if given_up else [],
            error=INTERRUPTED if given_up else None,
        )


def _fate(orphan: Orphan) -> RunEvent:
    if orphan.cancel_requested:
        return RunEvent.CANCEL
    return RunEvent.RECOVER if orphan.attempts < MAX_ATTEMPTS else RunEvent.INTERRUPT


def _broken_off(orphan: Orphan) -> Message:
    return Message(
        role="tool", parts=[result_of(call, orphan.outcomes.get(call.call_id)) for call in orphan.unanswered]
    )


def _told(orphan: Orphan) -> list[NewOp]:
    if orphan.reply_to is None:
        return []
    told = notice(f"⚠ {INTERRUPTED.message}", orphan.reply_to, f"run:{orphan.run}")
    return addressed([told], orphan.reply_to, orphan.run_id)
