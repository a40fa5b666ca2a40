"""Shortening a history: for any history, what is left is fit to send, ends as before, and says what is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratus.domain.compaction import cut, next_cut
from stratus.domain.history import repaired
from stratus.domain.values import FilePart, Message, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

TEXTS = st.text(alphabet="ab ", max_size=40)


def user(text: str) -> Message:
    return Message(role="user", parts=[TextPart(text=text)])


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    """Any order of roles, as faults and interruptions may leave it."""
    made = []
    for n in range(draw(st.integers(0, 14))):
        role = draw(st.sampled_from(["user", "assistant", "tool"]))
        ids = [f"c{n}.{i}" for i in range(draw(st.integers(0, 2)))]
        if role == "user":
            made.append(user(draw(TEXTS)))
        elif role == "assistant":
            calls: list[Part] = [ToolCallPart(call_id=one, name="t", args=draw(TEXTS)) for one in ids]
            made.append(Message(role="assistant", parts=[ThinkingPart(text=draw(TEXTS)), *calls]))
        else:
            earlier = [call for message in made for call in message.calls()]
            results = [ToolResultPart(call_id=call.call_id, name="t", content=draw(TEXTS)) for call in earlier[-2:]]
            made.append(Message(role="tool", parts=results))
    return made


@given(messages(), messages())
def test_every_cut_leaves_a_history_that_is_fit_to_send(older: list[Message], turn: list[Message]) -> None:
    before = repaired(older)
    history = [*before, *repaired([user("the present question"), *turn])]
    left_out, cuts = 0, 0
    while (further := next_cut(history, len(before), left_out)) is not None:
        assert left_out < further <= len(before)
        left_out, cuts = further, cuts + 1
        short = cut(history, left_out)
        assert repaired(short) == short, "no call without its result, no result without its call"
        assert short[-len(history) + len(before) :] == history[len(before) :], "the present turn is whole"
        assert short[0].role == short[1].role == "user"
        assert f"first {left_out} message" in short[0].text()
        assert len(short) - 1 + left_out == len(history)
    assert left_out == len(before)
    assert cuts <= 12, "each cut takes half of what there is"


@given(messages())
def test_a_cut_takes_half_and_no_more_turns_than_that_needs(older: list[Message]) -> None:
    before = repaired(older)
    history = [*before, user("the present question")]
    further = next_cut(history, len(before))
    if further is None:
        assert before == []
        return

    def weight(some: list[Message]) -> int:
        return sum(
            1 + sum(len(str(getattr(part, name, ""))) for part in one.parts for name in ("text", "args", "content"))
            for one in some
        )

    assert weight(before[further:]) * 2 <= weight(before)
    starts = [at for at in range(1, further) if before[at].role == "user"]
    if starts:
        assert weight(before[starts[-1] :]) * 2 > weight(before)


def test_nothing_left_out_is_the_history_itself() -> None:
    assert cut([user("a")], 0) == [user("a")]
    assert next_cut([user("a")], 0) is None
    assert next_cut([], 0) is None


def test_a_picture_does_not_weigh_what_its_bytes_do() -> None:
    picture = Message(role="user", parts=[FilePart(name="p", mime="image/png", data="A" * 1_000_000)])
    history = [picture, user("x" * 30_000), user("now")]
    assert next_cut(history, 2) == 2, "the text is more than half"
