"""Why a tool call ends without its tool's own answer: one class for each reason, with the sentence that the model is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratus.domain.tool_call import CallEvent, CallState
from stratus.domain.values import ResultOutcome


@dataclass(frozen=True)
class Refusal:
    """A reason. `event` is how the call's row ends, `outcome` what the model's result says."""

    event: ClassVar[CallEvent] = CallEvent.FAIL
    outcome: ClassVar[ResultOutcome] = ResultOutcome.FAILED

    @property
    def text(self) -> str:
        """The sentence for the model."""
        raise NotImplementedError


@dataclass(frozen=True)
class UnknownTool(Refusal):
    """The agent has no such tool: the model made it up, or it has been taken away since."""

    name: str

    @property
    def text(self) -> str:
        """See Refusal."""
        return f"There is no tool {self.name!r} here."


@dataclass(frozen=True)
class OutcomeUnknown(Refusal):
    """The process that ran the call was lost, and the call may not be repeated."""

    event: ClassVar[CallEvent] = CallEvent.LOSE
    outcome: ClassVar[ResultOutcome] = ResultOutcome.UNKNOWN

    @property
    def text(self) -> str:
        """See Refusal."""
        return "The process that ran this call was lost; whether it had any effect is not known. It was not run again."


@dataclass(frozen=True)
class ArgumentsChanged(Refusal):
    """What was approved is not what would be called."""

    @property
    def text(self) -> str:
        """See Refusal."""
        return "The arguments of this call are not those that were approved. It was not made."


@dataclass(frozen=True)
class UnknownAgent(Refusal):
    """The agent may not delegate to that one."""

    agent: str
    allowed: tuple[str, ...]

    @property
    def text(self) -> str:
        """See Refusal."""
        return f"I may not delegate to {self.agent!r}. I may to: {', '.join(self.allowed) or 'nobody'}."


@dataclass(frozen=True)
class BadDelegation(Refusal):
    """The arguments do not describe a delegation."""

    problem: str

    @property
    def text(self) -> str:
        """See Refusal."""
        return f"The arguments of delegate are not valid. {self.problem}"


@dataclass(frozen=True)
class TooDeep(Refusal):
    """The run is itself so many delegations away from a person that it may not delegate further."""

    limit: int

    @property
    def text(self) -> str:
        """See Refusal."""
        return f"Delegations may be {self.limit} deep, and this agent works at that depth already."


@dataclass(frozen=True)
class TooManyChildren(Refusal):
    """The turn has delegated as often as it may."""

    limit: int

    @property
    def text(self) -> str:
        """See Refusal."""
        return f"One turn may delegate {self.limit} times, and this one has."


def ended_by_others(state: CallState, by: str | None, note: str | None) -> tuple[str, ResultOutcome]:
    """The result of a call that a person or time has ended: its sentence and outcome."""
    if state is CallState.DENIED:
        said = f" They said: {note}" if note else ""
        return f"{by or 'A person'} did not allow this call. It was not made.{said}", ResultOutcome.DENIED
    if state is CallState.EXPIRED:
        return "Nobody answered in time whether this call is allowed. It was not made.", ResultOutcome.EXPIRED
    return "This call was interrupted; whether it had any effect is not known.", ResultOutcome.INTERRUPTED
