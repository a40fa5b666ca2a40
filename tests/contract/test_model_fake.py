"""The fake model through the real SDKs: what pydantic-ai makes of its answers is what it would make of a provider's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic_ai import (
    Agent,
    AgentRunResultEvent,
    ModelMessage,
    ModelResponse,
    RunUsage,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelOverloadedError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelTimeoutError,
)
from pydantic_ai.models import Model

from testbed.eventually import eventually
from testbed.fakes.model import FakeModel
from testbed.fakes.server import FakeServer

WIRES = ("anthropic", "openai-chat", "openai-responses")
EVERY_WIRE = pytest.mark.parametrize("wire", WIRES)
STREAMED = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[tuple[FakeModel, str]]:
    model = FakeModel()
    async with FakeServer(model.app) as server:
        yield model, server.url


@contextlib.asynccontextmanager
async def model_of(wire: str, url: str) -> AsyncIterator[Model]:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if wire == "anthropic":
        async with AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as anthropic:
            yield AnthropicModel("claude-fake", provider=AnthropicProvider(anthropic_client=anthropic))
        return
    async with AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0) as openai:
        kind = OpenAIChatModel if wire == "openai-chat" else OpenAIResponsesModel
        yield kind("gpt-5", provider=OpenAIProvider(openai_client=openai))


async def ask(
    wire: str, url: str, text: str, *, streamed: bool = True, timeout: float = 5
) -> tuple[str, list[ModelMessage], RunUsage]:
    async with model_of(wire, url) as model:
        agent = Agent(model, system_prompt="Be brief.", model_settings={"timeout": timeout})

        @agent.tool_plain
        def add(a: int, b: int) -> int:
            return a + b

        if not streamed:
            result = await agent.run(text)
            return result.output, result.all_messages(), result.usage
        async with agent.run_stream_events(text) as events:
            async for event in events:
                if isinstance(event, AgentRunResultEvent):
                    return event.result.output, event.result.all_messages(), event.result.usage
    raise AssertionError("the stream ended without a result")


def parts(messages: list[ModelMessage], kind: type[Any]) -> list[Any]:
    return [
        part
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, kind)
    ]


@EVERY_WIRE
@STREAMED
async def test_it_echoes_and_counts_tokens(fake: tuple[FakeModel, str], wire: str, streamed: bool) -> None:
    output, _, usage = await ask(wire, fake[1], "good day", streamed=streamed)
    assert output == "echo: good day"
    assert usage.input_tokens > 1
    assert usage.output_tokens == len("echo: good day") // 4


@EVERY_WIRE
@STREAMED
async def test_it_thinks_calls_tools_and_goes_on(fake: tuple[FakeModel, str], wire: str, streamed: bool) -> None:
    model, url = fake
    tools = [{"name": "add", "args": {"a": 2, "b": 3}}, {"name": "add", "args": '{"a": 4, "b": 5}'}]
    model.script(
        {"thinking": "hm, sums", "text": "Let me see.", "tools": tools}, {"text": "5 and 9"}, match="sum", chunk=3
    )
    output, messages, _ = await ask(wire, url, "sum, please", streamed=streamed)
    assert output == "5 and 9"
    assert [part.args_as_dict() for part in parts(messages, ToolCallPart)] == [{"a": 2, "b": 3}, {"a": 4, "b": 5}]
    assert [part.content for part in parts(messages, ThinkingPart)] == ["hm, sums"]
    assert [part.content for part in parts(messages, TextPart)] == ["Let me see.", "5 and 9"]
    first, second = (logged.summary() for logged in model.calls)
    assert first | {"messages": 0} == second | {"messages": 0, "n": 1}
    assert second["messages"] > first["messages"] == 1
    assert (first["wire"], first["text"], first["system"], first["tools"]) == (
        wire,
        "sum, please",
        "Be brief.",
        ["add"],
    )
    assert (first["key"], first["stream"], first["outcome"]) == ("k", streamed, "answered")


@EVERY_WIRE
@STREAMED
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (429, ModelRateLimitError),
        (500, ModelServerError),
        (529, ModelOverloadedError),
        (401, ModelAuthenticationError),
        ("context", ModelRequestRejectedError),
        ("cut", ModelConnectionError),
        ("silence", ModelTimeoutError),
    ],
)
async def test_faults_are_what_the_sdk_takes_them_for(
    fake: tuple[FakeModel, str], wire: str, streamed: bool, answer: int | str, error: type[ModelAPIError]
) -> None:
    model, url = fake
    model.fault(answer, match="day", retry_after=7)
    with pytest.raises(error) as caught:
        await ask(wire, url, "good day", streamed=streamed, timeout=0.3)
    if isinstance(caught.value, ModelRateLimitError):
        assert caught.value.retry_after == 7
    if answer == "context" and wire != "anthropic":
        assert isinstance(caught.value, ModelContextWindowExceededError)
    assert (await ask(wire, url, "good day", streamed=streamed))[0] == "echo: good day"
    assert [logged.outcome for logged in model.calls] == [str(answer), "answered"]


@EVERY_WIRE
async def test_a_trickle_is_slow_and_complete(fake: tuple[FakeModel, str], wire: str) -> None:
    model, url = fake
    model.fault("trickle", detail={"delay": 0.001})
    assert (await ask(wire, url, "good day"))[0] == "echo: good day"


def anthropic_says(*blocks: dict[str, Any], role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


USE = {"type": "tool_use", "id": "c1", "name": "add", "input": {}}
GIVE = {"type": "tool_result", "tool_use_id": "c1", "content": "5"}
TEXT = {"type": "text", "text": "hm"}
ASK = anthropic_says(TEXT, role="user")
CALL = {"type": "function", "function": {"name": "add", "arguments": "{}"}, "id": "c1"}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
TOOL = {"role": "tool", "tool_call_id": "c1", "content": "5"}
FUNCTION = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "5"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "fake-sealed-reasoning"}
HI = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("wire", "history", "said"),
    [
        ("anthropic", [ASK, anthropic_says(USE)], "without a result: c1"),
        ("anthropic", [ASK, anthropic_says(USE), ASK], "without a result: c1"),
        ("anthropic", [anthropic_says(GIVE, role="user")], "without a call: c1"),
        ("anthropic", [anthropic_says(TEXT), ASK], "first message must use the user role"),
        ("anthropic", [ASK, anthropic_says(USE), anthropic_says(TEXT, GIVE, role="user")], "must come first"),
        ("anthropic", [ASK, anthropic_says(USE), anthropic_says(GIVE, GIVE, role="user")], "not unique"),
        ("anthropic", [ASK, *[anthropic_says(USE), anthropic_says(GIVE, role="user")] * 2], "must be unique"),
        ("anthropic", [ASK, anthropic_says({**USE, "id": "c1~2"})], "c1~2"),
        ("anthropic", [ASK, anthropic_says({"type": "text", "text": " "}), ASK], "non-empty"),
        ("anthropic", [ASK, anthropic_says({"type": "thinking", "thinking": "x", "signature": "y"})], "signature"),
        ("anthropic", [ASK, anthropic_says(USE, GIVE)], "without a call: c1"),
        ("openai-chat", [HI, CALLS], "without a result: c1"),
        ("openai-chat", [HI, CALLS, HI, TOOL], "without a result: c1"),
        ("openai-chat", [HI, TOOL], "without a call: c1"),
        ("openai-chat", [HI, {"role": "assistant", "tool_calls": [{**CALL, "id": "c" * 41}]}], "does not match"),
        ("openai-chat", [HI, {"role": "assistant", "content": None}], "must have content"),
        ("openai-responses", [HI, FUNCTION], "without a result: c1"),
        ("openai-responses", [HI, OUTPUT, FUNCTION], "No tool call found"),
        ("openai-responses", [HI, FUNCTION, HI, OUTPUT], "without a result: c1"),
        ("openai-responses", [HI, {**FUNCTION, "id": "c1"}, OUTPUT], "begins with 'fc_'"),
        ("openai-responses", [HI, {**REASONING, "encrypted_content": "other"}, FUNCTION, OUTPUT], "not persisted"),
        ("openai-responses", [HI, REASONING, HI], "required following item"),
        ("openai-responses", [HI, {"role": "assistant", "content": []}], "no content"),
    ],
)
async def test_history_that_a_provider_refuses_is_refused(
    fake: tuple[FakeModel, str], wire: str, history: list[dict[str, Any]], said: str
) -> None:
    path = {"anthropic": "messages", "openai-chat": "chat/completions", "openai-responses": "responses"}[wire]
    field = "input" if wire == "openai-responses" else "messages"
    async with httpx.AsyncClient(trust_env=False, headers={"authorization": "Bearer k"}) as client:
        answer = await client.post(f"{fake[1]}/v1/{path}", json={"model": "m", field: history})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


@EVERY_WIRE
@pytest.mark.parametrize(
    ("status", "error"), [(529, ModelOverloadedError), (429, ModelRateLimitError), (500, ModelServerError)]
)
@pytest.mark.parametrize("at", ["start", "middle", "end"])
async def test_an_error_inside_a_stream_is_what_the_sdk_takes_it_for(
    fake: tuple[FakeModel, str], wire: str, status: int, error: type[ModelAPIError], at: str
) -> None:
    fake[0].fault("error", detail={"status": status, "at": at})
    with pytest.raises(error) as caught:
        await ask(wire, fake[1], "good day")
    assert caught.value.in_stream


async def test_a_gate_holds_the_matching_call_until_it_is_released(fake: tuple[FakeModel, str]) -> None:
    _, url = fake
    async with httpx.AsyncClient(base_url=url, trust_env=False) as control:

        async def entered() -> bool:
            return bool((await control.get("/control/gates")).json()["g"]["entered"] == 1)

        await control.post("/control/gate", json={"name": "g", "match": {"text": "slow"}})
        asking = asyncio.create_task(ask("anthropic", url, "slow one"))
        await eventually(entered)
        assert (await ask("anthropic", url, "quick one"))[0] == "echo: quick one"
        assert not asking.done()
        assert (await control.post("/control/release", json={"name": "g"})).status_code == 200
        assert (await asking)[0] == "echo: slow one"
        assert [call["text"] for call in (await control.get("/log")).json()] == ["slow one", "quick one"]


async def test_a_repeated_call_gets_its_turn_again_and_a_new_one_the_next(fake: tuple[FakeModel, str]) -> None:
    model, url = fake
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers={"x-api-key": "k"}) as client:
        turns = {"match": {"text": "go"}, "turns": [{"text": "one"}, {"text": "two"}]}
        await client.post("/control/script", json=turns)
        said = []
        for history in (["go"], ["go"], ["go", "one", "go on"], ["go"], ["go", "one", "go on", "two", "go"]):
            roles = ["user", "assistant"] * 3
            messages = [{"role": role, "content": text} for role, text in zip(roles, history, strict=False)]
            answer = await client.post("/v1/messages", json={"model": "m", "messages": messages})
            said.append(answer.json()["content"][0]["text"])
    assert said == ["one", "one", "two", "one", "echo: go"]


async def test_a_call_without_a_key_is_refused(fake: tuple[FakeModel, str]) -> None:
    async with httpx.AsyncClient(base_url=fake[1], trust_env=False) as client:
        answer = await client.post("/v1/responses", json={"model": "m", "input": "hi"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
