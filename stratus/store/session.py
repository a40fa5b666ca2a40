"""Sessions: made on first use, found by their owner, and the queue that each keeps (enqueue)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from stratus.domain.agent import BusyPolicy
from stratus.domain.errors import AgentMismatch, KeyReused
from stratus.domain.media import lifted_parts
from stratus.domain.values import Actor, ReplyTo, RunInput
from stratus.store import blob
from stratus.store.database import Connection, Database

_MAKE = """
INSERT INTO session (id, agent_id, owner_id, title)
SELECT DISTINCT ON (s.id) s.id, s.agent_id, s.owner_id, s.title
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS s(id, agent_id, owner_id, title)
 ORDER BY s.id
    ON CONFLICT (id) DO NOTHING
"""

_LOCK = "SELECT id, agent_id, event_seq FROM session WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"

_REPEATED = """
SELECT r.id, r.public_id, r.session_id, r.turn, r.request_key, r.request_hash, t.finished_at IS NOT NULL AS finished,
       (SELECT min(e.seq) FROM session_event e WHERE e.run_id = r.id AND e.run_seq = 1) AS seq
  FROM agent_run r JOIN unnest($1::text[], $2::text[]) AS k(session_id, request_key)
    ON r.session_id = k.session_id AND r.request_key = k.request_key
  JOIN agent_run t ON t.id = coalesce(r.merged_into, r.id)
"""

# Lock order: the caller holds the sessions' row locks (by id); runs and events are new rows.
_ENQUEUE = """
WITH incoming AS (
    SELECT r.*, row_number() OVER (PARTITION BY r.session_id ORDER BY r.ordinal) AS n
      FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bytea[], $7::jsonb[], $8::jsonb[],
                  $9::jsonb[], $10::bigint[], $11::text[], $12::text[], $13::bigint[], $14::text[], $15::int[], $16::float8[])
           WITH ORDINALITY
           AS r(session_id, agent_id, principal_id, kind, request_key, request_hash, actor, input, reply_to, inbox_id,
                traceparent, busy, parent_run_id, parent_call_id, depth, deadline_seconds, ordinal)
), busy AS (
    SELECT g.session_id FROM (SELECT DISTINCT session_id FROM incoming) g
     CROSS JOIN LATERAL (SELECT 1 FROM agent_run r WHERE r.session_id = g.session_id AND r.state IN ('queued', 'running', 'waiting')
                          ORDER BY r.turn LIMIT 1) o
), bump AS (
    UPDATE session s
       SET run_seq = s.run_seq + g.total, event_seq = s.event_seq + g.total, active_at = clock_timestamp(), archived_at = NULL
      FROM (SELECT session_id, count(*) AS total FROM incoming GROUP BY session_id) g
     WHERE s.id = g.session_id
    RETURNING s.id, s.run_seq - g.total AS run_base, s.event_seq - g.total AS event_base
), made AS (
    INSERT INTO agent_run (session_id, turn, agent_id, principal_id, kind, state, runnable_at, request_key, request_hash,
                           actor, input, reply_to, inbox_id, traceparent, busy, parent_run_id, parent_call_id, depth,
                           deadline_at)
    SELECT i.session_id, b.run_base + i.n, i.agent_id, i.principal_id, i.kind, 'queued',
           CASE WHEN i.n = 1 AND NOT EXISTS (SELECT 1 FROM busy WHERE busy.session_id = i.session_id)
                THEN clock_timestamp() END,
           i.request_key, i.request_hash, i.actor, i.input, i.reply_to, i.inbox_id, i.traceparent, i.busy, i.parent_run_id,
           i.parent_call_id, i.depth, clock_timestamp() + make_interval(secs => i.deadline_seconds)
      FROM incoming i JOIN bump b ON b.id = i.session_id
     ORDER BY i.ordinal
    RETURNING id, public_id, session_id, turn, input
), logged AS (
    INSERT INTO session_event (session_id, seq, run_id, run_seq, kind, payload)
    SELECT m.session_id, b.event_base + m.turn - b.run_base, m.id, 1, 'run.queued',
           jsonb_build_object('turn', m.turn, 'text', m.input -> 'text')
      FROM made m JOIN bump b ON b.id = m.session_id
    RETURNING run_id, seq
)
SELECT m.id, m.public_id, m.session_id, m.turn, l.seq FROM made m JOIN logged l ON l.run_id = m.id ORDER BY m.id
"""

_LIST = """
SELECT s.id, s.agent_id, s.title, s.created_at, s.active_at, s.archived_at, s.event_seq, s.message_seq,
       (SELECT r.state FROM agent_run r WHERE r.session_id = s.id AND r.state IN ('queued', 'running', 'waiting')
         ORDER BY r.turn LIMIT 1) AS open_state
  FROM session s
 WHERE ($1::bigint IS NULL OR s.owner_id = $1)
   AND ($2::text IS NULL OR s.agent_id = $2)
   AND (s.archived_at IS NOT NULL) = $3
   AND ($4::text IS NULL OR s.title ILIKE '%' || $4 || '%' OR s.id ILIKE '%' || $4 || '%')
 ORDER BY (SELECT r.state FROM agent_run r WHERE r.session_id = s.id AND r.state IN ('queued', 'running', 'waiting')
            ORDER BY r.turn LIMIT 1) = 'waiting' DESC NULLS LAST,
          s.active_at DESC
 LIMIT $5
