"""The turn: its machine, and its next step decided from what has committed, so that any replica may take it up at any point.

A turn's state is kept in no column: it follows from the run's messages, tool calls, approvals and children. `state_of` derives it, `next_step`
decides, and whoever drives the turn moves the machine with each commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Protocol

from stratus.domain.machine import Machine
from stratus.domain.refusal import OutcomeUnknown, Refusal
from stratus.domain.tool_call import TOOL_CALL, CallState
from stratus.domain.values import Message, ToolCallPart, ToolResultPart


@unique
class TurnState(StrEnum):
    """Where a turn stands. The comment says what moves it on."""

    REQUESTING = "requesting"  # the model's next message
    CALLING = "calling"  # the next call of the model's message
    ACTING = "acting"  # the end of the tool's work; after a lost lease the next attempt
    PARKED = "parked"  # the last answer or child, then a claim
    ANSWERED = "answered"  # the finish
    ENDED = "ended"


@unique
class TurnEvent(StrEnum):
    """What moves a turn; each is one commit under the lease's fence, but `take_up`, which is a claim."""

    STEER = "steer"
    PROPOSE = "propose"
    ANSWER = "answer"
    INTEND = "intend"
    REFUSE = "refuse"
    READ = "read"
    RESULT = "result"
    SETTLE = "settle"
    PARK = "park"
    TAKE_UP = "take_up"
    FINISH = "finish"
    BREAK_OFF = "break_off"


_R, _C, _A, _P = TurnState.REQUESTING, TurnState.CALLING, TurnState.ACTING, TurnState.PARKED

TURN: Machine[TurnState, TurnEvent] = Machine(
    name="turn",
    table="",
    states=TurnState,
    initial=frozenset({_R}),
    moves={
        (_R, TurnEvent.STEER): _R,
        (_R, TurnEvent.PROPOSE): _C,
        (_R, TurnEvent.ANSWER): TurnState.ANSWERED,
        (_C, TurnEvent.INTEND): _A,
        (_C, TurnEvent.REFUSE): _C,
        (_C, TurnEvent.READ): _C,
        (_C, TurnEvent.SETTLE): _R,
        (_C, TurnEvent.PARK): _P,
        (_A, TurnEvent.RESULT): _C,
        (_A, TurnEvent.INTEND): _A,
        (_P, TurnEvent.TAKE_UP): _C,
        (TurnState.ANSWERED, TurnEvent.FINISH): TurnState.ENDED,
        (_R, TurnEvent.BREAK_OFF): TurnState.ENDED,
        (_C, TurnEvent.BREAK_OFF): TurnState.ENDED,
        (_A, TurnEvent.BREAK_OFF): TurnState.ENDED,
        (_P, TurnEvent.BREAK_OFF): TurnState.ENDED,
        (TurnState.ANSWERED, TurnEvent.BREAK_OFF): TurnState.ENDED,
    },
    columns={},
)


@dataclass(frozen=True)
class CallFact:
    """What is known of a proposed call. `repeatable` says that it may run again after it was lost; `child_open` is for a delegation."""

    state: CallState
    repeatable: bool = False
    child_open: bool | None = None

    @property
    def ended(self) -> bool:
        """Whether it has its outcome."""
        return str(self.state) in TOOL_CALL.terminal()


class Rules(Protocol):
    """What an agent's policy says of a call, by the name that the model used."""

    def refusal(self, call: ToolCallPart) -> Refusal | None:
        """Why the call cannot be carried out at all, if so."""

    def gated(self, call: ToolCallPart) -> bool:
        """Whether a person has to allow it."""

    def delegates(self, call: ToolCallPart) -> bool:
        """Whether another agent carries it out, as a child."""


@dataclass(frozen=True)
class RequestModel:
    """Make a model request over the history."""


@dataclass(frozen=True)
class RunCall:
    """Commit the intent, let the tool act, commit the result. `approved` uses up the call's approval."""

    call: ToolCallPart
    approved: bool


@dataclass(frozen=True)
class EndCall:
    """The call ends without (another) run of its tool, for this reason."""

    call: ToolCallPart
    why: Refusal


