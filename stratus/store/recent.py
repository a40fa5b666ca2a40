"""The newest runs, for operators who look for one; a single run with its answer is in `view`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from stratus.store.database import Database

_RUNS = """
SELECT public_id AS run, session_id, agent_id, turn, kind, state, attempts, worker_id AS worker, error ->> 'code' AS error,
       enqueued_at, started_at, finished_at
  FROM agent_run
 WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR session_id = $2) ORDER BY id DESC LIMIT $3
"""


@dataclass(frozen=True)
class RecentRun:
    """One line of a list; `error` is the code of a failed one."""

    run: UUID
    session_id: str
    agent_id: str
    turn: int
    kind: str
    state: str
    attempts: int
    worker: str | None
    error: str | None
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


async def runs(db: Database, state: str | None, session_id: str | None, limit: int) -> list[RecentRun]:
    """The newest runs first; of one state or session if given."""
    return [RecentRun(**row) for row in await db.read(lambda c: c.fetch(_RUNS, state, session_id, limit))]
