"""SIGTERM: turns end or are given back, answers are sent, streams are told, and the process ends with 0 within its budget."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import httpx

from testbed.replicas import Replica, eventually
from testbed.stage import HTTP_ONLY, OWNER_OFF, WORKER_OFF, Stage, logged, process_in

BUDGET = 5.0  # STRATUS_DRAIN of the testbed; a drain that takes longer ends with 1
RUNS = "SELECT state, attempts, worker_id FROM agent_run ORDER BY id"


async def test_a_turn_in_the_model_call_ends_inside_the_budget_and_another_sends_its_answer(stage: Stage) -> None:
    await stage.add_agent(model="fake")
    await stage.add_channel()
    parked = stage.model.gate("parked")
    async with stage.replicas(2, roles=[WORKER_OFF, OWNER_OFF]) as replicas:
        owner, worker = replicas
        await stage.say("hello")
        await eventually(lambda: parked.entered == 1, 30, "the worker is in the model call")
        ending = asyncio.create_task(worker.drain())
        await logged(worker, "replica.draining")
        await stage.say("later")
        stage.model.release("parked")
        assert await ending == 0
        assert await stage.answered(1) == ["echo: hello"]
        assert stage.senders() == [("echo: hello", owner.pid)]
        [first, second] = await stage.rows(RUNS)
        assert (first["state"], first["attempts"]) == ("completed", 1)
        assert (second["state"], second["attempts"]) == ("queued", 0), "a draining worker claims nothing"
    assert len(stage.model.calls) == 1


async def test_a_claim_committed_just_before_the_signal_is_carried_out(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    roles = [WORKER_OFF, {**OWNER_OFF, "STRATUS_FAILPOINTS": "claim.after_commit=sleep:2"}]
    async with stage.replicas(2, roles=roles) as replicas:
        worker = replicas[1]
        await stage.say("hello")
        await eventually(lambda: running(stage), what="the claim is committed")
        assert await worker.drain() == 0
        [answer] = await stage.answered(1)
        assert answer.startswith("You said: hello")
        [run] = await stage.rows(RUNS)
        assert (run["state"], run["attempts"], process_in(run["worker_id"])) == ("completed", 1, worker.pid)


async def running(stage: Stage) -> bool:
    return await stage.run_states() == ["running"]


async def test_a_turn_that_outlasts_the_budget_goes_on_elsewhere_and_costs_no_attempt(stage: Stage) -> None:
    await stage.add_agent(model="fake")
    await stage.add_channel()
    parked = stage.model.gate("parked")
    async with stage.replicas(1) as [worker]:
        await stage.say("hello")
        await eventually(lambda: parked.entered == 1, 30, "the worker is in the model call")
        async with stage.replicas(1) as [other]:
            assert await worker.drain() == 0
            await eventually(lambda: parked.entered == 2, 30, "the other asks the model")
            stage.model.release("parked")
            assert await stage.answered(1) == ["echo: hello"]
            await stage.settled(1)
            assert stage.senders() == [("echo: hello", other.pid)]
            [run] = await stage.rows(RUNS)
            assert (run["state"], run["attempts"], process_in(run["worker_id"])) == ("completed", 1, other.pid)
            assert await stage.counts() == {"inbox": 1, "runs": 1, "messages": 2, "ops": 1, "sent": 1}


async def test_an_idle_stream_does_not_delay_the_end_and_is_told_to_resume(stage: Stage) -> None:
    await stage.add_agent()
    async with stage.replicas(2, roles=[OWNER_OFF, HTTP_ONLY]) as replicas:
        ending = replicas[1]
        await ask(stage, ending)
        path = "/sessions/web/messages?follow=session"
        async with (
            stage.client(ending, Accept="text/event-stream") as client,
            client.stream("GET", path) as response,
        ):
            lines = response.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            assert await ending.drain() == 0
            rest = [line async for line in lines if line]
        assert drain_seconds(ending) < BUDGET / 2
        assert rest[-1].startswith("retry: "), rest
        assert 0 < int(rest[-1].removeprefix("retry: ")) < 2000


def drain_seconds(replica: Replica) -> float:
    """How long the replica's drain took, by its own log."""
    lines = [json.loads(line) for line in replica.log_text().splitlines()]
    at = {line["event"]: datetime.fromisoformat(line["timestamp"]) for line in lines}
    return (at["replica.ended"] - at["replica.draining"]).total_seconds()


async def ask(stage: Stage, replica: Replica) -> None:
    """One finished turn, so that there is a session whose stream has nothing to say."""
    async with stage.client(replica, **{"Idempotency-Key": "a-key-of-16-chars"}) as client:
        answer = await client.post("/sessions/web/messages", json={"agent": "demo", "text": "hi"})
        assert answer.status_code == httpx.codes.ACCEPTED
    await eventually(lambda: completed(stage), what="the turn is over")


async def completed(stage: Stage) -> bool:
    return await stage.run_states() == ["completed"]


async def test_a_draining_owner_ends_its_sends_and_gives_its_channel_back_at_once(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    gate = stage.platform.controls.hold("held", {})
    async with stage.replicas(2, settings={"STRATUS_CHANNEL_TTL": "60s"}) as replicas:
        owner = await stage.owner_among(replicas)
        other = replicas[1] if owner is replicas[0] else replicas[0]
        await stage.say("hello")
        await eventually(lambda: gate.entered == 1, what="the send is at the platform")
        ending = asyncio.create_task(owner.drain())
        await logged(owner, "replica.draining")
        stage.platform.controls.release("held")
        assert await ending == 0
        await stage.owned_by(other)
        await stage.say("next")
        await stage.answered(2)
        await stage.settled(2)
        assert [pid for _, pid in stage.senders()] == [owner.pid, other.pid]
    assert stage.platform.send_calls == 2
