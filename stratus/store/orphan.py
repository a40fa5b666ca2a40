"""Runs whose holder is gone: an expired lease, or a running run with none at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.values import PARTS, Message, ReplyTo, ToolCallPart
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
SELECT r.id, r.session_id, r.attempts, r.claims, r.reply_to, r.public_id, r.cancel_requested_at IS NOT NULL AS cancel_requested,
       (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq,
       (SELECT m.parts FROM message m WHERE m.run_id = r.id AND m.session_id = r.session_id AND m.role = 'assistant'
           AND NOT EXISTS (SELECT 1 FROM message n WHERE n.session_id = m.session_id AND n.position > m.position)) AS unanswered,
       (SELECT jsonb_object_agg(c.call_id, c.outcome) FROM tool_call c WHERE c.run_id = r.id AND c.outcome IS NOT NULL) AS outcomes
  FROM agent_run r LEFT JOIN session_execution x ON x.run_id = r.id
 WHERE r.session_id = ANY($1) AND r.state = 'running' AND (x.run_id IS NULL OR x.lease_until <= clock_timestamp())
"""


@dataclass(frozen=True)
class Orphan:
    """A running run whose lease has expired or is missing.

    `attempts` counts the tries it has used up, `claim` all its claims;
    `unanswered` are the calls of its last message, `outcomes` those of its calls that ended.
    """

    run_id: int
    run: UUID
    session_id: str
    attempts: int
    claim: int
    run_seq: int
    reply_to: ReplyTo | None
    cancel_requested: bool
    unanswered: Sequence[ToolCallPart]
    outcomes: Mapping[str, Mapping[str, Any]]


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
            attempts=row["attempts"],
            claim=row["claims"],
            run_seq=row["run_seq"],
            reply_to=None if row["reply_to"] is None else ReplyTo.model_validate_json(row["reply_to"]),
            cancel_requested=row["cancel_requested"],
            unanswered=Message(role="assistant", parts=PARTS.validate_json(row["unanswered"] or "[]")).calls(),
            outcomes=orjson.loads(row["outcomes"] or "{}"),
        )
        for row in await connection.fetch(_ORPHANS, sessions)
    ]