"""

_HEADS = """
SELECT s.session_id, h.id FROM unnest($1::text[]) AS s(session_id)
 CROSS JOIN LATERAL (SELECT r.id FROM agent_run r WHERE r.session_id = s.session_id AND r.state IN ('queued', 'running', 'waiting')
                      ORDER BY r.turn LIMIT 1) h
"""

_OPEN_RUNS = """
SELECT state, count(*) AS runs FROM agent_run
 WHERE session_id = $1 AND state IN ('queued', 'running', 'waiting') GROUP BY state ORDER BY state
"""

_GET = """
SELECT id, agent_id, owner_id, title, created_at, active_at, archived_at, event_seq, event_floor, message_seq
  FROM session WHERE id = $1
"""

_DESCRIBE = """
UPDATE session SET title = coalesce($2, title),
       archived_at = CASE WHEN $3::boolean IS NULL THEN archived_at WHEN $3 THEN coalesce(archived_at, clock_timestamp()) END
 WHERE id = $1 RETURNING id
"""


@dataclass(frozen=True)
class Parent:
    """The call that a delegated run answers; the run is canceled when `deadline_seconds` have passed."""

    run_id: int
    call_id: str
    depth: int
    deadline_seconds: float


@dataclass(frozen=True)
class NewRun:
    """A message to be worked on. `request_hash` is the SHA-256 of what the client sent under `request_key`."""

    session_id: str
    agent_id: str
    owner_id: int | None
    principal_id: int | None
    actor: Actor
    input: RunInput
    title: str = ""
    kind: str = "message"
    request_key: str | None = None
    request_hash: bytes | None = None
    reply_to: ReplyTo | None = None
    inbox_id: int | None = None
    traceparent: str | None = None
    busy: BusyPolicy = "queue"
    parent: Parent | None = None


@dataclass(frozen=True)
class Enqueued:
    """The run that now stands for a message; `seq` is its first event's.

    `repeated` says that an earlier request made it, `finished` that it has ended, or the run that took it up has.
    """

    run_id: int
    run: UUID
    session_id: str
    turn: int
    seq: int
    repeated: bool = False
    finished: bool = False


@dataclass(frozen=True)
class SessionRow:
    """A session's head."""

    id: str
    agent_id: str
    owner_id: int | None
    title: str
    created_at: datetime
    active_at: datetime
    archived_at: datetime | None
    event_seq: int
    event_floor: int
    message_seq: int


@dataclass(frozen=True)
class SessionListing:
    """One line of a list; `open_state` is the state of its head run, None when nothing is open."""

    id: str
    agent_id: str
    title: str
    created_at: datetime
    active_at: datetime
    archived_at: datetime | None
    event_seq: int
    message_seq: int
    open_state: str | None


async def enqueue(connection: Connection, runs: Sequence[NewRun]) -> list[Enqueued]:
    """Queue runs in the given order, making their sessions where needed; answers in the same order.

    The first open run of a session becomes its head. A known `request_key` with the same hash answers with its run, so a repeat of the
    whole transaction is safe. Raises AgentMismatch, KeyReused.
    """
    sessions = await _lock_sessions(connection, runs)
    for run in runs:
        if sessions[run.session_id] != run.agent_id:
            raise AgentMismatch(f"session {run.session_id} belongs to agent {sessions[run.session_id]}")
    known = await _repeated(connection, runs)
    fresh = [run for run in runs if (run.session_id, run.request_key) not in known]
    made = iter(await _insert(connection, fresh) if fresh else [])
    answers = []
    for run in runs:
        before = known.get((run.session_id, run.request_key))
        answers.append(before if before is not None else next(made))
    return answers