@dataclass(frozen=True)
class ReadChild:
    """The child has ended: its outcome is the call's."""

    call: ToolCallPart


@dataclass(frozen=True)
class Park:
    """Give the lease back: `asks` are to be approved, `starts` to be begun as children, `waits` are open."""

    asks: Sequence[ToolCallPart] = ()
    starts: Sequence[ToolCallPart] = ()
    waits: Sequence[ToolCallPart] = ()


@dataclass(frozen=True)
class Settle:
    """Every call has its outcome: write the one message that answers them all."""

    calls: Sequence[ToolCallPart]


@dataclass(frozen=True)
class Finish:
    """The last message is the answer."""

    answer: Message


NextStep = RequestModel | RunCall | EndCall | ReadChild | Park | Settle | Finish


def state_of(said: Sequence[Message], facts: Mapping[str, CallFact]) -> TurnState:
    """Where a turn stands when it is claimed, from the messages of its run in order and the facts of its calls."""
    if not said or said[-1].role != "assistant":
        return TurnState.REQUESTING
    calls = said[-1].calls()
    if not calls:
        return TurnState.ANSWERED
    return TurnState.ACTING if any(_acting(facts.get(call.call_id)) for call in calls) else TurnState.CALLING


def next_step(said: Sequence[Message], facts: Mapping[str, CallFact], rules: Rules) -> NextStep:
    """What is to be done now. The calls of one message are carried out in order, but neighbouring delegations run side by side."""
    if not said or said[-1].role != "assistant":
        return RequestModel()
    calls = said[-1].calls()
    if not calls:
        return Finish(said[-1])
    for index, call in enumerate(calls):
        fact = facts[call.call_id]
        if not fact.ended:
            return _step_of(call, fact, calls[index:], facts, rules)
    return Settle(calls)


def answered(calls: Sequence[ToolCallPart], results: Sequence[ToolResultPart]) -> Message:
    """The message that answers every call once, in the order of the calls."""
    by_id = {result.call_id: result for result in results}
    return Message(role="tool", parts=[by_id[call.call_id] for call in calls])


def _acting(fact: CallFact | None) -> bool:
    return fact is not None and fact.state is CallState.STARTED and fact.child_open is None


def _step_of(
    call: ToolCallPart,
    fact: CallFact,
    rest: Sequence[ToolCallPart],
    facts: Mapping[str, CallFact],
    rules: Rules,
) -> NextStep:
    if fact.state is CallState.STARTED:
        return _started(call, fact, rest, facts)
    if fact.state is CallState.AWAITING:
        return Park(waits=[one for one in rest if facts[one.call_id].state is CallState.AWAITING])
    why = rules.refusal(call)
    if why is not None:
        return EndCall(call, why)
    if fact.state is CallState.PROPOSED and rules.gated(call):
        return Park(asks=[one for one in rest if _to_be_asked(one, facts, rules)])
    if rules.delegates(call):
        return Park(starts=_side_by_side(rest, facts, rules))
    return RunCall(call, approved=fact.state is CallState.APPROVED)


def _started(
    call: ToolCallPart, fact: CallFact, rest: Sequence[ToolCallPart], facts: Mapping[str, CallFact]
) -> NextStep:
    if fact.child_open:
        return Park(waits=[one for one in rest if facts[one.call_id].child_open])
    if fact.child_open is False:
        return ReadChild(call)
    return RunCall(call, approved=False) if fact.repeatable else EndCall(call, OutcomeUnknown())


def _to_be_asked(call: ToolCallPart, facts: Mapping[str, CallFact], rules: Rules) -> bool:
    return facts[call.call_id].state is CallState.PROPOSED and rules.refusal(call) is None and rules.gated(call)


def _side_by_side(rest: Sequence[ToolCallPart], facts: Mapping[str, CallFact], rules: Rules) -> list[ToolCallPart]:
    """The first call and those right behind it that may begin at the same time."""
    together = []
    for call in rest:
        state = facts[call.call_id].state
        free = state is CallState.APPROVED or (state is CallState.PROPOSED and not rules.gated(call))
        if not free or not rules.delegates(call) or rules.refusal(call) is not None:
            break
        together.append(call)
    return together
