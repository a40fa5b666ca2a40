"""A turn on a real database with the demo model: what is kept of it when it is broken off, and by whom it is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from stratus.agents.pool import ModelPool
from stratus.agents.tools import Tool, ToolRegistry, tool
from stratus.agents.toolsets import Toolsets
from stratus.channel.values import Limits
from stratus.domain.agent import AgentDefinition
from stratus.domain.history import repaired
from stratus.domain.values import Message
from stratus.effects import Batcher, Clock, Failpoints, Ids
from stratus.execution.ending import TurnTools
from stratus.execution.journal import Journal
from stratus.execution.turn import Abort, Turn
from stratus.store.agent import upsert
from stratus.store.database import Database, Timeouts
from stratus.store.execution import append
from stratus.store.message import history
from stratus.store.run import Ending, claim, finish
from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.pgproxy import PgProxy
from tests.store.world import new_run, queue, rows


@dataclass
class Rig:
    """What turns need, on one database; `entered` is set when the tool has begun, which ends only by cancellation."""

    db: Database
    tools: TurnTools
    entered: asyncio.Event

    async def turn(self, text: str) -> Turn:
        await queue(self.db, new_run("s1", text))
        [claimed] = await claim(self.db, "w", 1, 60.0)
        told = await self.db.read(lambda c: history(c, ["s1"]))
        return Turn(claimed, told["s1"], self.tools, lambda _journal: None, Clock().monotonic() + 60.0)

    async def messages(self) -> list[Message]:
        return [message for _, message in await self.told()]

    async def told(self) -> list[tuple[int, Message]]:
        return (await self.db.read(lambda c: history(c, ["s1"])))["s1"]


async def broken_off_in_a_call(rig: Rig, why: Abort) -> bool:
    """Run a turn into its tool and take it from there; whether it ended its run or gave it back."""
    turn = await rig.turn("tool")
    running = asyncio.create_task(turn.execute())
    await rig.entered.wait()
    turn.abort(why)
    return await running


async def rig_on(db: Database) -> AsyncIterator[Rig]:
    entered = asyncio.Event()

    @tool(effect="once")
    async def current_time() -> str:
        """Never answers."""
        entered.set()
        await asyncio.Event().wait()
        return ""

    assert isinstance(current_time, Tool)
    finisher: Batcher[Ending, bool] = Batcher(lambda endings: finish(db, endings))
    limits = Limits(text_max=4096)
    tools = TurnTools(
        db,
        ModelPool({}),
        Toolsets(ToolRegistry({"current_time": lambda: current_time})),
        finisher,
        lambda _: limits,
        Clock(),
        Ids(),
        Failpoints(),
    )
    await upsert(db, AgentDefinition(id="demo", model="demo", tools=["current_time"]))
    serving = asyncio.create_task(finisher.run())
    yield Rig(db, tools, entered)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.fixture
async def rig(db: Database) -> AsyncIterator[Rig]:
    async for made in rig_on(db):
        yield made


async def test_what_was_visible_of_a_stopped_answer_stays_in_history(rig: Rig) -> None:
    turn = await rig.turn("slow 60 hello")
    journal: Journal = turn._journal
    running = asyncio.create_task(turn.execute())
    await eventually(lambda: len(journal.spoken()) > 3, what="some text is streamed")
    turn.abort(Abort.CANCELED)
    assert await running
    said = await rig.messages()
    assert [message.role for message in said] == ["user", "assistant"]
    assert said[1].text() and len(said[1].text()) < 200
    assert await rows(rig.db, "SELECT state FROM agent_run") == [{"state": "canceled"}]
    assert await violations(rig.db, at_rest=True) == {}


async def test_a_call_in_flight_is_answered_as_interrupted_and_ends_unknown(rig: Rig) -> None:
    assert await broken_off_in_a_call(rig, Abort.CANCELED)
    said = await rig.messages()
    assert [message.role for message in said] == ["user", "assistant", "tool"]
    assert repaired(said) == said, "nothing is left for the next request to repair"
    assert await rows(rig.db, "SELECT state FROM tool_call") == [{"state": "unknown"}]


async def test_a_turn_that_is_given_back_keeps_its_steps_and_nothing_half_said(rig: Rig) -> None:
    assert await broken_off_in_a_call(rig, Abort.YIELDED)
    assert [message.role for message in await rig.messages()] == ["user", "assistant"]
    assert await rows(rig.db, "SELECT state, attempts FROM agent_run") == [{"state": "queued", "attempts": 0}]
    assert await rows(rig.db, "SELECT state FROM tool_call") == [{"state": "started"}]


async def test_a_call_that_acts_once_is_not_run_again_by_the_next_holder(rig: Rig) -> None:
    assert await broken_off_in_a_call(rig, Abort.YIELDED)
    rig.entered.clear()
    [claimed] = await claim(rig.db, "another", 1, 60.0)
    again = Turn(claimed, await rig.told(), rig.tools, lambda _journal: None, Clock().monotonic() + 60.0)
    assert await again.execute()
    assert not rig.entered.is_set()
    assert await rows(rig.db, "SELECT state FROM tool_call") == [{"state": "unknown"}]
    assert [message.role for message in await rig.messages()] == ["user", "assistant", "tool", "assistant"]


async def test_a_lost_lease_ends_nothing(rig: Rig) -> None:
    assert not await broken_off_in_a_call(rig, Abort.LOST)
    assert await rows(rig.db, "SELECT state FROM agent_run") == [{"state": "running"}]


async def test_a_stop_in_the_middle_of_a_commit_counts_what_was_committed(dsn: str, db: Database) -> None:
    async with PgProxy(dsn) as proxy:
        far = Database(proxy.dsn, timeouts=Timeouts(statement=5.0, idle_in_transaction=5.0, lock=2.0), main_size=3)
        await far.open()
        async for rig in rig_on(far):
            turn = await rig.turn("tool")
            await proxy.arm("COMMIT", "delay", within="INSERT INTO tool_call")
            running = asyncio.create_task(turn.execute())
            await proxy.wait_hit()
            turn.abort(Abort.CANCELED)
            await proxy.release()
            assert await running
        await far.close()
    assert await rows(db, "SELECT state FROM agent_run") == [{"state": "canceled"}]
    assert await violations(db, at_rest=True) == {}


async def test_the_recorder_and_a_step_never_write_the_same_delta(rig: Rig) -> None:
    turn = await rig.turn("hello")
    journal: Journal = turn._journal
    journal.delta("text.delta", 0, "a")
    async with journal.lock:
        [written] = await append(rig.db, [journal.append(journal.take())])
        journal.written(1)
    assert written
    journal.delta("text.delta", 0, "b")
    await journal.commit(1, [])
    stored = await rows(
        rig.db, "SELECT payload ->> 'text' AS text FROM session_event WHERE kind = 'text.delta' ORDER BY seq"
    )
    assert [row["text"] for row in stored] == ["a", "b"]
