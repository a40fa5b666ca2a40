"""Stopping: the running turn is asked to end, what waits is canceled at once, and the session's next run becomes its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stratus.domain.event import NewEvent
from stratus.domain.run import RUN, RunEvent, RunState
from stratus.domain.values import RunError
from stratus.store import preview
from stratus.store.closing import close_open
from stratus.store.database import Connection, Database
from stratus.store.log import LOCK_SESSIONS, LogWrite, write_log

_LOCK_LEASES = "SELECT run_id FROM session_execution WHERE session_id = ANY($1) ORDER BY session_id FOR UPDATE"

# What has begun is the first that is open, so without the queue nothing behind that is read.
_OPEN = """
SELECT r.id, r.session_id, r.state, r.claims, h.by,
       (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::uuid[]) AS h(session_id, by, before, run)
 CROSS JOIN LATERAL (
       SELECT o.* FROM agent_run o WHERE o.session_id = h.session_id AND o.state IN ('queued', 'running', 'waiting')
        ORDER BY o.turn LIMIT CASE WHEN $5::boolean THEN NULL ELSE 1 END) r
 WHERE ($5 OR r.state <> 'queued') AND (h.before IS NULL OR r.turn < h.before) AND (h.run IS NULL OR r.public_id = h.run)
 ORDER BY r.session_id, r.turn
"""

# Why it is asked is kept with the run: whoever ends it says it.
_ASK = """
WITH asked AS (
    UPDATE agent_run r
       SET cancel_requested_at = coalesce(r.cancel_requested_at, clock_timestamp()), cancel_by = coalesce(r.cancel_by, a.by),
           error = CASE WHEN r.cancel_by IS NULL THEN $3::jsonb ELSE r.error END
      FROM unnest($1::bigint[], $2::text[]) AS a(id, by) WHERE r.id = a.id AND r.state = 'running' RETURNING r.id
)
UPDATE session_execution x SET cancel_requested = true FROM asked a WHERE x.run_id = a.id
"""

_CANCEL = """
WITH canceled AS (
    UPDATE agent_run r
       SET state = 'canceled', runnable_at = NULL, finished_at = clock_timestamp(), cancel_requested_at = clock_timestamp(),
           cancel_by = c.by, error = $4::jsonb
      FROM unnest($1::bigint[], $2::text[]) AS c(id, by) WHERE r.id = c.id AND r.state = ANY($5) RETURNING r.id
)
UPDATE agent_run r SET runnable_at = clock_timestamp()
  FROM unnest($3::text[]) AS s(session_id)
 CROSS JOIN LATERAL (
       SELECT q.id, q.state FROM agent_run q
        WHERE q.session_id = s.session_id AND q.state IN ('queued', 'running', 'waiting') AND q.id NOT IN (SELECT id FROM canceled)
        ORDER BY q.turn LIMIT 1) h
 WHERE r.id = h.id AND h.state = 'queued' AND r.runnable_at IS NULL
"""


@dataclass(frozen=True)
class Halt:
    """Whose turns are to end, and who says so: all of a session's, those before the turn number `before`, or only `run`."""

    session_id: str
    by: str
    before: int | None = None
    run: UUID | None = None


@dataclass(frozen=True)
class Stopped:
    """What a stop met: whether a running turn was asked to end, how many others were canceled, and how many of those had begun (waited)."""

    running: bool
    canceled: int
    waiting: int = 0


async def stop(db: Database, session_id: str, by: str, *, queued: bool, run: UUID | None = None) -> Stopped:
    """Ask the running turn to end, and cancel what is queued or waits (`queued` False spares the queue). One run only with `run`.

    What the canceled turns delegated is canceled after this, by `store/family.py`.
    """

    async def work(connection: Connection) -> Stopped:
        return await stop_in(connection, session_id, by, queued=queued, run=run)

    return await db.transact(work, idempotent=True, pool="ingress")


async def stop_in(
    connection: Connection,
    session_id: str,
    by: str,
    *,
    queued: bool,
    run: UUID | None = None,
    error: RunError | None = None,
) -> Stopped:
    """The stop itself, for a caller whose transaction holds no session's lock yet (the lease's row comes first).

    `error` says why, where it is not a person's wish: the runs end with it.
    """
    await lock_leases(connection, [session_id])
    await connection.fetch(LOCK_SESSIONS, [session_id])
    return await halt(connection, [Halt(session_id, by, run=run)], queued=queued, error=error)


async def lock_leases(connection: Connection, session_ids: Sequence[str]) -> None:
    """Lock the lease rows of those of the sessions that have one, in order; a session without one gets none while its own row is locked."""
    await connection.fetch(_LOCK_LEASES, sorted(set(session_ids)))


async def halt(
    connection: Connection, halts: Sequence[Halt], *, queued: bool, error: RunError | None = None
) -> Stopped:
    """End open runs, for a caller that holds the leases' and the sessions' rows. At most one halt for a session."""
    rows = await connection.fetch(
        _OPEN,
        [one.session_id for one in halts],
        [one.by for one in halts],
        [one.before for one in halts],
        [one.run for one in halts],
        queued,
    )
    why = None if error is None else error.model_dump_json()
    running = [row for row in rows if row["state"] == RunState.RUNNING]
    others = [row for row in rows if row["state"] != RunState.RUNNING]
    if running:
        await connection.execute(_ASK, [row["id"] for row in running], [row["by"] for row in running], why)
    if others:
        await _cancel(connection, others, why, error)
    return Stopped(bool(running), len(others), sum(row["state"] == RunState.WAITING for row in others))


async def _cancel(
    connection: Connection, rows: Sequence[Mapping[str, Any]], why: str | None, error: RunError | None
) -> None:
    ids = [row["id"] for row in rows]
    sources = [state for state in RUN.sources(RunEvent.CANCEL) if state != RunState.RUNNING]
    sessions = sorted({row["session_id"] for row in rows})
    await connection.execute(_CANCEL, ids, [row["by"] for row in rows], sessions, why, sources)
    await close_open(connection, ids)
    told = {} if error is None else {"error": {"code": error.code, "message": error.message}}
    writes = [
        LogWrite(
            row["session_id"],
            row["id"],
            row["run_seq"],
            row["claims"],
            [NewEvent("run.canceled", {"by": row["by"], **told})],
        )
        for row in rows
    ]
    await write_log(connection, writes)
    await preview.settle(connection, ids)