async def _lock_sessions(connection: Connection, runs: Sequence[NewRun]) -> dict[str, str]:
    wanted = sorted({run.session_id for run in runs})
    locked = {row["id"]: row["agent_id"] for row in await connection.fetch(_LOCK, wanted)}
    if len(locked) < len(wanted):
        await connection.execute(
            _MAKE,
            [run.session_id for run in runs],
            [run.agent_id for run in runs],
            [run.owner_id for run in runs],
            [run.title for run in runs],
        )
        # All of them again, in order: the ones locked above stay locked.
        locked = {row["id"]: row["agent_id"] for row in await connection.fetch(_LOCK, wanted)}
    return locked


async def _repeated(connection: Connection, runs: Sequence[NewRun]) -> dict[tuple[str, str | None], Enqueued]:
    keyed = [run for run in runs if run.request_key is not None]
    if not keyed:
        return {}
    rows = await connection.fetch(_REPEATED, [run.session_id for run in keyed], [run.request_key for run in keyed])
    found = {(row["session_id"], row["request_key"]): row for row in rows}
    for run in keyed:
        row = found.get((run.session_id, run.request_key))
        if row is not None and row["request_hash"] != run.request_hash:
            raise KeyReused("this Idempotency-Key was used with another body")
    return {
        key: Enqueued(
            row["id"],
            row["public_id"],
            row["session_id"],
            row["turn"],
            row["seq"] or 0,
            repeated=True,
            finished=row["finished"],
        )
        for key, row in found.items()
    }


async def _insert(connection: Connection, runs: Sequence[NewRun]) -> list[Enqueued]:
    light = [lifted_parts(run.input.parts) for run in runs]
    await blob.put_all(connection, [data for _, blobs in light for data in blobs])
    inputs = [run.input.model_copy(update={"parts": parts}) for run, (parts, _) in zip(runs, light, strict=True)]
    rows = await connection.fetch(
        _ENQUEUE,
        [run.session_id for run in runs],
        [run.agent_id for run in runs],
        [run.principal_id for run in runs],
        [run.kind for run in runs],
        [run.request_key for run in runs],
        [run.request_hash for run in runs],
        [run.actor.model_dump_json() for run in runs],
        [one.model_dump_json() for one in inputs],
        [None if run.reply_to is None else run.reply_to.model_dump_json() for run in runs],
        [run.inbox_id for run in runs],
        [run.traceparent for run in runs],
        [run.busy for run in runs],
        [run.parent and run.parent.run_id for run in runs],
        [run.parent and run.parent.call_id for run in runs],
        [0 if run.parent is None else run.parent.depth for run in runs],
        [run.parent and run.parent.deadline_seconds for run in runs],
    )
    return [Enqueued(row["id"], row["public_id"], row["session_id"], row["turn"], row["seq"]) for row in rows]


async def make(connection: Connection, session_id: str, agent_id: str, owner_id: int | None) -> None:
    """Make an empty session, if there is none of that id."""
    await connection.execute(_MAKE, [session_id], [agent_id], [owner_id], [""])


async def heads(connection: Connection, session_ids: Sequence[str]) -> dict[str, int]:
    """The first open run of each session that has one; locks the sessions, so that it stays so until the transaction ends."""
    wanted = sorted(set(session_ids))
    await connection.fetch(_LOCK, wanted)
    return {row["session_id"]: row["id"] for row in await connection.fetch(_HEADS, wanted)}


async def open_runs(connection: Connection, session_id: str) -> dict[str, int]:
    """How many runs of the session are queued, running and waiting."""
    return {row["state"]: row["runs"] for row in await connection.fetch(_OPEN_RUNS, session_id)}


async def get(db: Database, session_id: str) -> SessionRow | None:
    """The session's head, or None."""
    row = await db.read(lambda c: c.fetchrow(_GET, session_id), pool="ingress")
    return None if row is None else SessionRow(**dict(row))


async def listing(
    db: Database, *, owner_id: int | None, agent_id: str | None, archived: bool, query: str | None, limit: int
) -> list[SessionListing]:
    """Sessions that wait for somebody first, then by activity. `owner_id` None lists everybody's."""
    rows = await db.read(lambda c: c.fetch(_LIST, owner_id, agent_id, archived, query, limit))
    return [SessionListing(**dict(row)) for row in rows]


async def describe(db: Database, session_id: str, *, title: str | None, archived: bool | None) -> bool:
    """Rename or archive; None leaves a field as it is. False when there is no such session."""

    async def work(connection: Connection) -> bool:
        return await connection.fetchval(_DESCRIBE, session_id, title, archived) is not None

    return await db.transact(work, idempotent=True)
