"""Waiting runs: taken up again once nothing that they wait for is open."""

from __future__ import annotations

from collections.abc import Sequence

from stratus.domain.run import RUN, RunEvent
from stratus.store.database import Connection, Database
from stratus.store.log import LOCK_SESSIONS

# A waiting run keeps its turn, so it is the head of its session.
_RESUME = """
UPDATE agent_run r SET state = 'queued', runnable_at = clock_timestamp()
 WHERE r.id = ANY($1) AND r.state = ANY($2)
   AND NOT EXISTS (SELECT 1 FROM approval a WHERE a.run_id = r.id AND a.state = 'pending')
   AND NOT EXISTS (SELECT 1 FROM agent_run c WHERE c.parent_run_id = r.id AND c.state IN ('queued', 'running', 'waiting'))
RETURNING r.id, r.session_id
"""

_READY = """
SELECT r.id, r.session_id FROM agent_run r
 WHERE r.state = 'waiting'
   AND NOT EXISTS (SELECT 1 FROM approval a WHERE a.run_id = r.id AND a.state = 'pending')
   AND NOT EXISTS (SELECT 1 FROM agent_run c WHERE c.parent_run_id = r.id AND c.state IN ('queued', 'running', 'waiting'))
 ORDER BY r.session_id LIMIT $1
"""


async def resume(connection: Connection, run_ids: Sequence[int]) -> list[str]:
    """Queue those of the waiting runs for which nothing is open any more; returns their sessions.

    The caller holds the row locks of their sessions. A child that ends at the same moment is not seen: `resume_ready` finds its parent.
    """
    if not run_ids:
        return []
    rows = await connection.fetch(_RESUME, list(run_ids), list(RUN.sources(RunEvent.RESUME)))
    return [row["session_id"] for row in rows]


async def resume_ready(db: Database, limit: int) -> list[str]:
    """Queue up to `limit` waiting runs whose children have ended and whose questions are answered; returns their sessions."""

    async def work(connection: Connection) -> list[str]:
        rows = await connection.fetch(_READY, limit)
        if not rows:
            return []
        await connection.fetch(LOCK_SESSIONS, [row["session_id"] for row in rows])
        return await resume(connection, [row["id"] for row in rows])

    return await db.transact(work, idempotent=True)
