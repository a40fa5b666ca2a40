"""Parking: a turn that has to wait gives its lease back, with what it waits for, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from stratus.domain.errors import CancelAsked, LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.run import RUN, RunEvent, RunState
from stratus.domain.tool_call import CallEvent
from stratus.domain.values import ReplyTo, ToolCallPart
from stratus.store import approval, preview, session
from stratus.store.approval import NewApproval, Requested
from stratus.store.database import Connection, Database, Resolved
from stratus.store.execution import ExecutionLease
from stratus.store.log import LOCK_SESSIONS, LogWrite, write_log
from stratus.store.plan import addressed, plan
from stratus.store.prompts import prompt
from stratus.store.session import Enqueued, NewRun
from stratus.store.tool_call import CallMove, move_calls
from stratus.store.waiting import resume

_FENCE = """
SELECT cancel_requested FROM session_execution
 WHERE session_id = $1 AND token = $2 AND holder = $3 AND run_seq = $4 AND lease_until > clock_timestamp()
   FOR UPDATE
"""

# Waiting on purpose has not used up a try.
_PARK = """
WITH parked AS (
    UPDATE agent_run SET state = 'waiting', attempts = attempts - 1, worker_id = NULL, finish_token = $3
     WHERE id = $1 AND state = ANY($2) RETURNING id
)
DELETE FROM session_execution x USING parked p WHERE x.run_id = p.id RETURNING x.run_id
"""

# A delegated run answers its parent and has no chat; its questions go where the person waits.
_ROOT = """
WITH RECURSIVE up AS (
    SELECT r.id, r.parent_run_id, r.reply_to FROM agent_run r WHERE r.id = $1
    UNION ALL
    SELECT r.id, r.parent_run_id, r.reply_to FROM agent_run r JOIN up ON r.id = up.parent_run_id
)
SELECT reply_to FROM up WHERE parent_run_id IS NULL
"""

_PARKED_BY = "SELECT finish_token FROM agent_run WHERE id = $1 FOR NO KEY UPDATE"


@dataclass(frozen=True)
class Ask:
    """A call to be approved, with the question's terms."""

    call: ToolCallPart
    terms: NewApproval


@dataclass(frozen=True)
class Parking:
    """What a turn waits for. `token` marks whose park it was; `moves` and `events` go with it; `waits` names open children from before."""

    lease: ExecutionLease
    token: UUID
    reply_to: ReplyTo | None
    run_seq: int = 0
    attempt: int = 0
    events: Sequence[NewEvent] = ()
    moves: Sequence[CallMove] = ()
    asks: Sequence[Ask] = ()
    children: Sequence[NewRun] = field(default_factory=tuple)
    waits: Sequence[dict[str, object]] = field(default_factory=tuple)


async def park(db: Database, parking: Parking) -> None:
    """Park under the fence, repeating nothing that has committed. Raises LeaseLost, CancelAsked, with nothing written.

    The run waits until its approvals are resolved and its children have ended; when that is so already it is queued again at once.
    """
    lease = parking.lease

    async def work(connection: Connection) -> None:
        fenced = await connection.fetchval(_FENCE, lease.session_id, lease.token, lease.holder, parking.run_seq)
        if fenced is None:
            raise LeaseLost(f"run {lease.run_id} is another's")
        if fenced:
            raise CancelAsked(f"run {lease.run_id} is to end")
        await connection.fetch(LOCK_SESSIONS, [lease.session_id])
        started = await session.enqueue(connection, parking.children) if parking.children else []
        await _leave(connection, parking)
        asked = [CallMove(one.call.call_id, CallEvent.ASK) for one in parking.asks]
        await move_calls(connection, lease.run_id, [*parking.moves, *asked])
        requested = await approval.request(connection, lease.run_id, [one.terms for one in parking.asks])
        events = [*parking.events, *_started(parking, started), *_requested(parking, requested)]
        events.append(NewEvent("run.waiting", {"for": [*parking.waits, *_waits(parking, started, requested)]}))
        await write_log(
            connection, [LogWrite(lease.session_id, lease.run_id, parking.run_seq, parking.attempt, events)]
        )
        await _offer(connection, parking, requested)
        await resume(connection, [lease.run_id])

    async def resolve(connection: Connection) -> Resolved[None] | None:
        token = await connection.fetchval(_PARKED_BY, lease.run_id)
        return Resolved(None) if token == parking.token else None

    await db.transact(work, resolve=resolve)


async def _leave(connection: Connection, parking: Parking) -> None:
    state = RUN.after(RunState.RUNNING, RunEvent.PARK)
    assert state is RunState.WAITING
    left = await connection.fetchval(_PARK, parking.lease.run_id, list(RUN.sources(RunEvent.PARK)), parking.token)
    if left is None:
        raise LeaseLost(f"run {parking.lease.run_id} was not running")


def _started(parking: Parking, children: Sequence[Enqueued]) -> list[NewEvent]:
    return [
        NewEvent(
            "delegate.started",
            {
                "call_id": asked.parent and asked.parent.call_id,
                "agent": asked.agent_id,
                "run": str(child.run),
                "session": child.session_id,
            },
        )
        for asked, child in zip(parking.children, children, strict=True)
    ]


def _requested(parking: Parking, requested: Sequence[Requested]) -> list[NewEvent]:
    calls = {one.call.call_id: one for one in parking.asks}
    return [
        NewEvent(
            "approval.requested",
            {
                "id": str(one.public_id),
                "call_id": one.call_id,
                "name": calls[one.call_id].call.name,
                "args": calls[one.call_id].call.args,
                "args_hash": one.args_hash,
                "expires_at": one.expires_at.isoformat(),
                "approvers": calls[one.call_id].terms.approvers.model_dump(mode="json"),
            },
        )
        for one in requested
    ]


def _waits(parking: Parking, children: Sequence[Enqueued], requested: Sequence[Requested]) -> list[dict[str, object]]:
    asked: list[dict[str, object]] = [{"approval": str(one.public_id), "call_id": one.call_id} for one in requested]
    for new, child in zip(parking.children, children, strict=True):
        call_id = new.parent and new.parent.call_id
        asked.append({"run": str(child.run), "agent": new.agent_id, "call_id": call_id})
    return asked


async def _offer(connection: Connection, parking: Parking, requested: Sequence[Requested]) -> None:
    """One prompt op for each question, in the chat that is to be answered."""
    to = parking.reply_to
    if to is None or not requested:
        return
    calls = {one.call.call_id: one.call for one in parking.asks}
    prompts = [
        prompt(one.public_id.hex, calls[one.call_id].name, calls[one.call_id].args, offer=1) for one in requested
    ]
    await preview.settle(connection, [parking.lease.run_id])
    await plan(connection, addressed(prompts, to, parking.lease.run_id))
    await approval.offered(
        connection, [(one.id, to.channel_id, op.delivery_key) for one, op in zip(requested, prompts, strict=True)]
    )


async def asks_at(db: Database, run_id: int) -> ReplyTo | None:
    """The chat in which a run's questions are asked: that of the run that a person began."""
    value = await db.read(lambda c: c.fetchval(_ROOT, run_id))
    return None if value is None else ReplyTo.model_validate_json(value)
