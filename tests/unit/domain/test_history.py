"""A history is fit for a provider whatever was broken off, and what to do next follows from it alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratus.domain.history import repaired
from stratus.domain.values import Message, Part, ResultOutcome, TextPart, ToolCallPart, ToolResultPart

TEXT = TextPart(text="x")
CALL_IDS = st.lists(st.sampled_from("abcd"), unique=True, max_size=3)


def result(call_id: str) -> ToolResultPart:
    return ToolResultPart(call_id=call_id, name="t", content="1")


def calls(*call_ids: str) -> Message:
    return Message(role="assistant", parts=[TEXT, *(ToolCallPart(call_id=one, name="t") for one in call_ids)])


def results(*call_ids: str) -> Message:
    parts: list[Part] = [result(one) for one in call_ids]
    return Message(role="tool", parts=parts)


MESSAGES = st.lists(
    st.one_of(
        st.just(Message(role="user", parts=[TEXT])),
        CALL_IDS.map(lambda ids: calls(*ids)),
        CALL_IDS.map(lambda ids: results(*ids)),
    ),
    max_size=8,
)


@given(MESSAGES)
def test_every_call_is_answered_once_right_after_it_and_nothing_else_is(messages: list[Message]) -> None:
    good = repaired(messages)
    for message, following in zip(good, [*good[1:], None][: len(good)], strict=True):
        asked = [call.call_id for call in message.calls()] if message.role == "assistant" else []
        if asked:
            assert following is not None and following.role == "tool"
            assert [part.call_id for part in following.parts if isinstance(part, ToolResultPart)] == asked
        else:
            assert following is None or following.role != "tool"
    assert not good or good[0].role != "tool"


@given(MESSAGES)
def test_a_good_history_stays_as_it_is(messages: list[Message]) -> None:
    assert repaired(repaired(messages)) == repaired(messages)


@given(MESSAGES)
def test_no_word_is_lost(messages: list[Message]) -> None:
    kept = [message for message in repaired(messages) if message.role != "tool"]
    assert kept == [message for message in messages if message.role != "tool"]


def test_what_is_not_known_is_said_to_be_interrupted() -> None:
    [_, answer] = repaired([calls("a")])
    [part] = answer.parts
    assert isinstance(part, ToolResultPart) and part.outcome is ResultOutcome.INTERRUPTED
