"""Tool servers under real replicas: a turn uses them, and nothing of them is left when a turn is aborted, or a replica drained or killed."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.ledger import ROOT
from testbed.processes import alive, parent
from testbed.stage import Stage


@dataclass
class Rig:
    stage: Stage
    path: Path

    async def agent(self, *steps: Mapping[str, Any], **fields: Any) -> None:
        """An agent that calls the tools of a server one after the other and then answers."""
        box = {
            "command": [sys.executable, "-m", "testbed.mcp_server"],
            "env": {"PYTHONPATH": str(ROOT), "MCP_LEDGER": str(self.path), "NAMED": "${GIVEN}"},
        }
        await self.stage.add_agent("demo", model="fake", tools=["mcp:box/*"], mcp={"box": box}, **fields)
        await self.stage.add_channel()
        self.stage.model.script(*({"tools": [step]} for step in steps), {"text": "over"}, match="go")

    def pids(self, what: str) -> list[int]:
        """Ids of the processes that have noted this."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ")]

    async def begun(self, what: str) -> None:
        await eventually(lambda: self.pids(what), 30, f"{what} has begun")

    async def nothing_left(self) -> None:
        pids = [*self.pids("server"), *self.pids("child")]
        assert pids
        await eventually(lambda: not any(map(alive, pids)), 15, f"processes {pids} have ended")


SPAWN = {"name": "mcp__box__spawn", "args": {"prepare": "signal.signal(signal.SIGTERM, signal.SIG_IGN)"}}
BLOCK = {"name": "mcp__box__block", "args": {}}
HANG = {"name": "mcp__box__hang", "args": {}}
SETTINGS = {"GIVEN": "its own"}


@pytest.fixture
async def rig(stage: Stage, tmp_path: Path) -> AsyncIterator[Rig]:
    yield Rig(stage, tmp_path / "pids")


async def test_turns_share_a_server_and_a_drain_leaves_nothing(rig: Rig) -> None:
    await rig.agent(
        {"name": "mcp__box__add", "args": {"a": 2, "b": 3}}, SPAWN, {"name": "mcp__box__environment", "args": {}}
    )
    async with rig.stage.replicas(1, settings=SETTINGS) as [replica]:
        await rig.stage.say("go")
        assert await rig.stage.answered(1, timeout=40) == ["over"]
        await rig.begun("child")
        assert await replica.drain() == 0
        await rig.nothing_left()
    outcomes = await rig.stage.rows("SELECT outcome ->> 'content' AS content, effect FROM tool_call ORDER BY step")
    contents = [outcome["content"] for outcome in outcomes]
    assert contents[:2] == ["5", "started"]
    assert json.loads(contents[2])["NAMED"] == "its own"
    assert not [name for name in json.loads(contents[2]) if name.startswith("STRATUS_")]
    assert [outcome["effect"] for outcome in outcomes] == ["read", "once", "once"]
    assert len(rig.pids("server")) == 1


@pytest.mark.parametrize("step", [BLOCK, HANG])
async def test_a_turn_without_progress_ends_with_all_that_its_server_started(rig: Rig, step: Mapping[str, Any]) -> None:
    await rig.agent(SPAWN, step, idle_limit_seconds=15.0)
    async with rig.stage.replicas(1, settings=SETTINGS):
        await rig.stage.say("go")
        await rig.begun(step["name"].removeprefix("mcp__box__"))
        assert await rig.stage.answered(1, timeout=40) == ["⚠ Nothing happened for 15 seconds, so I stopped."]
        await rig.nothing_left()
        await rig.stage.settled(1)
        assert await violations(rig.stage.db, at_rest=True) == {}


async def test_a_killed_replica_leaves_no_process_and_the_call_becomes_unknown(rig: Rig) -> None:
    await rig.agent(SPAWN, HANG)
    async with rig.stage.replicas(2, settings=SETTINGS) as replicas:
        await rig.stage.say("go")
        await rig.begun("hang")
        guard = parent(rig.pids("server")[0])
        [worker] = [one for one in replicas if one.pid == parent(guard)]
        await worker.kill()
        await rig.nothing_left()
        assert await rig.stage.answered(1, timeout=40) == ["over"]
    assert [row["state"] for row in await rig.stage.rows("SELECT state FROM tool_call ORDER BY step")] == [
        *("done", "unknown")
    ]
    assert len(rig.pids("hang")) == 1, "nobody has called it again"
