"""The session's execution lease and every write under it: renewal, event batches, steps.

A fence is the statement that locks the lease row by (session, token, holder) while the lease lasts; what it guards comes after it in the same
transaction or depends on it in the same statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from uuid import UUID

from stratus.domain.errors import LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.values import Message, Usage
from stratus.store.blob import put as put_blob
from stratus.store.database import Connection, Database, Resolved
from stratus.store.log import LogWrite, encode, write_log
from stratus.store.notification import claimed
from stratus.store.plan import NewOp, plan
from stratus.store.tool_call import CallMove, NewCall, move_calls, propose_calls

# Lock order: session_execution by session, then session by id. `run_seq = base` makes a repeat after a lost answer match nothing.
_APPEND = """
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::uuid[], $4::int[], $5::int[], $6::int[]) WITH ORDINALITY
           AS g(session_id, token, holder, base, attempt, events, ordinal)
), fence AS (
    SELECT x.session_id, x.run_id, g.base, g.attempt, g.events, g.ordinal
      FROM session_execution x JOIN given g ON g.session_id = x.session_id
     WHERE x.token = g.token AND x.holder = g.holder AND x.run_seq = g.base AND x.lease_until > clock_timestamp()
     ORDER BY x.session_id
       FOR NO KEY UPDATE OF x
), held AS (
    UPDATE session_execution x SET run_seq = f.base + f.events, progress_at = clock_timestamp()
      FROM fence f
     WHERE x.session_id = f.session_id AND x.run_seq = f.base AND x.lease_until > clock_timestamp()
    RETURNING f.session_id, f.run_id, f.base, f.attempt, f.events, f.ordinal
), locked AS (
    SELECT s.id FROM session s WHERE s.id IN (SELECT session_id FROM held) ORDER BY s.id FOR NO KEY UPDATE
), bump AS (
    UPDATE session s SET event_seq = s.event_seq + h.events
      FROM held h, locked l
     WHERE s.id = h.session_id AND l.id = s.id
    RETURNING s.id, s.event_seq - h.events AS event_base, h.run_id, h.base, h.attempt, h.ordinal
), logged AS (
    INSERT INTO session_event (session_id, seq, run_id, run_seq, attempt, kind, payload)
    SELECT b.id, b.event_base + e.n, b.run_id, b.base + e.n, b.attempt, e.kind, e.payload
      FROM unnest($7::int[], $8::int[], $9::text[], $10::jsonb[]) AS e(given, n, kind, payload)
      JOIN bump b ON b.ordinal = e.given
)
SELECT ordinal FROM bump
"""

_STEP_FENCE = """
UPDATE session_execution SET run_seq = run_seq + $5, progress_at = clock_timestamp()
 WHERE session_id = $1 AND token = $2 AND holder = $3 AND run_seq = $4 AND lease_until > clock_timestamp()
RETURNING run_id
"""

_LOCK_SESSION = "SELECT id FROM session WHERE id = $1 FOR NO KEY UPDATE"

_RUN_SEQ = "SELECT run_seq FROM session_execution WHERE session_id = $1 AND token = $2 AND holder = $3 FOR UPDATE"

_RUN_SEQS = """
SELECT x.session_id, x.run_seq FROM session_execution x
  JOIN unnest($1::text[], $2::bigint[], $3::uuid[]) AS g(session_id, token, holder)
    ON g.session_id = x.session_id AND g.token = x.token AND g.holder = x.holder
 ORDER BY x.session_id
   FOR UPDATE OF x
"""

# Renews what it can lock at once: a row locked by its own append or finish is passed over and comes round again.
_RENEW = """
WITH mine AS (
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::uuid[]) AS m(session_id, token, holder)
), free AS (
    SELECT x.session_id FROM session_execution x JOIN mine m ON m.session_id = x.session_id
     WHERE x.token = m.token AND x.holder = m.holder AND x.lease_until > clock_timestamp()
     ORDER BY x.session_id
       FOR NO KEY UPDATE OF x SKIP LOCKED
), renewed AS (
    UPDATE session_execution x
       SET lease_until = clock_timestamp() + make_interval(secs => $4), renewed_at = clock_timestamp()
      FROM free f WHERE x.session_id = f.session_id AND x.lease_until > clock_timestamp()
    RETURNING x.session_id, x.cancel_requested
)
SELECT m.session_id, m.token, r.session_id IS NOT NULL AS renewed, coalesce(r.cancel_requested, false) AS cancel,
       EXISTS (SELECT 1 FROM session_execution x WHERE x.session_id = m.session_id AND x.token = m.token
                  AND x.holder = m.holder AND x.lease_until > clock_timestamp()) AS held
  FROM mine m LEFT JOIN renewed r ON r.session_id = m.session_id
"""

_SPENT = "SELECT payload FROM session_event WHERE run_id = $1 AND kind = 'usage' ORDER BY run_seq"

_CANCELED = """
SELECT session_id FROM session_execution WHERE cancel_requested AND holder = ANY($1)
"""


@dataclass(frozen=True)
class ExecutionLease:
    """Proof of executing a session's run: compared for equality in every write. `agent_id` says whose rows its steps may touch."""

    session_id: str
    run_id: int
    token: int
    holder: UUID
    agent_id: str


@dataclass(frozen=True)
class Append:
    """Events that follow the run's event number `run_seq`."""

    lease: ExecutionLease
    run_seq: int
    attempt: int
    events: Sequence[NewEvent]


