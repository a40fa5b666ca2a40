"""Tool calls of a run: proposed with the model's message, moved one transition at a time, read back with what people and children made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.approval import APPROVAL, ApprovalEvent
from stratus.domain.errors import LeaseLost, NotApproved
from stratus.domain.run import RunState
from stratus.domain.tool_call import TOOL_CALL, CallEvent, CallState
from stratus.domain.values import PARTS, Message
from stratus.store.database import Connection, Database
from stratus.store.log import encode

_PROPOSE = """
INSERT INTO tool_call (run_id, call_id, step, ordinal, name, args, args_hash, effect, state)
SELECT $1, c.call_id, $2, c.ordinal, c.name, c.args, sha256(convert_to(c.args, 'UTF8')), c.effect, 'proposed'
  FROM unnest($3::text[], $4::text[], $5::text[], $6::text[]) WITH ORDINALITY AS c(call_id, name, args, effect, ordinal)
"""

_MOVE = """
UPDATE tool_call c
   SET state = m.state,
       outcome = coalesce(m.outcome, c.outcome),
       started_at = CASE WHEN m.state = 'started' THEN clock_timestamp() ELSE c.started_at END,
       ended_at = CASE WHEN m.state IN ('done', 'failed', 'denied', 'expired', 'unknown') THEN clock_timestamp() END
  FROM unnest($2::text[], $3::text[], $4::text[], $5::jsonb[]) AS m(call_id, sources, state, outcome)
 WHERE c.run_id = $1 AND c.call_id = m.call_id AND c.state = ANY (string_to_array(m.sources, ','))
RETURNING c.call_id
"""

# The arguments must hash as those that were approved.
_CONSUME = """
UPDATE approval a SET state = 'consumed'
  FROM tool_call c
 WHERE a.run_id = $1 AND a.call_id = ANY($2) AND a.state = ANY($3) AND c.run_id = a.run_id AND c.call_id = a.call_id
   AND c.args_hash = a.args_hash AND c.args_hash = sha256(convert_to(c.args, 'UTF8'))
RETURNING a.id
"""

# With whoever decided last on it.
_CALLS = """
SELECT c.call_id, c.step, c.name, c.state, c.effect, c.outcome, a.decided_by, a.note
  FROM tool_call c
  LEFT JOIN LATERAL (
       SELECT p.decided_by, p.note FROM approval p WHERE p.run_id = c.run_id AND p.call_id = c.call_id ORDER BY p.id DESC LIMIT 1
  ) a ON true
 WHERE c.run_id = $1 ORDER BY c.step, c.ordinal
"""

_CHILDREN = """
SELECT r.parent_call_id AS call_id, r.public_id AS run, r.agent_id, r.state, r.error ->> 'message' AS error, r.error ->> 'code' AS error_code,
       (SELECT m.parts FROM message m WHERE m.run_id = r.id AND m.session_id = r.session_id AND m.role = 'assistant'
         ORDER BY m.position DESC LIMIT 1) AS said
  FROM agent_run r WHERE r.parent_run_id = $1
"""


@dataclass(frozen=True)
class NewCall:
    """A tool call that the model proposes. `args` is JSON text."""

    call_id: str
    name: str
    args: str
    effect: str


@dataclass(frozen=True)
class Child:
    """The run that carries out a delegation. `reply` is its last message's text."""

    run: UUID
    agent_id: str
    state: RunState
    reply: str
    error: str | None
    error_code: str | None

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.state in (RunState.QUEUED, RunState.RUNNING, RunState.WAITING)


@dataclass(frozen=True)
class StoredCall:
    """A tool call's row; `outcome` has `content`, `outcome` and `files` once its tool has ended; `decided_by` and `note` are an approver's."""

    call_id: str
    step: int
    name: str
    state: CallState
    effect: str
    outcome: Mapping[str, Any] | None
    decided_by: str | None
    note: str | None
    child: Child | None


@dataclass(frozen=True)
class CallMove:
    """A tool call's transition, with its outcome where it ends. `consumes` says that it uses up the call's approval."""

    call_id: str
    event: CallEvent
    outcome: Mapping[str, object] | None = None
    consumes: bool = False


async def propose_calls(connection: Connection, run_id: int, step: int, calls: Sequence[NewCall]) -> None:
    """Store the calls of a model's message, for a caller that holds the lease's row."""
    if not calls:
        return
    await connection.execute(
        _PROPOSE,
        run_id,
        step,
        [call.call_id for call in calls],
        [call.name for call in calls],
        [call.args for call in calls],
        [call.effect for call in calls],
    )


async def move_calls(connection: Connection, run_id: int, moves: Sequence[CallMove]) -> None:
    """Move calls of a run whose lease's row the caller holds. Raises LeaseLost when one is not where its move begins, NotApproved."""
    if not moves:
        return
    moved = await connection.fetch(
        _MOVE,
        run_id,
        [move.call_id for move in moves],
        [",".join(TOOL_CALL.sources(move.event)) for move in moves],
        [str(TOOL_CALL.target(move.event)) for move in moves],
        [None if move.outcome is None else encode(move.outcome) for move in moves],
    )
    if len(moved) != len(moves):
        raise LeaseLost(f"a tool call of run {run_id} was moved by another")
    consumed = [move.call_id for move in moves if move.consumes]
    if consumed:
        used = await connection.fetch(_CONSUME, run_id, consumed, list(APPROVAL.sources(ApprovalEvent.CONSUME)))
        if len(used) != len(consumed):
            raise NotApproved(f"a call of run {run_id} is not approved as it is")


async def calls_of(db: Database, run_id: int, *, agent: str) -> list[StoredCall]:
    """The tool calls of a run of that agent as they stand, in order.

    Children are other agents' runs, which the agent itself may not read: what they made of its calls is read for it.
    """
    rows = await db.read(lambda c: c.fetch(_CALLS, run_id), agent=agent)
    children: dict[str, Child] = {}
    if any(row["state"] == CallState.STARTED for row in rows):
        found = await db.read(lambda c: c.fetch(_CHILDREN, run_id))
        children = {row["call_id"]: _child(row) for row in found}
    return [_stored(row, children.get(row["call_id"])) for row in rows]


def _stored(row: Mapping[str, Any], child: Child | None) -> StoredCall:
    return StoredCall(
        call_id=row["call_id"],
        step=row["step"],
        name=row["name"],
        state=CallState(row["state"]),
        effect=row["effect"],
        outcome=orjson.loads(row["outcome"]) if row["outcome"] else None,
        decided_by=row["decided_by"],
        note=row["note"],
        child=child,
    )


def _child(row: Mapping[str, Any]) -> Child:
    said = Message(role="assistant", parts=PARTS.validate_json(row["said"] or "[]"))
    return Child(
        run=row["run"],
        agent_id=row["agent_id"],
        state=RunState(row["state"]),
        reply=said.text(),
        error=row["error"],
        error_code=row["error_code"],
    )
