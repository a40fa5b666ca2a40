"""Tools that block or hang: nothing is done twice, and a turn without progress ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.ledger import Ledger
from testbed.stage import Stage

# The testbed's leases last 3 s.
LONGER_THAN_THREE_LEASES = 10.0


@dataclass
class Rig:
    stage: Stage
    ledger: Ledger

    async def agent(self, tool: str, args: Mapping[str, Any], **fields: Any) -> None:
        """An agent whose model calls the tool once and then answers."""
        await self.stage.add_agent("demo", model="fake", tools=["ledger_*"], **fields)
        await self.stage.add_channel()
        self.stage.model.script({"tools": [{"name": tool, "args": args}]}, {"text": "over"}, match="go")

    async def begun(self, tool: str) -> None:
        await eventually(lambda: len(self.ledger.entries(tool=tool)) == 1, what=f"{tool} has begun")


@pytest.fixture
async def rig(stage: Stage, tmp_path: Path) -> AsyncIterator[Rig]:
    yield Rig(stage, Ledger(tmp_path / "ledger"))


async def test_a_tool_that_blocks_its_process_for_three_leases_acts_once(rig: Rig) -> None:
    await rig.agent("ledger_block", {"seconds": LONGER_THAN_THREE_LEASES})
    async with rig.stage.replicas(3, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        await rig.begun("ledger_block")
        assert await rig.stage.answered(1, timeout=30) == ["over"]
        await eventually(
            lambda: len(rig.ledger.entries("end", "ledger_block")) == 1, 30, "the blocked process has woken"
        )
        [run] = await rig.stage.rows("SELECT state, claims FROM agent_run")
        assert run == {"state": "completed", "claims": 2}, "another replica took the turn over"
        await rig.stage.settled(1)
        assert await rig.stage.value("SELECT state FROM tool_call") == "unknown"
    assert len(rig.ledger.entries(tool="ledger_block")) == 1
    assert len(rig.stage.platform.log) == 1
    assert await violations(rig.stage.db, at_rest=True) == {}


async def test_a_tool_that_sleeps_in_a_thread_keeps_its_turn(rig: Rig) -> None:
    await rig.agent("ledger_sleep", {"seconds": LONGER_THAN_THREE_LEASES})
    async with rig.stage.replicas(2, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        assert await rig.stage.answered(1, timeout=30) == ["over"]
    assert await rig.stage.rows("SELECT state, claims FROM agent_run") == [{"state": "completed", "claims": 1}]
    assert await rig.stage.value("SELECT state FROM tool_call") == "done"
    assert len(rig.ledger.entries(tool="ledger_sleep")) == 1


async def test_a_turn_in_which_nothing_happens_is_ended_and_the_next_message_runs(rig: Rig) -> None:
    await rig.agent("ledger_hang", {}, idle_limit_seconds=8.0)
    rig.stage.model.script({"text": "hello"}, match="next")
    async with rig.stage.replicas(1, settings=rig.ledger.settings()):
        await rig.stage.say("go")
        await rig.stage.say("next")
        assert await rig.stage.answered(2, timeout=40) == ["⚠ Nothing happened for 8 seconds, so I stopped.", "hello"]
        await rig.stage.settled(2)
    first, second = await rig.stage.rows("SELECT state, error ->> 'code' AS code FROM agent_run ORDER BY id")
    assert first == {"state": "failed", "code": "idle"}
    assert second == {"state": "completed", "code": None}
    assert await rig.stage.value("SELECT state FROM tool_call") == "unknown"
    assert await violations(rig.stage.db, at_rest=True) == {}


async def test_a_run_that_kills_its_process_each_time_is_given_up_and_the_next_runs(rig: Rig) -> None:
    await rig.agent("ledger_look", {"what": "poison"})
    rig.stage.model.script({"text": "hello"}, match="next")
    settings = {**rig.ledger.settings(), "STRATUS_FAILPOINTS": "tool.after_start=kill*1"}
    async with rig.stage.replicas(3, settings=settings) as replicas:
        await rig.stage.say("go")
        await rig.stage.say("next")
        await eventually(lambda: not any(one.running() for one in replicas), 40, "it has killed all three")
        async with rig.stage.replicas(1, settings=rig.ledger.settings()):
            said = await rig.stage.answered(2)
            await rig.stage.settled(2)
    assert said == ["⚠ I was interrupted before I could finish. Please send your message again.", "hello"]
    first, second = await rig.stage.rows("SELECT state, attempts FROM agent_run ORDER BY id")
    assert first == {"state": "interrupted", "attempts": 3}
    assert second["state"] == "completed"
    assert await violations(rig.stage.db, at_rest=True) == {}
