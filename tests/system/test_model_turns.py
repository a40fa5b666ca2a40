"""Turns of real replicas on real wires: what a provider's faults, an edited agent and a full context do to a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from testbed.postgres import TestCluster
from testbed.replicas import Replica, eventually
from testbed.stage import Stage, shared_stage
from tests.system.commands import Command

MODELS = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai-chat": "openai-chat:gpt-4o",
    "openai-responses": "openai-responses:gpt-5",
}
pytestmark = pytest.mark.asyncio(loop_scope="module")
ENDED = {"completed", "failed", "canceled", "interrupted"}


@dataclass
class Talk:
    """A session with an agent of its own, spoken to over HTTP."""

    stage: Stage
    api: httpx.AsyncClient
    name: str

    async def use(self, wire: str, **fields: Any) -> None:
        """Make the agent, or give it another provider."""
        url = self.stage.model_url + ("" if wire == "anthropic" else "/v1")
        await self.stage.add_agent(
            self.name,
            MODELS[wire],
            base_url=url,
            api_key_env="FAKE_MODEL_KEY",
            tools=["current_time", "calculate"],
            **fields,
        )

    async def ask(self, text: str) -> str:
        """Enqueue; the run's id."""
        sent = await self.api.post(
            f"/sessions/{self.name}/messages",
            json={"agent": self.name, "text": text},
            headers={"Idempotency-Key": uuid4().hex},
        )
        assert sent.status_code == 202, sent.text
        return str(sent.json()["run"])

    async def ended(self, run: str) -> Mapping[str, Any]:
        async def found() -> Mapping[str, Any] | None:
            shown: dict[str, Any] = (await self.api.get(f"/runs/{run}")).json()
            return shown if shown["state"] in ENDED else None

        ended: Mapping[str, Any] | None = await eventually(found, 30, "the run's end")
        assert ended is not None
        return ended

    async def turn(self, text: str) -> Mapping[str, Any]:
        return await self.ended(await self.ask(text))

    async def kinds(self, run: str) -> list[str]:
        sql = (
            "SELECT e.kind FROM session_event e JOIN agent_run r ON r.id = e.run_id WHERE r.public_id = $1 ORDER BY seq"
        )
        return [row["kind"] for row in await self.stage.rows(sql, run)]

    async def messages(self) -> list[str]:
        sql = "SELECT parts::text FROM message WHERE session_id = $1 ORDER BY position"
        return [row["parts"] for row in await self.stage.rows(sql, self.name)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def here(cluster: TestCluster) -> AsyncIterator[tuple[Stage, Replica]]:
    """One replica for all tests here: they differ by agent and session."""
    async with (
        shared_stage(cluster) as stage,
        stage.replicas(1, settings={"STRATUS_MODEL_CONCURRENCY": "2"}) as started,
    ):
        yield stage, next(iter(started))


@pytest_asyncio.fixture(loop_scope="module")
async def talk(here: tuple[Stage, Replica]) -> AsyncIterator[Talk]:
    stage, replica = here
    stage.model.calls.clear()
    async with stage.client(replica) as api:
        yield Talk(stage, api, f"t{uuid4().hex[:8]}")
    stage.model.controls.faults.clear()
    stage.model.scripts.clear()


@pytest.mark.parametrize("wire", MODELS)
async def test_calls_that_make_no_sense_are_answered_and_the_turn_goes_on(talk: Talk, wire: str) -> None:
    await talk.use(wire)
    nonsense = [{"name": "calculate", "args": '{"expression": "1'}, {"name": "no_such_tool", "args": {}}]
    talk.stage.model.script({"tools": nonsense}, {"text": "I see."}, match="go")
    ended = await talk.turn("go")
    assert (ended["state"], ended["reply"]) == ("completed", "I see.")
    assert [logged.outcome for logged in talk.stage.model.calls] == ["answered", "answered"]
    assert "no_such_tool" in str(talk.stage.model.calls[1].call.body)
    [*_, results, _] = await talk.messages()
    assert results.count('"failed"') == 2


@pytest.mark.parametrize("wire", MODELS)
async def test_a_provider_that_stumbles_once_is_not_noticed(talk: Talk, wire: str) -> None:
    await talk.use(wire)
    talk.stage.model.fault(529, "hello", retry_after=0)
    ended = await talk.turn("hello")
    assert (ended["state"], ended["reply"]) == ("completed", "echo: hello")
    assert [logged.outcome for logged in talk.stage.model.calls] == ["529", "answered"]


@pytest.mark.parametrize("wire", MODELS)
async def test_an_answer_that_breaks_off_is_told_and_what_was_seen_of_it_stays(talk: Talk, wire: str) -> None:
    await talk.use(wire)
    talk.stage.model.fault("error", "a longer text", detail={"at": "middle", "chunk": 4})
    ended = await talk.turn("a longer text to be echoed")
    assert (ended["state"], ended["error"]["code"]) == ("failed", "overloaded")
    assert "is not all of it" in ended["error"]["message"]
    assert ended["usage"]["requests"] == 1, "a failed turn keeps what it spent"
    assert len(talk.stage.model.calls) == 1
    assert "echo: a lo" in (await talk.messages())[-1]
    assert (await talk.turn("again"))["reply"] == "echo: again"


@pytest.mark.parametrize("wire", MODELS)
async def test_a_conversation_that_has_become_too_long_goes_on_shortened(talk: Talk, wire: str) -> None:
    await talk.use(wire)
    for n in range(4):
        talk.stage.model.script(
            {"tool": {"name": "calculate", "args": {"expression": f"{n}+1"}}}, {"text": "so"}, match=f"q{n}"
        )
        await talk.turn(f"q{n}")
    before = await talk.messages()
    talk.stage.model.calls.clear()
    talk.stage.model.fault("context", "one more")
    run = await talk.ask("one more")
    assert (await talk.ended(run))["reply"] == "echo: one more"
    assert "history.compacted" in await talk.kinds(run)
    long, short = [logged.call for logged in talk.stage.model.calls]
    assert short.messages < long.messages
    assert "messages were left out here" in str(short.body)
    after = await talk.messages()
    assert after[: len(before)] == before and len(after) == len(before) + 2


async def test_the_steps_of_a_turn_that_was_shortened_begin_where_the_first_one_ended(talk: Talk) -> None:
    await talk.use("anthropic")
    for n in range(4):
        await talk.turn(f"q{n}")
    talk.stage.model.script({"tool": {"name": "calculate", "args": {"expression": "1+1"}}}, {"text": "2"}, match="sum")
    talk.stage.model.fault("context", "sum")
    talk.stage.model.calls.clear()
    run = await talk.ask("sum")
    assert (await talk.ended(run))["reply"] == "2"
    assert [logged.outcome for logged in talk.stage.model.calls] == ["context", "answered", "answered"]
    assert "left out here" in str(talk.stage.model.calls[-1].call.body)
    assert (await talk.kinds(run)).count("history.compacted") == 1


async def test_a_context_that_cannot_be_made_to_fit_is_said(talk: Talk) -> None:
    await talk.use("anthropic")
    talk.stage.model.fault("context", "much", times=None)
    ended = await talk.turn("much too much")
    assert (ended["state"], ended["error"]["code"]) == ("failed", "context_overflow")
    assert "/new" in ended["error"]["message"]


async def test_a_session_outlives_its_agents_change_of_provider(talk: Talk) -> None:
    order = ["anthropic", "openai-responses", "openai-chat", "anthropic"]
    for n, wire in enumerate(order):
        await talk.use(wire)
        step = {"thinking": "hm", "text": "wait", "tool": {"name": "calculate", "args": {"expression": "1+1"}}}
        talk.stage.model.script(step, {"thinking": "so", "text": f"answer {n}"}, match=f"turn {n}")
        assert (await talk.turn(f"turn {n}"))["reply"] == f"wait\n\nanswer {n}"
    assert {logged.outcome for logged in talk.stage.model.calls} == {"answered"}
    assert [logged.call.wire for logged in talk.stage.model.calls] == [wire for wire in order for _ in range(2)]
    assert str(talk.stage.model.calls[-1].call.body).count("fake-signature") == 3, "its own reasoning of both its turns"


async def test_usage_and_cost_are_with_the_run(talk: Talk, tmp_path: Path) -> None:
    await talk.use("anthropic")
    talk.stage.model.script({"tool": {"name": "current_time"}}, {"text": "noon", "cached": 3}, match="time")
    run = await talk.ask("what time is it?")
    usage = (await talk.ended(run))["usage"]
    assert (usage["requests"], usage["unreported"], usage["unpriced"], usage["cache_read_tokens"]) == (2, 0, 0, 3)
    assert usage["input_tokens"] > usage["output_tokens"] > 0
    assert float(usage["cost"]) > 0 and usage["cache_write_tokens"] is None
    shown = await Command.on(talk.stage.dsn, tmp_path)("runs", "show", run, "--json")
    assert shown.json()["usage"] == usage


async def test_a_replica_has_no_more_requests_in_flight_than_it_may(talk: Talk) -> None:
    talks = [Talk(talk.stage, talk.api, f"{talk.name}x{n}") for n in range(5)]
    for one in talks:
        await one.use("openai-chat")
    talk.stage.model.script(*[{"text": "x" * 100}] * 5, match="all at once", chunk=10, delay=0.03)
    talk.stage.model.peak = 0
    ended = await asyncio.gather(*(one.turn("all at once") for one in talks))
    assert {one["state"] for one in ended} == {"completed"}
    assert talk.stage.model.peak == 2
