"""The demo model: each directive shows its path, and the same request gives the same events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratus.agents.demo import DemoModel
from stratus.agents.model import ModelDone, ModelError, ModelEvent, ModelRequest, TextDelta, ThinkingDelta, ToolSpec
from stratus.domain.values import Message, ResultOutcome, TextPart, ThinkingPart, ToolResultPart
from stratus.effects import Clock

TIME = ToolSpec("current_time", "The time.", {"type": "object", "properties": {}}, "read")


class Sleeps(Clock):
    """Takes no time, remembers how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def user(text: str) -> Message:
    return Message(role="user", parts=[TextPart(text=text)])


async def ask(*messages: Message, tools: Sequence[ToolSpec] = (), clock: Clock | None = None) -> list[ModelEvent]:
    async with DemoModel(clock or Sleeps()).stream(ModelRequest("soul", messages, tools)) as events:
        return [event async for event in events]


async def answer(*messages: Message, tools: Sequence[ToolSpec] = ()) -> ModelDone:
    done = (await ask(*messages, tools=tools))[-1]
    assert isinstance(done, ModelDone)
    return done


async def test_echoes_word_by_word_and_says_how_to_get_a_real_model() -> None:
    clock = Sleeps()
    events = await ask(user("Hello there"), clock=clock)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    done = events[-1]
    assert isinstance(done, ModelDone)
    assert done.message.text() == "".join(event.text for event in deltas)
    assert len(deltas) > 20
    assert done.message.text().startswith("You said: Hello there")
    assert "demo model" in done.message.text()
    assert "ANTHROPIC_API_KEY" in done.message.text()
    assert (done.stop, done.usage.requests) == ("end", 1)
    assert clock.slept == []


async def test_the_same_request_gives_the_same_events() -> None:
    assert await ask(user("think slow 2 hi")) == await ask(user("think slow 2 hi"))


async def test_knows_how_many_messages_came_before() -> None:
    first = await answer(user("one"))
    assert "before this one" not in first.message.text()
    assert "You wrote 1 message before" in (await answer(user("one"), first.message, user("two"))).message.text()


@pytest.mark.parametrize("text", ["slow 5", "SLOW 5 hello", "think slow 5 hello"])
async def test_slow_takes_that_long(text: str) -> None:
    clock = Sleeps()
    await ask(user(text), clock=clock)
    assert sum(clock.slept) == pytest.approx(5)
    assert len(clock.slept) > 20


async def test_tool_calls_and_then_answers_with_the_result() -> None:
    asked = await answer(user("tool"), tools=[TIME])
    [call] = asked.message.calls()
    assert (call.name, asked.stop) == ("current_time", "tool_use")
    result = Message(role="tool", parts=[ToolResultPart(call_id=call.call_id, name=call.name, content="noon")])
    told = await answer(user("tool"), asked.message, result, tools=[TIME])
    assert (told.stop, told.message.text()) == ("end", "`current_time` answered: noon")
    again = await answer(user("tool"), asked.message, result, told.message, user("tool"), tools=[TIME])
    assert again.message.calls()[0].call_id != call.call_id


async def test_tool_without_the_tool_says_so() -> None:
    done = await answer(user("tool"))
    assert "not among this agent's tools" in done.message.text()
    assert done.stop == "end"


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ('call add {"a": {"b": 1}}', [[("add", '{"a": {"b": 1}}')]]),
        ("CALL add {} call current_time", [[("add", "{}"), ("current_time", "{}")]]),
        ('call add {"a": 1} then call mul {} tool', [[("add", '{"a": 1}')], [("mul", "{}"), ("current_time", "{}")]]),
        ('think call mcp:files/write_x {"a": "}"}', [[("mcp:files/write_x", '{"a": "}"}')]]),
        ('call add {"a": 1', [[("add", '{"a": 1')]]),
    ],
)
async def test_call_calls_any_tools_and_answers_with_their_results(
    text: str, rounds: list[list[tuple[str, str]]]
) -> None:
    history = [user(text)]
    for calls in rounds:
        said = await answer(*history, tools=[TIME])
        assert (said.stop, [(call.name, call.args) for call in said.message.calls()]) == ("tool_use", calls)
        results = [
            ToolResultPart(call_id=c.call_id, name=c.name, content=f"r{c.call_id}") for c in said.message.calls()
        ]
        history += [said.message, Message(role="tool", parts=results)]
    told = await answer(*history, tools=[TIME])
    calls_made = [call for message in history for call in message.calls()]
    assert len({call.call_id for call in calls_made}) == len(calls_made)
    assert told.stop == "end"
    assert told.message.text() == "\n\n".join(f"`{call.name}` answered: r{call.call_id}" for call in calls_made)


async def test_a_call_that_did_not_end_well_is_told_as_such() -> None:
    said = await answer(user("call add {}"))
    [call] = said.message.calls()
    denied = ToolResultPart(call_id=call.call_id, name="add", content="no", outcome=ResultOutcome.DENIED)
    told = await answer(user("call add {}"), said.message, Message(role="tool", parts=[denied]))
    assert told.message.text() == "`add` ended `denied`: no"


async def test_think_comes_first() -> None:
    events = await ask(user("think hello"))
    assert isinstance(events[0], ThinkingDelta)
    done = events[-1]
    assert isinstance(done, ModelDone)
    assert isinstance(done.message.parts[0], ThinkingPart)
    assert done.message.text().startswith("You said: hello")


async def test_fail_is_a_model_error_that_is_not_retried() -> None:
    with pytest.raises(ModelError) as caught:
        await ask(user("fail"))
    assert (caught.value.code, caught.value.retryable) == ("rejected", False)


@pytest.mark.parametrize("count", [1, 80, 5000])
async def test_long_has_that_many_characters(count: int) -> None:
    text = (await answer(user(f"long {count}"))).message.text()
    assert len(text) == count
    assert ("\n\n" in text) is (count > 1000)


async def test_markdown_has_a_list_and_a_fence() -> None:
    text = (await answer(user("markdown"))).message.text()
    assert "\n- " in text
    assert "```python" in text


@pytest.mark.parametrize(
    "text", ["slowly 5", "a tool", "long story", "slow x", "thinking", "call me later", "then what", "call {}", ""]
)
async def test_other_words_are_no_directives(text: str) -> None:
    assert (await answer(user(text))).message.text().startswith(f"You said: {text or '(nothing)'}\n")
