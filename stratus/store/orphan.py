"""Runs whose holder is gone: an expired lease, or a running run with none at all."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stratus.domain.values import ReplyTo
from stratus.store.database import Connection
from stratus.store.log import LOCK_SESSIONS

_EXPIRED = """
SELECT x.session_id FROM session_execution x WHERE x.lease_until <= clock_timestamp()
 ORDER BY x.session_id LIMIT $1 FOR UPDATE SKIP LOCKED
"""

_LEASELESS = """
SELECT r.session_id FROM agent_run r LEFT JOIN session_execution x ON x.run_id = r.id
 WHERE r.state = 'running' AND x.run_id IS NULL ORDER BY r.session_id LIMIT $1
"""

_ORPHANS = """
SELECT r.id, r.session_id, r.attempts, r.reply_to, r.public_id,
       (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq
  FROM agent_run r LEFT JOIN session_execution x ON x.run_id = r.id
 WHERE r.session_id = ANY($1) AND r.state = 'running' AND (x.run_id IS NULL OR x.lease_until <= clock_timestamp())
"""


@dataclass(frozen=True)
class Orphan:
    """A running run whose lease has expired or is missing."""

    run_id: int
    run: UUID
    session_id: str
    attempt: int
    run_seq: int
    reply_to: ReplyTo | None


async def take_orphans(connection: Connection, limit: int) -> list[Orphan]:
    """Lock leases that have expired, and find running runs that have none, for the caller to end in this transaction."""
    expired = {row["session_id"] for row in await connection.fetch(_EXPIRED, limit)}
    leaseless = {row["session_id"] for row in await connection.fetch(_LEASELESS, limit)}
    sessions = sorted(expired | leaseless)
    if not sessions:
        return []
    await connection.fetch(LOCK_SESSIONS, sessions)
    return [
        Orphan(
            run_id=row["id"],
            run=row["public_id"],
            session_id=row["session_id"],
            attempt=row["attempts"],
            run_seq=row["run_seq"],
            reply_to=None if row["reply_to"] is None else ReplyTo.model_validate_json(row["reply_to"]),
        )
        for row in await connection.fetch(_ORPHANS, sessions)
    ]
