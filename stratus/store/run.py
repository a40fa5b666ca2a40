"""Runs: claimed with their session's lease, ended once, canceled, given back, or taken from a holder that is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from stratus.domain.agent import AgentDefinition
from stratus.domain.chain import PREVIEW
from stratus.domain.errors import LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.run import RUN, TERMINAL_EVENT, RunEvent, RunState
from stratus.domain.values import Actor, Message, ReplyTo, RunError, RunInput, Usage
from stratus.store import preview
from stratus.store.closing import close_open
from stratus.store.database import Connection, Database, Resolved
from stratus.store.execution import ExecutionLease
from stratus.store.log import LOCK_SESSIONS, LogWrite, write_log
from stratus.store.plan import NewOp, plan

# Sessions are taken by the age of their head, one for each principal before a second one. The advisory lock keeps two workers from waiting for
# each other on the lease's primary key. Reads a bounded window, so that a long queue costs no more than a short one.
_LEASE = """
WITH head AS (
    SELECT r.id, r.session_id, r.principal_id, r.runnable_at FROM agent_run r
     WHERE r.state = 'queued' AND r.runnable_at IS NOT NULL AND r.runnable_at <= stratus_now()
       AND NOT EXISTS (SELECT 1 FROM agent a WHERE a.id = r.agent_id AND a.enabled AND NOT a.needs <@ $4::text[])
     ORDER BY r.runnable_at LIMIT 4 * $1 + 32
), fair AS (
    SELECT id, session_id FROM (
        SELECT h.*, row_number() OVER (PARTITION BY principal_id ORDER BY runnable_at) AS nth FROM head h
    ) ranked ORDER BY nth, runnable_at OFFSET 0
), free AS (
    SELECT id, session_id FROM fair WHERE pg_try_advisory_xact_lock(hashtextextended(session_id, 7305)) LIMIT $1
)
INSERT INTO session_execution (session_id, run_id, holder, worker_id, lease_until)
SELECT session_id, id, gen_random_uuid(), $2, clock_timestamp() + make_interval(secs => $3) FROM free ORDER BY session_id
    ON CONFLICT DO NOTHING
RETURNING session_id, run_id, token, holder
"""

# A new snapshot: what ended or was canceled since the head was read is found here, and its lease given back.
_START = """
WITH locked AS (
    SELECT id, owner_id FROM session WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE
), before AS (
    SELECT id, worker_id FROM agent_run WHERE id = ANY($2)
), started AS (
    UPDATE agent_run r
       SET state = 'running', runnable_at = NULL, attempts = r.attempts + 1, claims = r.claims + 1, worker_id = $3,
           started_at = coalesce(r.started_at, clock_timestamp())
      FROM locked l, before b
     WHERE r.session_id = l.id AND r.id = ANY($2) AND b.id = r.id AND r.state = ANY($4) AND r.runnable_at IS NOT NULL
    RETURNING r.id, r.public_id, r.session_id, r.turn, r.agent_id, r.claims, r.kind, r.principal_id, r.actor, r.input, r.reply_to,
              r.depth, r.traceparent, l.owner_id, r.cancel_requested_at IS NOT NULL AS cancel_requested,
              b.worker_id IS NOT NULL AS recovered
), stale AS (
    DELETE FROM session_execution x
     WHERE x.session_id = ANY($1) AND x.run_id = ANY($2) AND NOT EXISTS (SELECT 1 FROM started s WHERE s.id = x.run_id)
)
SELECT s.*, a.definition, last.run_seq, last.kind AS last_kind
  FROM started s
  CROSS JOIN LATERAL (SELECT e.run_seq, e.kind FROM session_event e WHERE e.run_id = s.id ORDER BY e.run_seq DESC LIMIT 1) last
  LEFT JOIN agent a ON a.id = s.agent_id AND a.enabled
 ORDER BY s.session_id
"""

_COUNT_EVENTS = """
UPDATE session_execution x SET run_seq = n.run_seq
  FROM unnest($1::text[], $2::int[]) AS n(session_id, run_seq) WHERE x.session_id = n.session_id
