"""Delegated runs that have outlived their purpose: their parent has ended, or their time is up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratus.domain.values import RunError
from stratus.store.database import Connection, Database
from stratus.store.stop import stop_in

DEADLINE = RunError(code="deadline", message="It did not end in time.")

# One that is running and has been asked to end is its holder's, or the reaper's. A parent that has ended stays so, and a deadline stays past.
_ORPHANS = """
SELECT c.public_id, c.session_id, 'run:' || p.public_id AS by
  FROM agent_run c JOIN agent_run p ON p.id = c.parent_run_id
 WHERE c.parent_run_id IS NOT NULL AND c.state IN ('queued', 'running', 'waiting') AND p.finished_at IS NOT NULL
   AND (c.state <> 'running' OR c.cancel_requested_at IS NULL)
 UNION ALL
SELECT c.public_id, c.session_id, 'deadline'
  FROM agent_run c
 WHERE c.deadline_at <= stratus_now() AND c.state IN ('queued', 'running', 'waiting')
   AND (c.state <> 'running' OR c.cancel_requested_at IS NULL)
 LIMIT $1
"""


@dataclass(frozen=True)
class Ended:
    """A session whose delegated run was canceled; `running`: it was asked to end, and its holder ends it."""

    session_id: str
    running: bool


async def cancel_orphans(db: Database, limit: int) -> list[Ended]:
    """Cancel up to `limit` open runs whose parent has ended or whose deadline is past, each in a transaction of its own.

    Their own children are found by the next call, so repeat until there are none. A repeat after a crash finds what is left.
    """
    return [await _cancel(db, row) for row in await db.read(lambda c: c.fetch(_ORPHANS, limit))]


async def _cancel(db: Database, row: Mapping[str, Any]) -> Ended:
    async def work(connection: Connection) -> Ended:
        error = DEADLINE if row["by"] == DEADLINE.code else None
        stopped = await stop_in(
            connection, row["session_id"], row["by"], queued=True, run=row["public_id"], error=error
        )
        return Ended(row["session_id"], stopped.running)

    return await db.transact(work, idempotent=True)
