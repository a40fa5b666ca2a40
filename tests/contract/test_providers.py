"""The provider seam against the fake model, over real HTTP and the real SDKs: streaming, tools, replay, faults."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from stratus.agents.convert import from_provider, to_provider
from stratus.agents.model import (
    Model,
    ModelDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolSpec,
)
from stratus.agents.pool import ModelPool
from stratus.agents.providers import ProviderModel
from stratus.domain.agent import AgentDefinition
from stratus.domain.values import (
    FilePart,
    Message,
    ResultOutcome,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
)
from testbed.fakes.model import FakeModel
from testbed.fakes.server import FakeServer

WIRES = ["anthropic", "openai-chat", "openai-responses"]
MODELS = {"anthropic": "claude-sonnet-5-5", "openai-chat": "gpt-4o", "openai-responses": "gpt-5"}
ADD = ToolSpec(
    "add",
    "Adds.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)


@dataclass
class Bench:
    """A pool whose providers are the fake."""

    fake: FakeModel
    pool: ModelPool

    async def ask(
        self, wire: str, *messages: Message, tools: Sequence[ToolSpec] = (), **settings: Any
    ) -> list[ModelEvent]:
        model = self.pool.get(AgentDefinition(id="a", model=f"{wire}:{MODELS[wire]}"))
        async with model.stream(ModelRequest("Be brief.", messages, tools, settings)) as events:
            return [event async for event in events]

    async def answer(self, wire: str, *messages: Message, tools: Sequence[ToolSpec] = ()) -> ModelDone:
        done = (await self.ask(wire, *messages, tools=tools))[-1]
        assert isinstance(done, ModelDone)
        return done

    async def failure(self, wire: str) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.ask(wire, user("hi"))
        return caught.value

    def body(self) -> Mapping[str, Any]:
        return self.fake.calls[-1].call.body


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    fake = FakeModel()
    async with FakeServer(fake.app) as server:
        pool = ModelPool(
            {
                "ANTHROPIC_API_KEY": "key-a",
                "OPENAI_API_KEY": "key-o",
                "ANTHROPIC_BASE_URL": server.url,
                "OPENAI_BASE_URL": f"{server.url}/v1",
            }
        )
        yield Bench(fake, pool)
        await pool.close()


def user(text: str) -> Message:
    return Message(role="user", parts=[TextPart(text=text)])


def stored(message: Message) -> Message:
    """As it comes back from a row."""
    return Message.model_validate_json(message.model_dump_json())


def result_of(message: Message, content: str = "5", outcome: ResultOutcome = ResultOutcome.OK) -> Message:
    return Message(
        role="tool",
        parts=[
            ToolResultPart(call_id=call.call_id, name=call.name, content=content, outcome=outcome)
            for call in message.calls()
        ],
    )


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
        assert not isinstance(event, ModelDone)
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
    api = model._api()
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
@pytest.mark.parametrize(
    ("fault", "code", "retryable"),
    [
        (429, "rate_limited", True),
        (529, "overloaded", True),
        (503, "unavailable", True),
        (500, "unavailable", True),
        (401, "auth", False),
        (404, "not_found", False),
        (400, "rejected", False),
        (402, "quota", False),
        (408, "timeout", True),
        ("context", "context_overflow", False),
        ("cut", "connect", True),
    ],
)
async def test_a_fault_has_a_code_and_a_sentence(
    bench: Bench, wire: str, fault: int | str, code: str, retryable: bool
) -> None:
    bench.fake.fault(fault, times=None)
    error = await bench.failure(wire)
    assert (error.code, error.retryable) == (code, retryable), repr(error.__cause__)
    assert error.__cause__ is not None or fault == "cut"
    assert len(bench.fake.calls) == 1, "one attempt: retries have one owner"
    assert "key-" not in str(error)
    assert "127.0.0.1" not in str(error)
    assert str(error).endswith(".")


@pytest.mark.parametrize("wire", WIRES)
async def test_no_setting_makes_the_sdk_retry(bench: Bench, wire: str) -> None:
    bench.fake.fault(500, times=None)
    with pytest.raises(ModelError):
        await bench.ask(wire, user("hi"), max_retries=3)
    assert len(bench.fake.calls) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_the_provider_may_say_how_long_to_wait(bench: Bench, wire: str) -> None:
    bench.fake.fault(429, retry_after=7)
    assert (await bench.failure(wire)).retry_after == 7.0


@pytest.mark.parametrize("wire", WIRES)
async def test_what_came_before_a_cut_was_heard(bench: Bench, wire: str) -> None:
    bench.fake.fault("cut")
    heard: list[ModelEvent] = []
    model = bench.pool.get(AgentDefinition(id="a", model=f"{wire}:{MODELS[wire]}"))
    with pytest.raises(ModelError):
        async with model.stream(ModelRequest("", [user("a long text to be echoed, in several pieces")])) as events:
            async for event in events:
                heard.append(event)
    assert heard
    assert all(isinstance(event, TextDelta) for event in heard)


@pytest.mark.parametrize("other", ["openai-chat", "openai-responses"])
async def test_a_conversation_goes_on_with_another_provider(bench: Bench, other: str) -> None:
    bench.fake.script({"thinking": "Hm.", "text": "Adding.", "tool": {"name": "add", "args": {"a": 1}}}, {"text": "5"})
    said = stored((await bench.answer("anthropic", user("2+3?"), tools=[ADD])).message)
    assert (await bench.answer(other, user("2+3?"), said, result_of(said), tools=[ADD])).message.text() == "5"
    assert "fake-signature" not in str(bench.body())


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
FIRST_FRAMES: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": [],
         "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}},
    ],
    "openai-chat": [
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x",
         "choices": [{"index": 0, "delta": {"role": "assistant", "content": "one"}, "finish_reason": None}]},
    ],
}  # fmt: skip


async def _serve_frames(wire: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    frames = "".join(f"event: {frame.get('type', '')}\ndata: {json.dumps(frame)}\n\n" for frame in FIRST_FRAMES[wire])
    writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{frames}".encode())
    await writer.drain()


@pytest.mark.parametrize("wire", FIRST_FRAMES)
async def test_a_stream_that_ends_in_good_order_but_too_early_is_no_answer(wire: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve_frames(wire, reader, writer)
        writer.close()

    heard: list[ModelEvent] = []
    async with _served(wire, serve) as model:
        with pytest.raises(ModelError) as caught:
            async with model.stream(ModelRequest("", [user("go")])) as events:
                async for event in events:
                    heard.append(event)
    assert heard == [TextDelta(0, "one")]
    assert (caught.value.code, caught.value.retryable) == ("bad_response", True)


async def test_a_reason_to_stop_that_is_not_known_ends_the_answer_all_the_same() -> None:
    odd = {**FIRST_FRAMES["openai-chat"][0], "choices": [{"index": 0, "delta": {}, "finish_reason": "eos"}]}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve_frames("openai-chat", reader, writer)
        writer.write(f"data: {json.dumps(odd)}\n\ndata: [DONE]\n\n".encode())
        await writer.drain()
        writer.close()

    async with _served("openai-chat", serve) as model:
        async with model.stream(ModelRequest("", [user("go")])) as events:
            done = [event async for event in events][-1]
    assert isinstance(done, ModelDone)
    assert (done.message.text(), done.stop) == ("one", "other")
    assert (done.usage.input_tokens, done.usage.output_tokens) == (None, None), "what was not reported is not zero"


@pytest.mark.parametrize("wire", FIRST_FRAMES)
async def test_an_answer_that_is_no_stream_is_a_bad_response(wire: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {<html>\n\n")
        await writer.drain()
        writer.close()

    async with _served(wire, serve) as model:
        with pytest.raises(ModelError) as caught:
            async with model.stream(ModelRequest("", [user("go")])) as events:
                _ = [event async for event in events]
    assert caught.value.retryable


@asynccontextmanager
async def _served(wire: str, serve: Serve) -> AsyncIterator[Model]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pool = ModelPool({})
    try:
        async with asyncio.timeout(30):
            yield pool.get(AgentDefinition(id="a", model=f"{wire}:{MODELS[wire]}", base_url=url))
    finally:
        await pool.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("wire", FIRST_FRAMES)
async def test_leaving_closes_the_connection_to_the_provider(wire: str) -> None:
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _serve_frames(wire, reader, writer)
        while await reader.read(65536):
            pass
        left.set()
        writer.close()

    async with _served(wire, serve) as model:
        async with model.stream(ModelRequest("", [user("go")])) as events:
            assert await anext(events) == TextDelta(0, "one")
            assert not left.is_set()
        await left.wait()


async def test_an_error_of_the_caller_passes_untouched(bench: Bench) -> None:
    model = bench.pool.get(AgentDefinition(id="a", model="anthropic:claude-sonnet-5-5"))
    with pytest.raises(ValueError, match="mine"):
        async with model.stream(ModelRequest("", [user("go")])) as events:
            async for _ in events:
                raise ValueError("mine")


@pytest.mark.parametrize("wire", WIRES)
async def test_nobody_listens(wire: str) -> None:
    async with FakeServer(FakeModel().app) as server:
        address = server.url
    pool = ModelPool({})
    definition = AgentDefinition(id="a", model=f"{wire}:{MODELS[wire]}", base_url=address)
    with pytest.raises(ModelError) as caught:
        async with pool.get(definition).stream(ModelRequest("", [user("hi")])) as events:
            _ = [event async for event in events]
    assert (caught.value.code, caught.value.retryable) == ("connect", True)
    await pool.close()