@dataclass(frozen=True)
class Step:
    """One committed step of a turn. `blobs` are the bytes of files that its events name, `ops` what it tells people on the way."""

    lease: ExecutionLease
    run_seq: int
    attempt: int
    step: int
    events: Sequence[NewEvent] = ()
    messages: Sequence[Message] = ()
    proposed: Sequence[NewCall] = ()
    moves: Sequence[CallMove] = ()
    blobs: Sequence[bytes] = ()
    ops: Sequence[NewOp] = field(default_factory=tuple)


@dataclass(frozen=True)
class Renewal:
    """What became of a lease at its renewal. Neither renewed nor lost: its row was locked at that moment."""

    session_id: str
    token: int
    renewed: bool
    lost: bool
    cancel: bool


async def append(db: Database, appends: Sequence[Append]) -> list[bool]:
    """Append event batches of many turns in one statement. For each: True when written, False when the lease is lost."""

    async def work(connection: Connection) -> list[bool]:
        events = [(i, n, event) for i, one in enumerate(appends, 1) for n, event in enumerate(one.events, 1)]
        rows = await connection.fetch(
            _APPEND,
            [one.lease.session_id for one in appends],
            [one.lease.token for one in appends],
            [one.lease.holder for one in appends],
            [one.run_seq for one in appends],
            [one.attempt for one in appends],
            [len(one.events) for one in appends],
            [i for i, _, _ in events],
            [n for _, n, _ in events],
            [event.kind for _, _, event in events],
            [encode(event.payload) for _, _, event in events],
        )
        written = {row["ordinal"] for row in rows}
        if len(written) == len(appends):
            return [True] * len(appends)
        # A statement that was lost on its way may arrive between the look and the repeat: then the repeat finds its own work done.
        there = await _applied(connection, appends)
        return [i in written or done for i, done in enumerate(there, 1)]

    async def resolve(connection: Connection) -> Resolved[list[bool]] | None:
        # The statement is one transaction: if any of it is there, all is, and what is missing had lost its lease.
        done = await _applied(connection, appends)
        return Resolved(done) if any(done) else None

    return await db.transact(work, resolve=resolve, autocommit=True)


async def _applied(connection: Connection, appends: Sequence[Append]) -> list[bool]:
    """Which batches are in the log: only the lease's holder counts its row on from there, one batch after the other."""
    rows = await connection.fetch(
        _RUN_SEQS,
        [one.lease.session_id for one in appends],
        [one.lease.token for one in appends],
        [one.lease.holder for one in appends],
    )
    at = {row["session_id"]: row["run_seq"] for row in rows}
    return [at.get(one.lease.session_id) == one.run_seq + len(one.events) for one in appends]


async def commit_step(db: Database, step: Step) -> None:
    """Commit one step under the fence, as the run's agent. Raises LeaseLost, with nothing written."""
    lease, count = step.lease, len(step.events)

    async def work(connection: Connection) -> None:
        fenced = await connection.fetchval(
            _STEP_FENCE, lease.session_id, lease.token, lease.holder, step.run_seq, count
        )
        if fenced is None:
            raise LeaseLost(f"run {lease.run_id} is another's")
        await connection.execute(_LOCK_SESSION, lease.session_id)
        await propose_calls(connection, lease.run_id, step.step, step.proposed)
        await move_calls(connection, lease.run_id, step.moves)
        for blob in step.blobs:  # a tool's files: rarely more than one
            await put_blob(connection, blob)
        write = LogWrite(lease.session_id, lease.run_id, step.run_seq, step.attempt, step.events, step.messages)
        await write_log(connection, [write])
        await plan(connection, await claimed(connection, step.ops))

    async def resolve(connection: Connection) -> Resolved[None] | None:
        at = await connection.fetchval(_RUN_SEQ, lease.session_id, lease.token, lease.holder)
        if at is None:
            raise LeaseLost(f"run {lease.run_id} is another's")
        return Resolved(None) if at == step.run_seq + count else None

    # Files and notices go into tables that no agent may touch: a step that brings any is written by the replica itself.
    agent = None if step.blobs or step.ops else lease.agent_id
    await db.transact(work, resolve=resolve, agent=agent)


async def renew(connection: Connection, leases: Sequence[ExecutionLease], ttl: float) -> list[Renewal]:
    """Renew all of a replica's leases, for `ttl` seconds from now, in one statement."""
    rows = await connection.fetch(
        _RENEW,
        [lease.session_id for lease in leases],
        [lease.token for lease in leases],
        [lease.holder for lease in leases],
        ttl,
    )
    return [
        Renewal(row["session_id"], row["token"], row["renewed"], not row["renewed"] and not row["held"], row["cancel"])
        for row in rows
    ]


async def canceled(db: Database, holders: Sequence[UUID]) -> set[str]:
    """Sessions among those held whose running turn somebody asked to cancel."""
    return {row["session_id"] for row in await db.read(lambda c: c.fetch(_CANCELED, list(holders)))}


async def spent(db: Database, run_id: int, *, agent: str) -> Usage:
    """What the committed steps of a run of that agent have used, over all its attempts."""
    rows = await db.read(lambda c: c.fetch(_SPENT, run_id), agent=agent)
    return reduce(Usage.plus, (Usage.model_validate_json(row["payload"]) for row in rows), Usage())
