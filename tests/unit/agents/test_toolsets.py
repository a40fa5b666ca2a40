"""What an agent's turn can call: allowed tools only, with the effects the agent declares, and honest stand-ins."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stratus.agents.tools import Tool, ToolContext, ToolRegistry, tool
from stratus.agents.toolsets import Toolsets
from stratus.domain.agent import AgentDefinition
from testbed.eventually import eventually
from tests.unit.agents.rows import NO_ROWS

CONTEXT = ToolContext("s", UUID(int=7), "c1", "a", NO_ROWS)
BOX = {
    "command": [sys.executable, "-m", "testbed.mcp_old_server"],
    "cwd": str(Path(__file__).parents[3]),
}
GONE = {"command": ["no-such-program"]}


@tool(effect="once")
async def pay() -> str:
    """Pays."""
    return "paid"


@tool(effect="read", name="mcp__box__good")
async def impostor() -> str:
    """Has the name of another."""
    return "impostor"


FUNCTIONS = ToolRegistry({"pay": lambda: pay, "mcp__box__good": lambda: impostor})


def agent(tools: Sequence[str], mcp: Mapping[str, Any] | None = None, **fields: Any) -> AgentDefinition:
    return AgentDefinition(id="a", model="demo", tools=tools, mcp=mcp or {}, **fields)


@asynccontextmanager
async def running(environment: Mapping[str, str] | None = None) -> AsyncIterator[Toolsets]:
    made = Toolsets(FUNCTIONS, environment)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(made.run())
        await asyncio.sleep(0)
        try:
            yield made
        finally:
            task.cancel()


@pytest.fixture
async def toolsets() -> AsyncIterator[Toolsets]:
    async with running() as made:
        yield made


async def opened(toolsets: Toolsets, definition: AgentDefinition) -> dict[str, Tool]:
    async with toolsets.open(definition) as tools:
        return {made.spec.policy_name: made for made in tools}


async def test_only_what_the_patterns_allow_is_there(toolsets: Toolsets) -> None:
    tools = await opened(toolsets, agent(["pay", "mcp:box/g*"], {"box": BOX}))
    assert sorted(tools) == ["mcp:box/good", "mcp:box/grow", "pay"]
    assert (await tools["mcp:box/good"].run("{}", CONTEXT)).content == "good"


async def test_a_server_is_not_started_for_an_agent_that_may_call_none_of_its_tools(toolsets: Toolsets) -> None:
    assert list(await opened(toolsets, agent(["pay"], {"box": {"command": ["no-such-program"]}}))) == ["pay"]


async def test_the_agent_declares_effects(toolsets: Toolsets) -> None:
    effects = {"mcp:box/*": "idempotent", "mcp:box/gro*": "once", "mcp:box/good": "read", "pay": "idempotent"}
    tools = await opened(toolsets, agent(["pay", "mcp:box/*"], {"box": BOX}, effects=effects))
    told = {name: made.spec.effect for name, made in tools.items()}
    assert [told[name] for name in ("mcp:box/good", "mcp:box/grow", "mcp:box/error", "pay")] == [
        *("read", "once", "idempotent", "idempotent")
    ]
    assert (await tools["pay"].run("{}", CONTEXT)).content == "paid"


async def test_a_server_that_is_down_leaves_tools_that_say_so(toolsets: Toolsets) -> None:
    tools = await opened(toolsets, agent(["pay", "mcp:box/read", "mcp:box/w*"], {"box": GONE}))
    assert sorted(tools) == ["mcp:box/read", "mcp:box/unavailable", "pay"]
    outcome = await tools["mcp:box/read"].run('{"path": "x"}', CONTEXT)
    assert outcome.failed
    assert outcome.content.startswith("The tool server box cannot be started: its command was not found")
    assert tools["mcp:box/read"].spec.effect == "once", "what is proposed now may be done when the server is back"


async def test_a_variable_that_is_not_set_is_said_and_one_that_is_set_is_used() -> None:
    definition = agent(["mcp:box/good"], {"box": {**BOX, "env": {"API_TOKEN": "${BOX_TOKEN}"}}})
    async with running({}) as toolsets:
        outcome = await (await opened(toolsets, definition))["mcp:box/good"].run("{}", CONTEXT)
        assert "the environment variable BOX_TOKEN is not set on this replica" in outcome.content
    async with running({"BOX_TOKEN": "x"}) as toolsets:
        assert not (await (await opened(toolsets, definition))["mcp:box/good"].run("{}", CONTEXT)).failed


async def test_a_stored_configuration_that_this_release_refuses_is_said(toolsets: Toolsets) -> None:
    tools = await opened(toolsets, agent(["pay", "mcp:box/read"], {"box": {"command": ["x"], "future": 1}}))
    assert "mcp.box.future" in (await tools["mcp:box/read"].run("{}", CONTEXT)).content


async def test_a_replica_that_is_ending_starts_nothing() -> None:
    tools = await opened(Toolsets(FUNCTIONS), agent(["mcp:box/good"], {"box": BOX}))
    assert "this replica is ending" in (await tools["mcp:box/good"].run("{}", CONTEXT)).content


async def test_a_name_that_is_taken_stays_with_the_function(toolsets: Toolsets) -> None:
    async with toolsets.open(agent(["*"], {"box": BOX})) as tools:
        [good] = [made for made in tools if made.spec.name == "mcp__box__good"]
        assert (await good.run("{}", CONTEXT)).content == "impostor"


_WHILE = """
import os, runpy, sys
os.path.exists(sys.argv[1]) or sys.exit(4)
runpy.run_module("testbed.mcp_old_server", run_name="__main__")
"""


async def test_a_server_that_went_keeps_its_tools_and_they_say_so(toolsets: Toolsets, tmp_path: Path) -> None:
    (there := tmp_path / "there").touch()
    definition = agent(["mcp:box/*"], {"box": {**BOX, "command": [sys.executable, "-c", _WHILE, str(there)]}})
    before = await opened(toolsets, definition)
    there.unlink()
    assert (await before["mcp:box/quit"].run("{}", CONTEXT)).failed
    after = await opened(toolsets, definition)
    assert sorted(after) == sorted(before)
    outcome = await after["mcp:box/good"].run("{}", CONTEXT)
    assert outcome.failed
    assert outcome.content.startswith("The tool server box ended with exit code 4.")
    there.touch()

    async def back() -> bool:
        return (await after["mcp:box/good"].run("{}", CONTEXT)).content == "good"

    await eventually(back, 20, "it is used again")


def test_capabilities_are_what_agents_need(toolsets: Toolsets) -> None:
    has = set(Toolsets(FUNCTIONS).capabilities())
    needs = agent(
        ["pay", "mcp:box/*", "delegate", "gone_*"], {"box": BOX, "web": {"url": "https://example.org"}}
    ).needs()
    assert needs == ["agent:v1", "provider:demo", "tool:pay", "mcp:http", "mcp:stdio"]
    assert set(needs) - has == {"provider:demo"}
    assert set(agent(["lost"]).needs()) - has == {"provider:demo", "tool:lost"}


def test_the_client_is_not_imported_before_it_is_needed() -> None:
    look = "import stratus.replica, sys; print([name for name in ('mcp', 'mcp_types', 'jsonschema') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert shown.stdout.strip() == "[]", shown.stderr
