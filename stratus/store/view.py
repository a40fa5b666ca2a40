"""What people and metrics look at: a run with its answer and delivery, and the backlog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.values import PARTS, FilePart, Message
from stratus.store.database import Connection, Database

_VIEW = """
SELECT r.public_id AS run, r.session_id, s.owner_id, r.agent_id, r.turn, r.kind, r.state, r.attempts, r.worker_id AS worker,
       r.error, r.usage, r.enqueued_at, r.started_at, r.finished_at, r.cancel_requested_at,
       (SELECT jsonb_agg(m.parts ORDER BY m.position) FROM message m
         WHERE m.session_id = r.session_id AND m.run_id = r.id AND m.role = 'assistant') AS said,
       (SELECT jsonb_agg(jsonb_build_object('id', o.id, 'kind', o.kind, 'state', o.state, 'attempts', o.attempts,
                                            'message_id', o.sent_message_id, 'error', o.error ->> 'code') ORDER BY o.id)
          FROM channel_outbox o WHERE o.run_id = r.id) AS delivery
  FROM agent_run r JOIN session s ON s.id = r.session_id
"""
_RUN = _VIEW + " WHERE r.public_id = $1"
_RUN_BY_KEY = _VIEW + " WHERE r.session_id = $1 AND r.request_key = $2"

_AHEAD = """
SELECT r.public_id, r.state FROM agent_run r
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
"""


@dataclass(frozen=True)
class RunView:
    """A run as the outside sees it. `delivery` has one entry for each call to its platform; `files` name what it produced."""

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
    files: Sequence[Mapping[str, str]]
    delivery: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ahead:
    """The run that stands before another one in its session."""

    run: UUID
    state: str


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
    files = [part for parts in said for part in parts if isinstance(part, FilePart)]
    values["delivery"] = orjson.loads(values["delivery"] or "[]")
    for name in ("error", "usage"):
        values[name] = None if values[name] is None else orjson.loads(values[name])
    return RunView(
        **values,
        reply="\n\n".join(text for text in texts if text),
        files=[{"name": file.name, "mime": file.mime} for file in files],
    )


async def ahead_of(connection: Connection, session_id: str, turn: int) -> Ahead | None:
    """The first open run before `turn`, in the transaction that queued that."""
    row = await connection.fetchrow(_AHEAD, session_id, turn)
    return None if row is None else Ahead(row["public_id"], row["state"])


async def owner_of(connection: Connection, session_id: str) -> tuple[int | None] | None:
    """A session's owner, which may be nobody, as a one-tuple; None when there is no such session."""
    row = await connection.fetchrow(_OWNER, session_id)
    return None if row is None else (row["owner_id"],)


async def backlog(db: Database) -> list[Waiting]:
    """What waits in the inbox, among the runs and in the outbox, by state; a state with nothing in it is left out."""
    rows = await db.read(lambda c: c.fetch(_BACKLOG))
    return [Waiting(row["queue"], row["state"], row["total"], row["oldest"]) for row in rows]
