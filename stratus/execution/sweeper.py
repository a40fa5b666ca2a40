"""Ends runs whose holder is gone: on any replica, in one transaction with what the user is told."""

from __future__ import annotations

import structlog

from stratus.domain.chain import notice
from stratus.domain.run import RunEvent
from stratus.domain.values import RunError
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
    """`step()` takes one batch of orphans. A run that lost its lease ends `interrupted`: its turn may have acted, so it is not run again blindly."""

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
        if ended:
            self._hints.send("runs")
        return len(ended) >= BATCH

    def _ending(self, orphan: Orphan) -> Ending:
        nobody = ExecutionLease(orphan.session_id, orphan.run_id, 0, self._ids.uuid())
        return Ending(
            lease=nobody,
            attempt=orphan.attempt,
            run_seq=orphan.run_seq,
            event=RunEvent.INTERRUPT,
            finish_token=self._ids.uuid(),
            ops=_told(orphan),
            error=INTERRUPTED,
        )


def _told(orphan: Orphan) -> list[NewOp]:
    if orphan.reply_to is None:
        return []
    told = notice(f"⚠ {INTERRUPTED.message}", orphan.reply_to, f"run:{orphan.run}")
    return addressed([told], orphan.reply_to, orphan.run_id)