"""

_MINE = """
SELECT r.id, r.public_id, r.session_id, r.turn, r.agent_id, r.claims, r.kind, r.principal_id, r.actor, r.input, r.reply_to,
       r.depth, r.traceparent, s.owner_id, r.cancel_requested_at IS NOT NULL AS cancel_requested, a.definition, x.run_seq, x.token,
       x.holder
  FROM agent_run r
  JOIN session s ON s.id = r.session_id
  JOIN session_execution x ON x.run_id = r.id
  JOIN unnest($1::bigint[], $2::uuid[]) AS m(run_id, holder) ON m.run_id = x.run_id AND m.holder = x.holder
  LEFT JOIN agent a ON a.id = r.agent_id AND a.enabled
 ORDER BY r.session_id
"""

_LOCK_RUNS = "SELECT id FROM agent_run WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"

_FENCE = """
SELECT x.session_id, x.run_seq FROM session_execution x
  JOIN unnest($1::text[], $2::bigint[], $3::uuid[]) AS g(session_id, token, holder) ON g.session_id = x.session_id
 WHERE x.token = g.token AND x.holder = g.holder AND x.lease_until > clock_timestamp()
 ORDER BY x.session_id
   FOR UPDATE OF x
"""

# Ends, or gives back, running runs; drops their leases and promotes each session's next run. The caller holds leases and sessions.
_END = """
WITH ending AS (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::uuid[], $5::jsonb[], $6::jsonb[], $7::int[])
           AS e(run_id, session_id, state, finish_token, error, usage, refund)
), ended AS (
    UPDATE agent_run r
       SET state = e.state, finish_token = e.finish_token, usage = e.usage,
           -- Whoever asked it to end may have left the reason.
           error = CASE WHEN e.state IN ('canceled', 'queued') THEN coalesce(e.error, r.error) ELSE e.error END,
           attempts = r.attempts - e.refund,
           -- One that was given back on purpose is nobody's; of one that was lost, the next claim tells so.
           worker_id = CASE WHEN e.refund = 1 THEN NULL ELSE r.worker_id END,
           runnable_at = CASE WHEN e.state = 'queued' THEN clock_timestamp() END,
           finished_at = CASE WHEN e.state <> 'queued' THEN clock_timestamp() END
      FROM ending e WHERE r.id = e.run_id AND r.state = 'running'
    RETURNING r.id, r.session_id, r.state, r.error
), gone AS (
    DELETE FROM session_execution x USING ended e WHERE x.run_id = e.id
), active AS (
    UPDATE session s SET active_at = clock_timestamp() FROM (SELECT DISTINCT session_id FROM ended) e WHERE s.id = e.session_id
), next AS (
    UPDATE agent_run r SET runnable_at = clock_timestamp()
      FROM (SELECT n.id FROM ended e CROSS JOIN LATERAL (
                SELECT q.id FROM agent_run q WHERE q.session_id = e.session_id AND q.state = 'queued' ORDER BY q.turn LIMIT 1) n
             WHERE e.state <> 'queued') h
     WHERE r.id = h.id
)
SELECT id, error FROM ended
"""

_FINISHED_BY = "SELECT id, state, finish_token FROM agent_run WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"

Row = Mapping[str, Any]

# A turn that completed has answered all its calls, one that goes on keeps them open.
_BREAKS_OFF = frozenset({RunEvent.FAIL, RunEvent.CANCEL, RunEvent.INTERRUPT})


@dataclass(frozen=True)
class ClaimedRun:
    """A run to execute, with its lease. `attempt` counts its claims, `run_seq` its events so far, `depth` the delegations above it."""

    lease: ExecutionLease
    run: UUID
    turn: int
    agent_id: str
    agent: AgentDefinition | None
    attempt: int
    kind: str
    principal_id: int | None
    owner_id: int | None
    depth: int
    actor: Actor
    input: RunInput
    reply_to: ReplyTo | None
    traceparent: str | None
    run_seq: int
    cancel_requested: bool

    @property
    def resumed(self) -> bool:
        """Whether an earlier claim had begun it."""
        return self.attempt > 1


@dataclass(frozen=True)
class Ending:
    """How a run ends. `finish_token` marks whose finish it was; `ops` are the user's answer.

    `run_seq` counts its events so far; for one that is held, `finish` takes the count from its lease's row.
    """

    lease: ExecutionLease
    attempt: int
    run_seq: int
    event: RunEvent
    finish_token: UUID
    events: Sequence[NewEvent] = ()
    messages: Sequence[Message] = ()
    ops: Sequence[NewOp] = field(default_factory=tuple)
    error: RunError | None = None
    usage: Usage | None = None


async def claim(
    db: Database, worker_id: str, limit: int, ttl: float, *, capabilities: Sequence[str] | None = None
) -> list[ClaimedRun]:
    """Take up to `limit` heads with their sessions' leases, for `ttl` seconds, in one transaction; their first events go with it.

    Runs of agents that need more than `capabilities` (AgentDefinition.needs) are left to replicas that have it; None is whatever they need.
    """
    leased: list[tuple[int, UUID]] = []

    async def work(connection: Connection) -> list[ClaimedRun]:
        rows = await connection.fetch(
            _LEASE, limit, worker_id, ttl, None if capabilities is None else list(capabilities)
        )
        leased[:] = [(row["run_id"], row["holder"]) for row in rows]
        if not rows:
            return []
        leases = {row["run_id"]: row for row in rows}
        started = await connection.fetch(
            _START,
            [row["session_id"] for row in rows],
            [row["run_id"] for row in rows],
            worker_id,
            list(RUN.sources(RunEvent.CLAIM)),
        )
        if not started:
            return []
        writes = [_first_write(row, worker_id) for row in started]
        await write_log(connection, writes)
        counts = [write.run_seq + len(write.events) for write in writes]
        await connection.execute(_COUNT_EVENTS, [write.session_id for write in writes], counts)
        return [_claimed(row, leases[row["id"]], count) for row, count in zip(started, counts, strict=True)]

    async def resolve(connection: Connection) -> Resolved[list[ClaimedRun]] | None:
        await connection.fetch(_LOCK_RUNS, [run_id for run_id, _ in leased])
        rows = await connection.fetch(_MINE, [run_id for run_id, _ in leased], [holder for _, holder in leased])
        return Resolved([_claimed(row, row, row["run_seq"]) for row in rows]) if rows else None

    return await db.transact(work, resolve=resolve)


def _first_write(row: Row, worker_id: str) -> LogWrite:
    attempt = {"attempt": row["claims"], "worker": worker_id}
    if row["claims"] > 1:
        events, messages = [NewEvent("run.resumed", {**attempt, "reason": _reason(row)})], []
    else:
        asked = RunInput.model_validate_json(row["input"])
        events = [NewEvent("run.started", attempt), NewEvent("message.user", {"text": asked.text})]
        messages = [asked.message()]
    return LogWrite(row["session_id"], row["id"], row["run_seq"], row["claims"], events, messages)


def _reason(row: Row) -> str:
    if row["recovered"]:
        return "recovered"
    return "answered" if row["last_kind"] in ("run.waiting", "approval.resolved") else "yielded"


def _claimed(row: Row, lease: Row, run_seq: int) -> ClaimedRun:
    return ClaimedRun(
        lease=ExecutionLease(row["session_id"], row["id"], lease["token"], lease["holder"], row["agent_id"]),
        run=row["public_id"],
        turn=row["turn"],
        agent_id=row["agent_id"],
        agent=None if row["definition"] is None else AgentDefinition.model_validate_json(row["definition"]),
        attempt=row["claims"],
        kind=row["kind"],
        principal_id=row["principal_id"],
        owner_id=row["owner_id"],
        depth=row["depth"],
        actor=Actor.model_validate_json(row["actor"]),
        input=RunInput.model_validate_json(row["input"]),
        reply_to=None if row["reply_to"] is None else ReplyTo.model_validate_json(row["reply_to"]),
        traceparent=row["traceparent"],
        run_seq=run_seq,
        cancel_requested=row["cancel_requested"],
    )


async def finish(db: Database, endings: Sequence[Ending]) -> list[bool]:
    """End runs, each whole or not at all: state, history, events, answer, lease and the next run in one transaction.

    For each: True when this call (or the one whose commit answer was lost) ended it, False when the lease is lost.
    """

    async def work(connection: Connection) -> list[bool]:
        rows = await connection.fetch(
            _FENCE,
            [ending.lease.session_id for ending in endings],
            [ending.lease.token for ending in endings],
            [ending.lease.holder for ending in endings],
        )
        counts = {row["session_id"]: row["run_seq"] for row in rows}
        mine = [ending for ending in endings if ending.lease.session_id in counts]
        await end_runs(connection, [replace(one, run_seq=counts[one.lease.session_id]) for one in mine])
        return [ending.lease.session_id in counts for ending in endings]

    async def resolve(connection: Connection) -> Resolved[list[bool]] | None:
        rows = await connection.fetch(_FINISHED_BY, [ending.lease.run_id for ending in endings])
        tokens = {row["id"]: row["finish_token"] for row in rows}
        done = [tokens.get(ending.lease.run_id) == ending.finish_token for ending in endings]
        return Resolved(done) if any(done) else None

    return await db.transact(work, resolve=resolve)


async def end_runs(connection: Connection, endings: Sequence[Ending]) -> None:
    """The ending itself, for a caller that holds the leases' rows."""
    if not endings:
        return
    await connection.fetch(LOCK_SESSIONS, sorted({ending.lease.session_id for ending in endings}))
    states = [RUN.after(RunState.RUNNING, ending.event) for ending in endings]
    ended = await connection.fetch(
        _END,
        [ending.lease.run_id for ending in endings],
        [ending.lease.session_id for ending in endings],
        [str(state) for state in states],
        [ending.finish_token for ending in endings],
        [None if ending.error is None else ending.error.model_dump_json() for ending in endings],
        [None if ending.usage is None else ending.usage.model_dump_json() for ending in endings],
        # A run that is given back on purpose has not used up a try.
        [1 if ending.event is RunEvent.YIELD else 0 for ending in endings],
    )
    if len(ended) != len(endings):
        raise LeaseLost("a run that is held was not running")
    await close_open(connection, [ending.lease.run_id for ending in endings if ending.event in _BREAKS_OFF])
    errors = {row["id"]: None if row["error"] is None else RunError.model_validate_json(row["error"]) for row in ended}
    writes = [
        LogWrite(
            ending.lease.session_id,
            ending.lease.run_id,
            ending.run_seq,
            ending.attempt,
            [*ending.events, *_terminal(ending, state, errors[ending.lease.run_id])],
            ending.messages,
        )
        for ending, state in zip(endings, states, strict=True)
    ]
    await write_log(connection, writes)
    await preview.settle(connection, [ending.lease.run_id for ending in endings if _leaves_preview(ending)])
    await plan(connection, [op for op in _flat(endings)])


def _leaves_preview(ending: Ending) -> bool:
    """Whether no answer takes over what the run's drafts were shown in, and no later step will."""
    if ending.event in _BREAKS_OFF:
        return True
    return bool(ending.ops) and not any(PREVIEW in op.payload for op in ending.ops)


def _flat(endings: Sequence[Ending]) -> list[NewOp]:
    """All ops in one list, with `after` counting in it."""
    flat: list[NewOp] = []
    for ending in endings:
        base = len(flat)
        for op in ending.ops:
            after = None if op.after is None else op.after + base
            flat.append(NewOp(**{**op.__dict__, "after": after}))
    return flat


def _terminal(ending: Ending, state: RunState, error: RunError | None) -> list[NewEvent]:
    if state not in TERMINAL_EVENT:
        return []
    payload: dict[str, object] = {}
    if error is not None:
        payload["error"] = {"code": error.code, "message": error.message}
    if ending.usage is not None:
        payload["usage"] = ending.usage.model_dump(mode="json")
    return [NewEvent(TERMINAL_EVENT[state], payload)]
