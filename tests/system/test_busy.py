"""Messages that come while a turn works, over real replicas: taken up, put in its place, refused; and what a stop ends."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.replicas import Replica, ReplicaSet
from testbed.stage import HTTP_ONLY, OWNER_OFF, Stage

RUNS = "SELECT turn, state, cancel_by, error ->> 'code' AS code FROM agent_run WHERE session_id = $1 ORDER BY turn"
FAMILY = "SELECT session_id, kind, state, error ->> 'code' AS code FROM agent_run ORDER BY id"
CLOCK: dict[str, Any] = {"tools": [{"name": "current_time", "args": {}}]}


async def worker(stage: Stage, **fields: Any) -> None:
    """An agent at the fake model, with one tool."""
    await stage.add_agent("worker", model="fake", tools=["current_time"], **fields)


async def say(client: httpx.AsyncClient, text: str, *, key: str | None = None, **body: Any) -> httpx.Response:
    given = {"agent": "worker", "text": text, **body}
    headers = {"Idempotency-Key": key or f"key-{uuid4()}"}
    return await client.post("/sessions/s1/messages", json=given, headers=headers)


async def states(stage: Stage) -> list[str]:
    return [row["state"] for row in await stage.rows(RUNS, "s1")]


async def become(stage: Stage, *expected: str) -> None:
    async def reached() -> bool:
        return await states(stage) == list(expected)

    await eventually(reached, timeout=40, what=f"the runs to be {expected}")


def split(replicas: ReplicaSet) -> tuple[Replica, Replica]:
    """The one that only serves HTTP, and the one that executes."""
    front, back = replicas.replicas
    return front, back


async def test_a_message_through_one_replica_steers_the_turn_of_another(stage: Stage) -> None:
    await worker(stage)
    gate = stage.model.gate("first", match="look")
    stage.model.script(CLOCK, match="look")
    stage.model.script({"text": "both done"}, match="and also this")
    async with stage.replicas(2, roles=[HTTP_ONLY, OWNER_OFF]) as replicas:
        front, _ = split(replicas)
        async with stage.client(front) as client:
            first = (await say(client, "look")).json()["run"]
            await eventually(lambda: gate.entered == 1, what="the turn is at the model")
            key = f"key-{uuid4()}"
            steering = (await say(client, "and also this", busy="steer", key=key)).json()
            await say(client, "later")
            stage.model.script({"text": "the later one"}, match="later")
            stage.model.release("first")
            await become(stage, "completed", "merged", "completed")
            by_key = (await client.get(f"/sessions/s1/turns/{key}")).json()
            assert (by_key["reply"], by_key["merged_into"], by_key["standing"]) == ("both done", first, "finished")
            assert by_key["run"] == steering["run"]
            again = (await say(client, "and also this", busy="steer", key=key)).json()
            assert (again["run"], again["repeated"], again["state"]) == (steering["run"], True, "finished")
    asked = [one.call.text for one in stage.model.calls]
    assert asked == ["look", "and also this", "later"]
    assert await violations(stage.db, at_rest=True) == {}


async def test_an_interrupt_through_one_replica_ends_the_turn_of_another_and_comes_next(stage: Stage) -> None:
    await worker(stage)
    gate = stage.model.gate("held", match="long work")
    stage.model.script({"text": "now this"}, match="rather this")
    async with stage.replicas(2, roles=[HTTP_ONLY, OWNER_OFF]) as replicas:
        front, _ = split(replicas)
        async with stage.client(front) as client:
            await say(client, "long work")
            await eventually(lambda: gate.entered == 1, what="the turn is at the model")
            await say(client, "rather this", busy="interrupt")
            await become(stage, "canceled", "completed")
            stage.model.release("held")
    assert await violations(stage.db, at_rest=True) == {}


async def test_ten_repeats_of_one_key_over_three_replicas_are_one_run(stage: Stage) -> None:
    await worker(stage)
    stage.model.script({"text": "once"}, match="all at once")
    async with stage.replicas(3) as replicas:
        key = f"key-{uuid4()}"
        clients = [stage.client(replicas.replicas[n % 3]) for n in range(10)]
        answers = await asyncio.gather(*(say(client, "all at once", key=key) for client in clients))
        assert {one.status_code for one in answers} == {202}
        assert len({one.json()["run"] for one in answers}) == 1
        assert sorted(one.json()["repeated"] for one in answers) == [False] + [True] * 9
        await become(stage, "completed")
        late = (await say(clients[1], "all at once", key=key)).json()
        assert (late["repeated"], late["state"]) == (True, "finished")
        mismatch = await say(clients[2], "all at once", key=key, agent="another")
        assert (mismatch.status_code, mismatch.json()["code"]) == (409, "agent_mismatch")
        for client in clients:
            await client.aclose()
    said = await stage.rows("SELECT role FROM message ORDER BY position")
    assert [row["role"] for row in said] == ["user", "assistant"]
    assert await violations(stage.db, at_rest=True) == {}


async def test_a_stop_ends_the_children_wherever_they_run(stage: Stage) -> None:
    await stage.add_agent("boss", model="fake", tools=["delegate"], delegates=["boss", "helper"])
    await stage.add_agent("helper", model="fake")
    stage.model.script({"tools": [{"name": "delegate", "args": {"agent": "boss", "task": "middle"}}]}, match="top")
    stage.model.script({"tools": [{"name": "delegate", "args": {"agent": "helper", "task": "leaf"}}]}, match="middle")
    gate = stage.model.gate("leaf", match="leaf")
    async with stage.replicas(2, roles=[HTTP_ONLY, OWNER_OFF]) as replicas:
        front, _ = split(replicas)
        async with stage.client(front) as client:
            await say(client, "top", agent="boss")
            await eventually(lambda: gate.entered == 1, what="the grandchild is at the model")
            assert (await client.post("/sessions/s1/stop")).json() == {"running": False, "canceled": 1}

            async def ended() -> bool:
                return [row["state"] for row in await stage.rows(FAMILY)] == ["canceled"] * 3

            await eventually(ended, timeout=20, what="all three generations are canceled")
            stage.model.release("leaf")
    assert await violations(stage.db, at_rest=True) == {}


async def test_a_child_that_takes_too_long_is_ended_and_its_parent_is_told(stage: Stage) -> None:
    await stage.add_agent("boss", model="fake", tools=["delegate"], delegates=["helper"])
    await stage.add_agent("helper", model="fake")
    task = {"agent": "helper", "task": "endless", "timeout_seconds": 1}
    stage.model.script({"tools": [{"name": "delegate", "args": task}]}, {"text": "too slow"}, match="top")
    stage.model.gate("endless", match="endless")
    async with stage.replicas(1) as [replica], stage.client(replica) as client:
        await say(client, "top", agent="boss")
        await become(stage, "completed")
        stage.model.release("endless")
        told = str([one.call.body for one in stage.model.calls if one.call.text == "top"][-1]["messages"])
        assert "helper did not answer in time and was stopped." in told
        assert [row["code"] for row in await stage.rows(FAMILY)] == [None, "deadline"]
    assert await violations(stage.db, at_rest=True) == {}


async def test_steering_survives_the_replica_that_took_it_up(stage: Stage) -> None:
    """The next holder finds the message in the turn's history, and asks the model with it."""
    await worker(stage)
    first, second = stage.model.gate("first", match="look"), stage.model.gate("second", match="and also this")
    stage.model.script(CLOCK, match="look")
    stage.model.script({"text": "both done"}, match="and also this")
    async with stage.replicas(2, roles=[OWNER_OFF, OWNER_OFF]) as replicas:
        async with stage.client(replicas.replicas[0]) as client:
            await say(client, "look")
            await eventually(lambda: first.entered == 1, what="the turn is at the model")
            await say(client, "and also this", busy="steer")
        stage.model.release("first")
        await eventually(lambda: second.entered == 1, what="the turn asks with what it took up")
        at = await stage.value("SELECT worker_id FROM agent_run WHERE state = 'running'")
        holder = next(one for one in replicas.replicas if f":{one.pid}:" in at)
        await holder.kill()
        await eventually(lambda: second.entered == 2, timeout=40, what="another replica asks again")
        stage.model.release("second")
        await become(stage, "completed", "merged")
    said = await stage.rows("SELECT role FROM message ORDER BY position")
    assert [row["role"] for row in said] == ["user", "assistant", "tool", "user", "assistant"]
    assert await violations(stage.db, at_rest=True) == {}


