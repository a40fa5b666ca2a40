"""Delegation: a call that another agent carries out, as its own run in its own session."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stratus.domain.refusal import BadDelegation, Refusal, UnknownAgent
from stratus.domain.run import RunState
from stratus.domain.values import ResultOutcome

NAME = "delegate"
DEPTH_MAX = 3
CHILDREN_MAX = 8
_NAMED_CHARACTERS = 120


class Task(BaseModel):
    """The arguments of `delegate`; the child is canceled when `timeout_seconds` have passed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str = Field(description="The agent to ask.")
    task: str = Field(min_length=1, description="All that it needs to know: it does not see this conversation.")
    timeout_seconds: int = Field(default=3600, ge=1, le=86_400, description="How long to wait for its answer.")


def description(delegates: Sequence[str]) -> str:
    """What the model is told of the tool."""
    return (
        f"Ask another agent to do a part of the work, with its own tools, and wait for its answer. "
        f"Agents: {', '.join(delegates)}. Several calls in one message are worked on at the same time."
    )


def read_task(args: str, delegates: Sequence[str]) -> Task | Refusal:
    """The task that the arguments describe, if the agent may give it. `delegates` are ids or wildcards."""
    try:
        task = Task.model_validate_json(args or "{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return BadDelegation(f"{'.'.join(str(part) for part in first['loc']) or 'arguments'}: {first['msg']}")
    if not any(fnmatchcase(task.agent, pattern) for pattern in delegates):
        return UnknownAgent(task.agent, tuple(delegates))
    return task


def child_session(run: str, call_id: str) -> str:
    """The session of a child: named by its parent's public id and call, so that the same call never makes two."""
    named = call_id if len(call_id) <= _NAMED_CHARACTERS else hashlib.sha256(call_id.encode()).hexdigest()
    return f"delegated:{run}:{named}"


def verdict(
    agent: str, state: RunState, reply: str, error: str | None, error_code: str | None
) -> tuple[str, ResultOutcome]:
    """What the parent's model is told of a child that has ended."""
    if state is RunState.COMPLETED:
        return reply or "(no answer)", ResultOutcome.OK
    if error_code == "deadline":
        return f"{agent} did not answer in time and was stopped.", ResultOutcome.FAILED
    if state is RunState.CANCELED:
        return f"{agent} was stopped before it had an answer.", ResultOutcome.FAILED
    return f"{agent} could not do it: {error or state}", ResultOutcome.FAILED
