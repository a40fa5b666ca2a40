"""What people and metrics look at: a run with its answer and delivery, and the backlog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.values import PARTS, Message
from stratus.store.database import Connection, Database

# What came of a run that a turn took up is what came of that turn.
_VIEW = """
SELECT r.public_id AS run, r.session_id, s.owner_id, r.agent_id, r.turn, r.kind, r.state, r.attempts, r.worker_id AS worker,
       t.error, t.usage, r.enqueued_at, r.started_at, r.finished_at, r.cancel_requested_at,
       CASE WHEN r.merged_into IS NOT NULL THEN t.public_id END AS merged_into,
       CASE WHEN t.finished_at IS NULL THEN 'live' ELSE 'finished' END AS standing,
       (SELECT jsonb_agg(m.parts ORDER BY m.position) FROM message m
         WHERE m.session_id = t.session_id AND m.run_id = t.id AND m.role = 'assistant') AS said,
       (SELECT jsonb_agg(f.file || jsonb_build_object('call_id', c.call_id) ORDER BY c.step, c.ordinal, f.n)
          FROM tool_call c
         CROSS JOIN LATERAL jsonb_array_elements(c.outcome -> 'files') WITH ORDINALITY AS f(file, n)
         WHERE c.run_id = t.id AND c.outcome ? 'files') AS files,
       (SELECT jsonb_agg(jsonb_build_object('id', o.id, 'kind', o.kind, 'state', o.state, 'attempts', o.attempts,
                                            'message_id', o.sent_message_id, 'error', o.error ->> 'code') ORDER BY o.id)
          FROM channel_outbox o WHERE o.run_id = t.id AND o.kind <> 'draft_update') AS delivery
  FROM agent_run r JOIN session s ON s.id = r.session_id JOIN agent_run t ON t.id = coalesce(r.merged_into, r.id)
"""
_RUN = _VIEW + " WHERE r.public_id = $1"
_RUN_BY_KEY = _VIEW + " WHERE r.session_id = $1 AND r.request_key = $2"

_AHEAD = """
SELECT r.turn FROM agent_run r
 WHERE r.session_id = $1 AND r.turn < $2 AND r.state IN ('queued', 'running', 'waiting') ORDER BY r.turn LIMIT 1
"""

_OWNER = "SELECT owner_id FROM session WHERE id = $1"

# Only what waits for somebody: it is found through partial indexes, however much has ended.
_BACKLOG = """
SELECT 'inbox' AS queue, state, count(*) AS total, extract(epoch FROM stratus_now() - min(received_at))::float8 AS oldest
  FROM channel_inbox WHERE state = 'ready' GROUP BY state
UNION ALL
SELECT 'inbox', state, count(*), extract(epoch FROM stratus_now() - min(received_at))::float8
  FROM channel_inbox WHERE state = 'received' GROUP BY state
UNION ALL
SELECT 'runs', state, count(*), extract(epoch FROM stratus_now() - min(enqueued_at))::float8
  FROM agent_run WHERE state IN ('queued', 'running', 'waiting') GROUP BY state
UNION ALL
SELECT 'outbox', state, count(*), extract(epoch FROM stratus_now() - min(created_at))::float8
  FROM channel_outbox WHERE state IN ('pending', 'sending') GROUP BY state
UNION ALL
SELECT 'outbox', state, count(*), extract(epoch FROM stratus_now() - min(created_at))::float8
  FROM channel_outbox WHERE state IN ('unknown') GROUP BY state
UNION ALL
SELECT 'approvals', state, count(*), extract(epoch FROM stratus_now() - min(requested_at))::float8
  FROM approval WHERE state = 'pending' GROUP BY state
"""


@dataclass(frozen=True)
class RunView:
    """A run as the outside sees it. `delivery` has one entry for each call to its platform; `files` name what its tools produced.

    What became of a run that was `merged_into` another is what became of that one; `standing` is `live` until then, `finished` after.
    """

    run: UUID
    session_id: str
    owner_id: int | None
    agent_id: str
    turn: int
    kind: str
    state: str
    attempts: int
    worker: str | None
    error: Mapping[str, Any] | None
    usage: Mapping[str, Any] | None
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested_at: datetime | None
    reply: str
    files: Sequence[Mapping[str, Any]]
    delivery: Sequence[Mapping[str, Any]]
    standing: str
    merged_into: UUID | None


@dataclass(frozen=True)
class Waiting:
    """How much of a queue is in a state, and for how many seconds its oldest entry has been there."""

    queue: str
    state: str
    total: int
    oldest: float


async def run_view(db: Database, run: UUID) -> RunView | None:
    """The run with this public id, or None."""
    return _seen(await db.read(lambda c: c.fetchrow(_RUN, run), pool="ingress"))


async def run_by_key(db: Database, session_id: str, request_key: str) -> RunView | None:
    """The run that a request key made in a session, or None."""
    return _seen(await db.read(lambda c: c.fetchrow(_RUN_BY_KEY, session_id, request_key), pool="ingress"))


def _seen(row: Mapping[str, Any] | None) -> RunView | None:
    if row is None:
        return None
    values = dict(row)
    said = [PARTS.validate_python(parts) for parts in orjson.loads(values.pop("said") or "[]")]
    texts = [Message(role="assistant", parts=parts).text() for parts in said]
    for name in ("delivery", "files"):
        values[name] = orjson.loads(values[name] or "[]")
    for name in ("error", "usage"):
        values[name] = None if values[name] is None else orjson.loads(values[name])
    return RunView(**values, reply="\n\n".join(text for text in texts if text))


async def queued_behind(connection: Connection, session_id: str, turn: int) -> bool:
    """Whether an earlier run than `turn` is open, in the transaction that queued that."""
    return await connection.fetchval(_AHEAD, session_id, turn) is not None


async def owner_of(connection: Connection, session_id: str) -> tuple[int | None] | None:
    """A session's owner, which may be nobody, as a one-tuple; None when there is no such session."""
    row = await connection.fetchrow(_OWNER, session_id)
    return None if row is None else (row["owner_id"],)


async def backlog(db: Database) -> list[Waiting]:
    """What waits in the inbox, among the runs, in the outbox and for people, by state; a state with nothing in it is left out."""
    rows = await db.read(lambda c: c.fetch(_BACKLOG))
    return [Waiting(row["queue"], row["state"], row["total"], row["oldest"]) for row in rows]
