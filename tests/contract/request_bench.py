"""What the tests of a turn's model request need: a journal that only remembers, a clock that takes no time, histories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from stratus.agents.model import ModelDone
from stratus.domain.agent import AgentDefinition
from stratus.domain.event import NewEvent
from stratus.domain.values import Message, TextPart, ToolCallPart, ToolResultPart
from stratus.effects import Clock
from stratus.execution.request import Asking, TurnFailed, ask
from tests.contract.provider_bench import MODELS, Bench, user


@dataclass
class Notes:
    """A turn's journal, without a database."""

    text: str = ""
    streamed: int = 0
    alive: int = 0
    events: list[NewEvent] = field(default_factory=list)
    may_write: asyncio.Event | None = None

    def delta(self, _kind: str, _part: int, text: str) -> None:
        self.streamed += 1
        self.text += text

    def give_back(self, events: Sequence[NewEvent]) -> None:
        self.events = [*events, *self.events]

    def progress(self) -> None:
        self.alive += 1

    async def room(self) -> None:
        if self.may_write is not None:
            await self.may_write.wait()


class Sleeps(Clock):
    """Takes no time, remembers how long it should have; `held` keeps sleepers until it is set."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.held = asyncio.Event()
        self.held.set()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.held.wait()


@dataclass
class Requests:
    """Requests of one agent over one wire, to the fake."""

    bench: Bench
    wire: str
    notes: Notes = field(default_factory=Notes)
    clock: Sleeps = field(default_factory=Sleeps)
    limits: dict[str, Any] = field(default_factory=dict)

    def agent(self) -> AgentDefinition:
        return AgentDefinition(id="a", model=f"{self.wire}:{MODELS[self.wire]}", **self.limits)

    async def ask(self, *messages: Message, left_out: int = 0) -> ModelDone:
        history = messages or (user("good day"),)
        start = max(index for index, message in enumerate(history) if message.role == "user")
        asking = Asking(self.bench.pool, self.agent(), history, [], start, left_out)
        return await ask(asking, self.notes, self.clock)

    async def fails(self, *messages: Message) -> TurnFailed:
        with pytest.raises(TurnFailed) as caught:
            await self.ask(*messages)
        return caught.value

    @property
    def calls(self) -> int:
        return len(self.bench.fake.calls)


def conversation(turns: int, size: int = 100) -> list[Message]:
    """Turns with a tool call each, then a question."""
    messages: list[Message] = []
    for n in range(turns):
        said = ToolCallPart(call_id=f"c{n}", name="add", args="{}")
        result = ToolResultPart(call_id=f"c{n}", name="add", content="x" * size)
        messages += [
            user(f"question {n}"),
            Message(role="assistant", parts=[said]),
            Message(role="tool", parts=[result]),
            Message(role="assistant", parts=[TextPart(text=f"answer {n}")]),
        ]
    return [*messages, user("the last question")]
