"""A turn's next step follows from what has committed: no call acts twice, none is left out, and every broken-off turn goes on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from stratus.domain.refusal import OutcomeUnknown, Refusal, UnknownTool
from stratus.domain.tool_call import TOOL_CALL, CallEvent, CallState
from stratus.domain.turn import (
    TURN,
    CallFact,
    EndCall,
    Finish,
    Park,
    ReadChild,
    RequestModel,
    RunCall,
    Settle,
    TurnEvent,
    TurnState,
    answered,
    next_step,
    state_of,
)
from stratus.domain.values import Message, Part, TextPart, ToolCallPart, ToolResultPart

USER = Message(role="user", parts=[TextPart(text="x")])
ANSWER = Message(role="assistant", parts=[TextPart(text="y")])


def call(name: str, n: int) -> ToolCallPart:
    return ToolCallPart(call_id=f"{name}-{n}", name=name)


def asking(*names: str) -> Message:
    parts: list[Part] = [call(name, n) for n, name in enumerate(names)]
    return Message(role="assistant", parts=parts)


class Policy:
    """Tools by name: `read` and `once` act, `gated` asks first, `child` delegates, `gated_child` both, anything else is unknown."""

    def refusal(self, call: ToolCallPart) -> Refusal | None:
        known = call.name in ("read", "once", "gated", "child", "gated_child")
        return None if known else UnknownTool(call.name)

    def gated(self, call: ToolCallPart) -> bool:
        return call.name.startswith("gated")

    def delegates(self, call: ToolCallPart) -> bool:
        return call.name.endswith("child")


def facts(message: Message, *states: CallState) -> dict[str, CallFact]:
    return {
        one.call_id: CallFact(state, one.name == "read") for one, state in zip(message.calls(), states, strict=True)
    }


P, A, OK, S, D = CallState.PROPOSED, CallState.AWAITING, CallState.APPROVED, CallState.STARTED, CallState.DONE


def step_for(message: Message, *states: CallState) -> object:
    return next_step([USER, message], facts(message, *states), Policy())


def test_without_calls_the_model_is_asked_or_the_turn_is_over() -> None:
    assert next_step([USER], {}, Policy()) == RequestModel()
    assert next_step([USER, ANSWER], {}, Policy()) == Finish(ANSWER)
    told = [USER, asking("read"), Message(role="tool", parts=[]), Message(role="user", parts=[])]
    assert next_step(told, {}, Policy()) == RequestModel(), "a message that steers is part of the turn"


def test_calls_are_carried_out_in_order() -> None:
    message = asking("read", "once")
    first, second = message.calls()
    assert step_for(message, P, P) == RunCall(first, approved=False)
    assert step_for(message, D, P) == RunCall(second, approved=False)
    assert step_for(message, D, CallState.FAILED) == Settle([first, second])


def test_a_lost_call_runs_again_only_where_that_does_no_harm() -> None:
    assert step_for(asking("read"), S) == RunCall(call("read", 0), approved=False)
    assert step_for(asking("once"), S) == EndCall(call("once", 0), OutcomeUnknown())


def test_an_unknown_tool_is_refused_before_anybody_is_asked() -> None:
    assert step_for(asking("gated_unknown"), P) == EndCall(call("gated_unknown", 0), UnknownTool("gated_unknown"))


def test_all_questions_of_a_message_are_asked_at_once_and_none_twice() -> None:
    message = asking("gated", "read", "gated")
    first, _, third = message.calls()
    assert step_for(message, P, P, P) == Park(asks=[first, third])
    assert step_for(message, A, P, OK) == Park(waits=[first])
    assert step_for(message, OK, P, OK) == RunCall(first, approved=True)
    assert step_for(message, CallState.DENIED, D, OK) == RunCall(third, approved=True)


def test_what_stands_before_a_question_is_done_first() -> None:
    message = asking("once", "gated")
    assert step_for(message, P, P) == RunCall(call("once", 0), approved=False)


def test_neighbouring_delegations_begin_together() -> None:
    message = asking("child", "child", "read", "child")
    first, second, *_ = message.calls()
    assert step_for(message, P, P, P, P) == Park(starts=[first, second])
    gated = asking("child", "gated_child", "child")
    assert step_for(gated, P, P, P) == Park(starts=[gated.calls()[0]])
    assert step_for(gated, D, OK, P) == Park(starts=gated.calls()[1:])


def test_a_child_is_waited_for_and_then_read() -> None:
    message = asking("child", "child")
    first, second = message.calls()
    both_open = {one.call_id: CallFact(S, child_open=True) for one in message.calls()}
    assert next_step([USER, message], both_open, Policy()) == Park(waits=[first, second])
    one_open = {**both_open, first.call_id: CallFact(S, child_open=False)}
    assert next_step([USER, message], one_open, Policy()) == ReadChild(first)


def test_a_claim_finds_where_the_turn_stands() -> None:
    message = asking("once", "read")
    assert state_of([USER], {}) is TurnState.REQUESTING
    assert state_of([USER, message], facts(message, D, S)) is TurnState.ACTING
    assert state_of([USER, message], facts(message, D, P)) is TurnState.CALLING
    assert state_of([USER, ANSWER], {}) is TurnState.ANSWERED
    waiting = {one.call_id: CallFact(S, child_open=True) for one in message.calls()}
    assert state_of([USER, message], waiting) is TurnState.CALLING


@dataclass
class World:
    """What is committed of a turn, and how often each call acted; `crash` says before which commits the process is lost."""

    script: list[Message]
    crashes: set[int]
    said: list[Message] = field(default_factory=lambda: [USER])
    calls: dict[str, CallFact] = field(default_factory=dict)
    acted: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    state: TurnState = TurnState.REQUESTING

    def commit(self, event: TurnEvent) -> bool:
        """Whether the process lives to see this commit; one that is lost is claimed again."""
        self.commits += 1
        if self.commits in self.crashes:
            self.state = state_of(self.said, self.calls)
            return False
        self.state = TURN.after(self.state, event)
        return True

    def move(self, call: ToolCallPart, event: CallEvent, child_open: bool | None = None) -> None:
        fact = self.calls[call.call_id]
        self.calls[call.call_id] = replace(fact, state=TOOL_CALL.after(fact.state, event), child_open=child_open)

    def end(self, event: CallEvent, call: ToolCallPart, moved: TurnEvent) -> None:
        if self.commit(moved):
            self.move(call, event)

    def drive(self) -> Message:
        for _ in range(200):
            step = next_step(self.said, self.calls, Policy())
            if isinstance(step, Finish):
                if self.state is not TurnState.ANSWERED:
                    self.state = state_of(self.said, self.calls)
                return step.answer
            self.take(step)
        raise AssertionError("the turn does not end")

    def take(self, step: object) -> None:
        if isinstance(step, RequestModel):
            message = self.script[sum(one.role == "assistant" for one in self.said)]
            if self.commit(TurnEvent.PROPOSE if message.calls() else TurnEvent.ANSWER):
                self.said.append(message)
                self.calls |= {one.call_id: CallFact(P, one.name == "read") for one in message.calls()}
        elif isinstance(step, RunCall):
            self.run(step.call)
        elif isinstance(step, EndCall):
            acting = self.state is TurnState.ACTING
            self.end(step.why.event, step.call, TurnEvent.RESULT if acting else TurnEvent.REFUSE)
        elif isinstance(step, ReadChild):
            self.end(CallEvent.SUCCEED, step.call, TurnEvent.READ)
        elif isinstance(step, Settle):
            results = [ToolResultPart(call_id=one.call_id, name=one.name, content="") for one in step.calls]
            if self.commit(TurnEvent.SETTLE):
                self.said.append(answered(step.calls, results))
        elif isinstance(step, Park):
            self.park(step)

    def run(self, call: ToolCallPart) -> None:
        if self.commit(TurnEvent.INTEND):
            self.move(call, CallEvent.START)
            self.acted[call.call_id] = self.acted.get(call.call_id, 0) + 1
            self.end(CallEvent.SUCCEED, call, TurnEvent.RESULT)

    def park(self, step: Park) -> None:
        if not self.commit(TurnEvent.PARK):
            return
        for one in step.asks:  # the people answer, and the children end, while nobody holds the lease
            self.move(one, CallEvent.ASK)
            self.move(one, CallEvent.APPROVE)
        for one in step.starts:
            self.move(one, CallEvent.START, child_open=False)
        self.state = TURN.after(self.state, TurnEvent.TAKE_UP)


NAMES = st.lists(st.sampled_from(["read", "once", "gated", "child", "gated_child", "made_up"]), min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(NAMES, max_size=3), st.sets(st.integers(1, 30), max_size=8))
def test_a_turn_that_is_lost_anywhere_ends_the_same_way(script: list[list[str]], crashes: set[int]) -> None:
    messages = []
    for round_, names in enumerate(script):
        parts: list[Part] = [call(f"{name}", 10 * round_ + n) for n, name in enumerate(names)]
        messages.append(Message(role="assistant", parts=parts))
    world = World([*messages, ANSWER], crashes)
    assert world.drive() == ANSWER
    assert [one for one in world.said if one.role == "assistant"] == [*messages, ANSWER]
    for call_id, times in world.acted.items():
        assert times == 1 or call_id.startswith("read"), f"{call_id} acted {times} times"
    for fact in world.calls.values():
        assert fact.ended
