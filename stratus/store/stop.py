"""Stopping: the running turn is asked to end, what waits is canceled at once, and the session's next run becomes its head."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stratus.domain.event import NewEvent
from stratus.domain.run import RUN, RunEvent, RunState
from stratus.store.closing import close_open
from stratus.store.database import Connection, Database
from stratus.store.log import LOCK_SESSIONS, LogWrite, write_log

_LOCK_LEASE = "SELECT run_id FROM session_execution WHERE session_id = $1 FOR UPDATE"

_OPEN = """
SELECT r.id, r.state, r.claims, (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq
  FROM agent_run r WHERE r.session_id = $1 AND r.state IN ('queued', 'running', 'waiting')
   AND ($2::uuid IS NULL OR r.public_id = $2) ORDER BY r.turn
"""

_ASK = """
WITH asked AS (
    UPDATE agent_run SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()), cancel_by = coalesce(cancel_by, $2)
     WHERE id = $1 AND state = 'running' RETURNING id
)
UPDATE session_execution x SET cancel_requested = true FROM asked a WHERE x.run_id = a.id
"""

_CANCEL = """
WITH canceled AS (
    UPDATE agent_run r
       SET state = 'canceled', runnable_at = NULL, finished_at = clock_timestamp(), cancel_requested_at = clock_timestamp(), cancel_by = $2
     WHERE r.id = ANY($1) AND r.state = ANY($4) RETURNING r.id
)
UPDATE agent_run r SET runnable_at = clock_timestamp()
  FROM (SELECT q.id, q.state FROM agent_run q
         WHERE q.session_id = $3 AND q.state IN ('queued', 'running', 'waiting') AND q.id NOT IN (SELECT id FROM canceled)
         ORDER BY q.turn LIMIT 1) h
 WHERE r.id = h.id AND h.state = 'queued' AND r.runnable_at IS NULL
"""


@dataclass(frozen=True)
class Stopped:
    """What a stop met: whether a running turn was asked to end, and how many queued or waiting runs were canceled."""

    running: bool
    canceled: int


async def stop(db: Database, session_id: str, by: str, *, queued: bool, run: UUID | None = None) -> Stopped:
    """Ask the running turn to end, and cancel what is queued or waits (`queued` False spares the queue). One run only with `run`."""

    async def work(connection: Connection) -> Stopped:
        return await stop_in(connection, session_id, by, queued=queued, run=run)

    return await db.transact(work, idempotent=True, pool="ingress")


async def stop_in(
    connection: Connection, session_id: str, by: str, *, queued: bool, run: UUID | None = None
) -> Stopped:
    """The stop itself, for a caller whose transaction holds no session's lock yet (the lease's row comes first)."""
    await connection.execute(_LOCK_LEASE, session_id)
    await connection.fetch(LOCK_SESSIONS, [session_id])
    rows = await connection.fetch(_OPEN, session_id, run)
    running = [row for row in rows if row["state"] == "running"]
    others = [row for row in rows if row["state"] == "waiting" or (row["state"] == "queued" and queued)]
    for row in running:  # at most one: a unique index says so
        await connection.execute(_ASK, row["id"], by)
    if others:
        sources = [state for state in RUN.sources(RunEvent.CANCEL) if state != RunState.RUNNING]
        await connection.execute(_CANCEL, [row["id"] for row in others], by, session_id, sources)
        await close_open(connection, [row["id"] for row in others])
        event = NewEvent("run.canceled", {"by": by})
        await write_log(
            connection, [LogWrite(session_id, row["id"], row["run_seq"], row["claims"], [event]) for row in others]
        )
    return Stopped(bool(running), len(others))
