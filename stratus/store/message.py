"""Reads a session's messages: whole histories for turns, and pages of the transcript for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from stratus.domain.event import Cursor
from stratus.domain.values import PARTS, Message, Part, RunError
from stratus.store.database import Connection, Database
from stratus.store.execution import ExecutionLease

_HISTORY = """
SELECT session_id, run_id, role, parts FROM message WHERE session_id = ANY($1) ORDER BY session_id, position
"""

# One statement, so that the cursor continues exactly these messages. An open run is told from its first event.
_PAGE = """
SELECT s.owner_id, s.message_seq, o.public_id AS open_run, o.state AS open_state,
       coalesce(o.public_id, last.public_id) AS cursor_run,
       CASE WHEN o.public_id IS NULL THEN s.event_seq ELSE coalesce(o.seq, 1) - 1 END AS cursor_seq,
       m.position, m.role, m.parts, m.created_at, m.run, m.state, m.error
  FROM session s
  LEFT JOIN LATERAL (
       SELECT r.public_id, r.state,
              (SELECT e.seq FROM session_event e WHERE e.run_id = r.id AND e.run_seq = 1) AS seq
         FROM agent_run r WHERE r.session_id = s.id AND r.state IN ('queued', 'running', 'waiting')
        ORDER BY array_position(ARRAY['running', 'waiting', 'queued'], r.state), r.turn LIMIT 1) o ON true
  LEFT JOIN LATERAL (
       SELECT r.public_id FROM agent_run r WHERE r.session_id = s.id ORDER BY r.turn DESC LIMIT 1) last ON true
  LEFT JOIN LATERAL (
       SELECT h.position, h.role, h.parts, h.created_at, r.public_id AS run, r.state, r.error
         FROM message h JOIN agent_run r ON r.id = h.run_id
        WHERE h.session_id = s.id AND ($2::bigint IS NULL OR h.position < $2)
        ORDER BY h.position DESC LIMIT $3) m ON true
 WHERE s.id = $1
 ORDER BY m.position
"""


@dataclass(frozen=True)
class StoredMessage:
    """A message in its place, with how its run stands or ended."""

    position: int
    run: UUID
    state: str
    error: RunError | None
    role: str
    parts: Sequence[Part]
    created_at: datetime


@dataclass(frozen=True)
class TranscriptPage:
    """Messages in order, and where they continue.

    `cursor` names the event after which nothing is missed: of an open run its start, so that its own messages come again as events; None
    while the session has no run. `before` asks for the page before this one, None at the beginning.
    """

    owner_id: int | None
    messages: Sequence[StoredMessage]
    before: int | None
    cursor: Cursor | None
    open_run: UUID | None
    open_state: str | None


async def history(connection: Connection, session_ids: Sequence[str]) -> dict[str, list[tuple[int, Message]]]:
    """All messages of the sessions, in order, each with the run that wrote it; a session without any has an empty list."""
    found: dict[str, list[tuple[int, Message]]] = {session_id: [] for session_id in session_ids}
    for row in await connection.fetch(_HISTORY, list(session_ids)):
        found[row["session_id"]].append((row["run_id"], _message(row)))
    return found


async def histories(db: Database, leases: Sequence[ExecutionLease]) -> dict[str, list[tuple[int, Message]]]:
    """The histories of claimed sessions, each read as its own agent."""
    sessions: dict[str, list[str]] = {}
    for lease in leases:
        sessions.setdefault(lease.agent_id, []).append(lease.session_id)
    found: dict[str, list[tuple[int, Message]]] = {}
    for agent, ids in sessions.items():
        found |= await db.read(partial(history, session_ids=ids), agent=agent)
    return found


def _message(row: Mapping[str, Any]) -> Message:
    return Message(role=row["role"], parts=PARTS.validate_json(row["parts"]))


async def page(db: Database, session_id: str, before: int | None, limit: int) -> TranscriptPage | None:
    """The newest `limit` messages, or those before position `before`. None when there is no such session."""
    rows = await db.read(lambda c: c.fetch(_PAGE, session_id, before, limit))
    if not rows:
        return None
    messages = [_stored(row) for row in rows if row["position"] is not None]
    head = rows[0]
    return TranscriptPage(
        owner_id=head["owner_id"],
        messages=messages,
        before=messages[0].position if messages and messages[0].position > 1 else None,
        cursor=None if head["cursor_run"] is None else Cursor(head["cursor_run"], head["cursor_seq"]),
        open_run=head["open_run"],
        open_state=head["open_state"],
    )


def _stored(row: Mapping[str, Any]) -> StoredMessage:
    return StoredMessage(
        position=row["position"],
        run=row["run"],
        state=row["state"],
        error=None if row["error"] is None else RunError.model_validate_json(row["error"]),
        role=row["role"],
        parts=PARTS.validate_json(row["parts"]),
        created_at=row["created_at"],
    )