async def test_steering_in_a_chat_is_answered_once(stage: Stage) -> None:
    await worker(stage, busy="steer")
    await stage.add_channel("worker")
    gate = stage.model.gate("first", match="look")
    stage.model.script(CLOCK, match="look")
    stage.model.script({"text": "both done"}, match="and also this")
    async with stage.replicas(2):
        await stage.say("look")
        await eventually(lambda: gate.entered == 1, what="the turn is at the model")
        await stage.say("and also this")

        async def queued() -> bool:
            return await stage.run_states() == ["running", "queued"]

        await eventually(queued, what="the message is routed")
        stage.model.release("first")
        assert await stage.answered(1) == ["both done"]
        await stage.settled(1)
    assert stage.sent() == ["both done"]
    assert await violations(stage.db, at_rest=True) == {}


async def test_busy_in_a_chat_is_told_and_stop_frees_it(stage: Stage) -> None:
    await worker(stage, busy="reject")
    await stage.add_channel("worker")
    gate = stage.model.gate("held", match="long work")
    async with stage.replicas(2):
        await stage.say("long work")
        await eventually(lambda: gate.entered == 1, what="the turn is at the model")
        await stage.say("hello?")
        await stage.say("hello??")
        [told] = await stage.answered(1)
        assert told.startswith("I am still busy with an earlier message")
        await stage.say("/stop")
        await stage.answered(2)
        stage.model.release("held")

        async def ended() -> bool:
            return await stage.run_states() == ["canceled"]

        await eventually(ended, timeout=20, what="the turn has ended")
        await stage.say("again")
        await stage.answered(3)
    assert stage.sent()[1:] == ["Stopping.", "echo: again"]
