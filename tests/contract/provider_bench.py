"""A model pool whose providers are the fake, for the tests of the provider seam."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from stratus.agents.model import (
    Alive,
    ModelDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    ToolSpec,
)
from stratus.agents.pool import ModelPool
from stratus.domain.agent import AgentDefinition
from stratus.domain.values import (
    Message,
    ResultOutcome,
    TextPart,
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
            return [event async for event in events if not isinstance(event, Alive)]

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


def user(text: str) -> Message:
    return Message(role="user", parts=[TextPart(text=text)])


def stored(message: Message) -> Message:
    """As it comes back from a row: jsonb keeps an object's keys in an order of its own."""
    return Message.model_validate(_as_jsonb(json.loads(message.model_dump_json())))


def _as_jsonb(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_jsonb(value[key]) for key in sorted(value, key=lambda key: (len(key), key))}
    return [_as_jsonb(item) for item in value] if isinstance(value, list) else value


def result_of(message: Message, content: str = "5", outcome: ResultOutcome = ResultOutcome.OK) -> Message:
    return Message(
        role="tool",
        parts=[
            ToolResultPart(call_id=call.call_id, name=call.name, content=content, outcome=outcome)
            for call in message.calls()
        ],
    )


@asynccontextmanager
async def opened() -> AsyncIterator[Bench]:
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
