"""What a turn that has to wait writes down: questions with their terms, children with their tasks, and the moves of the calls."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from stratus.domain.delegation import child_session
from stratus.domain.event import NewEvent
from stratus.domain.tool_call import CallEvent, CallState
from stratus.domain.turn import CallFact, Park
from stratus.domain.values import ReplyTo, RunInput, ToolCallPart
from stratus.execution.rules import AgentRules
from stratus.store.park import Ask, Parking
from stratus.store.run import ClaimedRun
from stratus.store.session import NewRun, Parent
from stratus.store.tool_call import CallMove

TITLE_CHARACTERS = 60


def parking_of(
    step: Park,
    rules: AgentRules,
    claimed: ClaimedRun,
    facts: Mapping[str, CallFact],
    *,
    token: UUID,
    to: ReplyTo | None,
) -> Parking:
    """The parking that `step` asks for. `to` is the chat in which questions are asked."""
    return Parking(
        lease=claimed.lease,
        token=token,
        reply_to=to,
        events=[NewEvent("tool.started", {"call_id": call.call_id, "name": call.name}) for call in step.starts],
        moves=[_start(call, facts[call.call_id]) for call in step.starts],
        asks=[Ask(call, rules.terms(call)) for call in step.asks],
        children=[_child(call, rules, claimed) for call in step.starts],
        waits=[{"call_id": call.call_id} for call in step.waits],
    )


def _start(call: ToolCallPart, fact: CallFact) -> CallMove:
    return CallMove(call.call_id, CallEvent.START, consumes=fact.state is CallState.APPROVED)


def _child(call: ToolCallPart, rules: AgentRules, claimed: ClaimedRun) -> NewRun:
    task = rules.task(call)
    return NewRun(
        session_id=child_session(str(claimed.run), call.call_id),
        agent_id=task.agent,
        owner_id=claimed.owner_id,
        principal_id=claimed.principal_id,
        actor=claimed.actor,
        input=RunInput(text=task.task),
        title=task.task[:TITLE_CHARACTERS],
        kind="delegated",
        traceparent=claimed.traceparent,
        parent=Parent(claimed.lease.run_id, call.call_id, claimed.depth + 1, float(task.timeout_seconds)),
    )
