"""The provider seam against the fake model, over real HTTP and the real SDKs: streaming, tools, replay."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from stratus.agents.convert import from_provider, to_provider
from stratus.agents.model import (
    Alive,
    ModelDone,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
)
from stratus.agents.providers import ProviderModel
from stratus.domain.agent import AgentDefinition
from stratus.domain.values import (
    FilePart,
    Message,
    ResultOutcome,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    Usage,
)
from tests.contract.provider_bench import ADD, MODELS, WIRES, Bench, opened, result_of, stored, user


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with opened() as made:
        yield made


@pytest.mark.parametrize("wire", WIRES)
async def test_text_streams_and_ends_with_the_message(bench: Bench, wire: str) -> None:
    bench.fake.script({"text": "The answer is forty-two."}, chunk=5)
    events = await bench.ask(wire, user("What is it?"))
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(event.text for event in deltas) == "The answer is forty-two."
    assert len(deltas) > 3
    done = events[-1]
    assert isinstance(done, ModelDone)
    assert [event for event in events if isinstance(event, ModelDone)] == [done]
    assert (done.message.role, done.message.text(), done.stop) == ("assistant", "The answer is forty-two.", "end")
    assert {event.part for event in deltas} == {0}
    assert done.usage.requests == 1
    assert (done.usage.input_tokens or 0) > 0
    assert (done.usage.output_tokens or 0) > 0
    call = bench.fake.calls[0]
    assert (call.call.wire, call.call.system, call.call.model) == (wire, "Be brief.", MODELS[wire])
    assert call.key == ("key-a" if wire == "anthropic" else "key-o")


@pytest.mark.parametrize("wire", WIRES)
async def test_thinking_text_and_call_have_the_indices_of_the_message(bench: Bench, wire: str) -> None:
    bench.fake.script(
        {"thinking": "Let me add.", "text": "Adding.", "tool": {"name": "add", "args": {"a": 2, "b": 3}}}, chunk=4
    )
    events = await bench.ask(wire, user("2+3?"), tools=[ADD])
    done = events[-1]
    assert isinstance(done, ModelDone)
    assert done.stop == "tool_use"
    kinds = {TextDelta: TextPart, ThinkingDelta: ThinkingPart, ToolCallDelta: ToolCallPart}
    heard: dict[int, str] = {}
    for event in events[:-1]:
        assert not isinstance(event, ModelDone | Alive)
        assert isinstance(done.message.parts[event.part], kinds[type(event)])
        heard[event.part] = heard.get(event.part, "") + (event.args if isinstance(event, ToolCallDelta) else event.text)
    for index, part in enumerate(done.message.parts):
        if isinstance(part, ToolCallPart):
            assert heard[index] == part.args
        elif isinstance(part, TextPart | ThinkingPart) and part.text:
            assert heard[index] == part.text
    [call] = done.message.calls()
    assert (call.name, call.args) == ("add", '{"a": 2, "b": 3}')
    assert bench.fake.calls[0].call.tools == ("add",)


async def test_anthropic_hears_its_own_blocks_again(bench: Bench) -> None:
    bench.fake.script(
        {
            "thinking": "Let me add.",
            "text": "Adding.",
            "tool": {"name": "add", "args": {"a": 2, "b": 3}, "id": "toolu_x"},
        },
        {"text": "5"},
    )
    said = stored((await bench.answer("anthropic", user("2+3?"), tools=[ADD])).message)
    done = await bench.answer("anthropic", user("2+3?"), said, result_of(said), tools=[ADD])
    assert done.message.text() == "5"
    assert bench.body()["messages"][1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Let me add.", "signature": "fake-signature"},
            {"type": "text", "text": "Adding."},
            {"type": "tool_use", "id": "toolu_x", "name": "add", "input": {"a": 2, "b": 3}},
        ],
    }
    [result] = bench.body()["messages"][2]["content"]
    assert (result["type"], result["tool_use_id"], result["is_error"]) == ("tool_result", "toolu_x", False)
    assert result["content"] == [{"type": "text", "text": "5"}]


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses"])
async def test_openai_hears_its_own_calls_again(bench: Bench, wire: str) -> None:
    bench.fake.script(
        {
            "thinking": "Let me add.",
            "text": "Adding.",
            "tool": {"name": "add", "args": {"a": 2, "b": 3}, "id": "call_x"},
        },
        {"text": "5"},
    )
    said = stored((await bench.answer(wire, user("2+3?"), tools=[ADD])).message)
    done = await bench.answer(wire, user("2+3?"), said, result_of(said), tools=[ADD])
    assert done.message.text() == "5"
    assert "call_x" in str(bench.body())
    if wire == "openai-chat":
        assistant = next(item for item in bench.body()["messages"] if item["role"] == "assistant")
        assert assistant["content"] == "Adding."
        assert assistant["reasoning_content"] == "Let me add."
    else:
        assert bench.body()["store"] is False
        reasoning = next(item for item in bench.body()["input"] if item.get("type") == "reasoning")
        assert reasoning["summary"] == [{"type": "summary_text", "text": "Let me add."}]
        assert "reasoning.encrypted_content" in bench.body()["include"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stored_conversation_sends_the_same_bytes_as_one_never_stored(bench: Bench, wire: str) -> None:
    from pydantic_ai import direct
    from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
    from pydantic_ai.messages import ModelRequest as ApiRequest

    bench.fake.script(
        {
            "thinking": "Hm.",
            "text": "Adding.",
            "tools": [{"name": "add", "args": '{"a": 1'}, {"name": "add", "args": {"a": 1}}],
        }
    )
    model = bench.pool.get(AgentDefinition(id="a", model=f"{wire}:{MODELS[wire]}"))
    assert isinstance(model, ProviderModel)
    api = model._made()
    settings: Any = {"openai_store": False} if wire == "openai-responses" else None
    question = ApiRequest(parts=[UserPromptPart("2+3?")], instructions="Be brief.")
    async with direct.model_request_stream(api, [question], model_settings=settings) as stream:
        _ = [event async for event in stream]
        native = stream.get()
    ours = stored(from_provider(native))
    results = [ToolReturnPart(call.tool_name, "5", call.tool_call_id) for call in native.tool_calls]
    kept: list[ModelMessage] = [question, native, ApiRequest(parts=results, instructions="Be brief.")]
    replayed = to_provider("Be brief.", [user("2+3?"), ours, result_of(ours)])
    bodies = []
    for messages in (kept, replayed):
        async with direct.model_request_stream(api, messages, model_settings=settings) as stream:
            _ = [event async for event in stream]
        bodies.append(bench.body())
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("wire", WIRES)
async def test_arguments_that_are_no_json_are_kept_as_text(bench: Bench, wire: str) -> None:
    bench.fake.script({"tool": {"name": "add", "args": '{"a": 2, "b"'}}, {"text": "sorry"})
    said = stored((await bench.answer(wire, user("2+3?"), tools=[ADD])).message)
    assert said.calls()[0].args == '{"a": 2, "b"'
    failed = result_of(said, "not valid JSON", ResultOutcome.FAILED)
    assert (await bench.answer(wire, user("2+3?"), said, failed, tools=[ADD])).message.text() == "sorry"
    if wire == "anthropic":
        assert bench.body()["messages"][2]["content"][0]["is_error"] is True


@pytest.mark.parametrize("wire", WIRES)
async def test_files_go_where_the_provider_takes_them(bench: Bench, wire: str) -> None:
    def file(name: str, mime: str, data: bytes) -> FilePart:
        return FilePart(name=name, mime=mime, data=base64.b64encode(data).decode())

    message = Message(
        role="user",
        parts=[
            TextPart(text=""),
            file("a.png", "image/png", b"\x89PNG"),
            file("b.txt", "text/plain; charset=utf-8", b"plain words"),
            file("c.zip", "application/zip", b"PK"),
            FilePart(name="d.png", mime="image/png", data="not base64!"),
        ],
    )
    await bench.answer(wire, message)
    sent = str(bench.body())
    assert base64.b64encode(b"\x89PNG").decode() in sent
    assert "plain words" in sent
    assert "c.zip (application/zip, 2 bytes): its content cannot be shown" in sent
    assert "d.png (image/png" in sent


@pytest.mark.parametrize("wire", WIRES)
async def test_an_empty_message_and_an_empty_result_are_sent_all_the_same(bench: Bench, wire: str) -> None:
    bench.fake.script({"tool": {"name": "add"}}, {"text": "ok"})
    said = (await bench.answer(wire, user(""), tools=[ADD])).message
    assert (await bench.answer(wire, user(""), said, result_of(said, ""), tools=[ADD])).message.text() == "ok"


@pytest.mark.parametrize("wire", WIRES)
async def test_tokens_cache_and_cost_are_told(bench: Bench, wire: str) -> None:
    bench.fake.script({"text": "hello", "cached": 8}, {"text": "hello"}, match="count")
    usage = (await bench.answer(wire, user("count this"))).usage
    assert usage.input_tokens and usage.output_tokens and usage.cost
    assert Decimal(usage.cost) > 0
    assert (usage.cache_read_tokens, usage.requests, usage.unreported, usage.unpriced) == (8, 1, 0, 0)
    full = (await bench.answer(wire, user("count this"), user("count that"))).usage
    assert full.cache_read_tokens is None, "not reported, not zero"


async def test_a_server_that_does_not_count_has_not_used_zero(bench: Bench) -> None:
    bench.fake.script({"text": "hello", "counted": False})
    assert (await bench.answer("openai-chat", user("hi"))).usage == Usage.unknown()
