"""Chat messages in sessions that are at work, by their agent's policy: the router on a real database, the test plays the worker."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from stratus.domain.agent import AgentDefinition, BusyPolicy
from stratus.effects import Failpoints
from stratus.ingress.busy import BUSY
from stratus.ingress.router import Router
from stratus.store import agent, inbox
from stratus.store.database import Database
from stratus.store.hints import Hints
from stratus.store.inbox import Arrival
from stratus.store.run import ClaimedRun, claim, finish
from stratus.store.steer import take_up
from testbed.eventually import eventually
from testbed.invariants import violations
from tests.store.world import completion, event, holding_the_lease, make_channel, rows, somebody_waits

EVENTS = "SELECT state, outcome ->> 'reason' AS reason FROM channel_inbox ORDER BY id"
RUNS = "SELECT session_id, turn, state, busy FROM agent_run ORDER BY id"
TOLD = "SELECT payload ->> 'text' AS text FROM channel_outbox ORDER BY id"
PARK = "UPDATE agent_run SET state = 'waiting' WHERE state = 'running'"
UNLEASE = "DELETE FROM session_execution"


class Chat:
    """A channel whose agent has one of the policies; keys number the events."""

    def __init__(self, db: Database, channel_id: int) -> None:
        self.db = db
        self.channel_id = channel_id
        self.router = Router(db, Hints(db.dsn, db.timeouts, "test"), Failpoints())
        self._keys = 0

    async def say(self, *texts: str, chat: str = "c1", sender: str = "7") -> None:
        """Messages that are routed in one batch."""
        said = []
        for text in texts:
            self._keys += 1
            said.append(Arrival(self.channel_id, event(str(self._keys), text, chat, sender)))
        await inbox.intake(self.db, said)
        await self.router.step()

    async def claimed(self) -> ClaimedRun:
        [one] = await claim(self.db, "worker", 10, 60.0)
        return one


async def chat(db: Database, policy: BusyPolicy) -> Chat:
    await agent.upsert(db, AgentDefinition(id="demo", model="demo", busy=policy))
    return Chat(db, await make_channel(db))


@pytest.mark.parametrize("policy", get_args(BusyPolicy))
async def test_with_nothing_open_every_policy_queues(db: Database, policy: BusyPolicy) -> None:
    here = await chat(db, policy)
    await here.say("one")
    assert (await here.claimed()).input.text == "one"
    assert [row["busy"] for row in await rows(db, RUNS)] == [policy]


async def test_queue_waits_for_its_turn(db: Database) -> None:
    here = await chat(db, "queue")
    await here.say("one")
    await here.claimed()
    await here.say("two", "three")
    assert [row["state"] for row in await rows(db, RUNS)] == ["running", "queued", "queued"]


async def test_steer_is_taken_up_by_the_turn_and_answered_with_it(db: Database) -> None:
    here = await chat(db, "steer")
    await here.say("one")
    claimed = await here.claimed()
    await here.say("two", "three")
    taken = await take_up(db, claimed.lease, claimed.run_seq, 1)
    assert [message.text() for message in taken] == ["two", "three"]
    assert await finish(db, [completion(claimed)]) == [True]
    assert [row["state"] for row in await rows(db, RUNS)] == ["completed", "merged", "merged"]
    assert await rows(db, TOLD) == []
    assert await violations(db, at_rest=False) == {}


async def test_interrupt_asks_the_running_turn_to_end_in_the_routers_transaction(db: Database) -> None:
    here = await chat(db, "interrupt")
    await here.say("one")
    await here.claimed()
    await here.say("two", "three")
    assert [row["state"] for row in await rows(db, RUNS)] == ["running", "queued", "queued"]
    assert await rows(db, "SELECT cancel_requested FROM session_execution") == [{"cancel_requested": True}]
    assert await rows(db, "SELECT cancel_by FROM agent_run WHERE state = 'running'") == [{"cancel_by": "testchan:7"}]


async def test_interrupt_ends_a_waiting_turn_at_once_and_comes_next(db: Database) -> None:
    here = await chat(db, "interrupt")
    await here.say("one")
    await here.claimed()
    await db.transact(lambda c: c.execute(UNLEASE))
    await db.transact(lambda c: c.execute(PARK))
    await here.say("two")
    assert [row["state"] for row in await rows(db, RUNS)] == ["canceled", "queued"]
    assert (await here.claimed()).input.text == "two"
    assert await violations(db, at_rest=False) == {}


async def test_interrupts_of_many_chats_in_one_batch_end_each_its_own_turn(db: Database) -> None:
    here = await chat(db, "interrupt")
    for name in ("a", "b", "quiet"):
        await here.say(f"first {name}", chat=name)
    assert len(await claim(db, "worker", 10, 60.0)) == 3
    said = [Arrival(here.channel_id, event(f"x{name}", "stop that", name)) for name in ("b", "a")]
    await inbox.intake(db, said)
    await here.router.step()
    asked = await rows(db, "SELECT cancel_requested FROM session_execution ORDER BY session_id")
    assert [row["cancel_requested"] for row in asked] == [True, True, False]


async def test_interrupts_take_the_leases_rows_before_any_sessions(db: Database, dsn: str) -> None:
    here = await chat(db, "interrupt")
    await here.say("first a", chat="a")
    await here.say("first b", chat="b")
    assert len(await claim(db, "worker", 10, 60.0)) == 2
    async with holding_the_lease(dsn, "%:b:1") as blocker:
        said = [Arrival(here.channel_id, event(f"x{name}", "stop that", name)) for name in ("a", "b")]
        await inbox.intake(db, said)
        routing = asyncio.create_task(here.router.step())
        await eventually(lambda: somebody_waits(db), what="the batch waits for a lease's row")
        assert len(await blocker.fetch("SELECT 1 FROM session WHERE agent_id = 'demo' FOR UPDATE NOWAIT")) == 2
    await routing
    assert await rows(db, "SELECT DISTINCT cancel_requested FROM session_execution") == [{"cancel_requested": True}]


async def test_reject_refuses_what_comes_meanwhile_and_says_so_once_a_turn(db: Database) -> None:
    here = await chat(db, "reject")
    await here.say("one", "two", "three")
    assert [row["state"] for row in await rows(db, EVENTS)] == ["routed", "rejected", "rejected"]
    claimed = await here.claimed()
    await here.say("four")
    assert await rows(db, TOLD) == [{"text": BUSY}]
    await here.say("five", sender="8")
    assert await rows(db, TOLD) == [{"text": BUSY}] * 2, "each sender is told"
    await finish(db, [completion(claimed)])
    await here.say("six")
    await here.claimed()
    await here.say("seven")
    assert await rows(db, TOLD) == [{"text": BUSY}] * 3, "another turn is in the way"
    assert [row["reason"] for row in await rows(db, EVENTS) if row["state"] == "rejected"] == ["busy"] * 5
    assert [row["state"] for row in await rows(db, RUNS)] == ["completed", "running"]


async def test_reject_lets_other_chats_through(db: Database) -> None:
    here = await chat(db, "reject")
    await here.say("one", chat="a")
    await here.say("two", chat="b")
    assert len(await claim(db, "worker", 10, 60.0)) == 2
