"""How a provider fails, over real HTTP and the real SDKs: each fault has a code and a sentence, and nothing retries by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stratus.agents.model import (
    Alive,
    Model,
    ModelDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
)
from stratus.agents.pool import ModelPool
from stratus.domain.agent import AgentDefinition
from testbed.fakes.model import FakeModel
from testbed.fakes.server import FakeServer
from tests.contract.provider_bench import MODELS, WIRES, Bench, opened, user


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with opened() as made:
        yield made


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
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
        (400, "the request exceeds the available context size, try increasing the context window"),
        (413, "Request exceeds the maximum allowed number of bytes"),
    ],
)
async def test_a_prompt_that_is_too_long_is_known_by_its_words_too(
    bench: Bench, wire: str, status: int, message: str
) -> None:
    bench.fake.fault(status, detail={"message": message})
    assert (await bench.failure(wire)).code == "context_overflow"


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
    assert any(isinstance(event, TextDelta) for event in heard)
    assert all(isinstance(event, TextDelta | Alive) for event in heard)


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
                    if not isinstance(event, Alive):
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
            while await anext(events) != TextDelta(0, "one"):
                pass
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
