"""The database away: for everybody, for a worker alone, for an owner alone. Nothing is lost, nothing is done twice, order holds."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from stratus.store.database import Database
from testbed.postgres import PrivateServer
from testbed.replicas import Replica, ReplicaSet, eventually
from testbed.stage import OWNER_OFF, WORKER_OFF, Stage, logged, process_in, stage_on

AWAY_SECONDS = 20.0
LATE = timedelta(seconds=0.5)  # for a loaded machine; a replica stops 0.3 s before its 3 s lease ends
CHATS = ["c1", "c2", "c3", "c4"]
ROUNDS = 8

TAKEN_OVER = "SELECT count(*) FROM agent_run WHERE attempts > 1"
RUNS = "SELECT state, attempts, worker_id FROM agent_run ORDER BY id"
ENDED = "SELECT count(*) FROM agent_run WHERE finished_at IS NOT NULL"
OPEN_OPS = "SELECT count(*) FROM channel_outbox WHERE state IN ('pending', 'sending')"
INBOX = "SELECT payload ->> 'chat' AS chat, payload ->> 'message_id' AS key, state FROM channel_inbox ORDER BY id"
SLOW = "SELECT count(*) FROM agent_run WHERE state = 'running' AND input ->> 'text' LIKE 'slow%'"


@pytest.mark.slow
async def test_an_outage_under_load_loses_nothing_and_keeps_each_chat_in_order() -> None:
    async with PrivateServer() as server:
        dsn = await server.create()
        db = Database(dsn, main_size=4, ingress_size=2)
        await db.open()
        try:
            async with stage_on(dsn, db) as stage:
                await outage(stage, server)
        finally:
            await db.close()


async def outage(stage: Stage, server: PrivateServer) -> None:
    await stage.add_agent()
    await stage.add_channel(options={"webhook": True})
    async with stage.replicas(3) as replicas:
        processes = [replica.pid for replica in replicas]
        hook = f"{replicas[0].url}/hooks/{stage.channel_uuid}"
        stage.platform.set_webhook(hook, "webhook-secret")
        await stage.owner_among(replicas)
        await speak(stage, range(ROUNDS))
        await stage.answered(len(CHATS))
        await eventually(lambda: slow_turns(stage), what="turns that the outage will interrupt are under way")
        await server.stop()
        went = asyncio.get_running_loop().time()
        await speak(stage, range(ROUNDS, 2 * ROUNDS))
        refusal = await pushed(hook, {"id": "m999", "kind": "message", "chat": "c1", "sender": {"id": "u1"}})
        assert (refusal.status_code, refusal.headers["retry-after"].isdigit()) == (503, True)
        await eventually(
            lambda: asyncio.get_running_loop().time() - went > AWAY_SECONDS, AWAY_SECONDS + 5, "the outage has lasted"
        )
        assert [replica.running() for replica in replicas] == [True] * 3
        assert [await ready(replica) for replica in replicas] == [False] * 3
        state = await platform_state(stage)
        assert state["refusals"] > 0
        await server.start()
        await speak(stage, range(2 * ROUNDS, 3 * ROUNDS))
        await eventually(lambda: all_ready(replicas), 30, "every loop has recovered")
        total = 3 * ROUNDS * len(CHATS)
        await eventually(lambda: drained(stage, total), 60, "the backlog is drained")
        assert [replica.pid for replica in replicas if replica.running()] == processes
        assert (await platform_state(stage))["pending"] == 0
        rows = await stage.rows(INBOX)
        assert {row["state"] for row in rows} == {"routed"}
        assert sorted((row["chat"], row["key"]) for row in rows) == sorted(spoken(range(3 * ROUNDS)))
        await check_replies(stage)


def spoken(rounds: range) -> list[tuple[str, str]]:
    """What is written: chat and message, numbered within the chat."""
    return [(chat, f"m{number:03d}") for number in rounds for chat in CHATS]


async def speak(stage: Stage, rounds: range) -> None:
    """Each chat's second message has a slow turn."""
    for chat, key in spoken(rounds):
        await stage.say(f"slow 5 {key}" if key == "m001" else key, chat=chat, id=key)


async def slow_turns(stage: Stage) -> bool:
    return bool(await stage.value(SLOW))


async def pushed(hook: str, event: dict[str, Any]) -> httpx.Response:
    """One webhook request as the platform makes it."""
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        return await client.post(hook, json={"events": [event]}, headers={"X-Testchan-Secret": "webhook-secret"})


async def platform_state(stage: Stage) -> dict[str, Any]:
    """What the platform says of its webhook."""
    async with httpx.AsyncClient(trust_env=False, base_url=stage.platform_url) as client:
        found: dict[str, Any] = (await client.get("/control/state")).json()["webhooks"]["bot"]
        return found


async def ready(replica: Replica) -> bool:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        return (await client.get(f"{replica.url}/readyz")).status_code == httpx.codes.OK


async def all_ready(replicas: ReplicaSet) -> bool:
    return all([await ready(replica) for replica in replicas])


async def drained(stage: Stage, total: int) -> bool:
    return bool(await stage.value(ENDED) == total and await stage.value(OPEN_OPS) == 0)


async def check_replies(stage: Stage) -> None:
    """Each chat heard of its messages in their order, of each at most once; what it did not hear of is `unknown` to an operator."""
    unknown = await stage.value("SELECT count(*) FROM channel_outbox WHERE state = 'unknown'")
    missing = 0
    for chat in CHATS:
        answered = [one["reply_to"] for one in stage.platform.log if one["chat"] == chat]
        assert answered == sorted(set(answered)), f"{chat}: {answered}"
        missing += 3 * ROUNDS - len(answered)
    assert missing <= unknown <= len(CHATS), "at most what was at the platform when the database went"
    for one in stage.platform.log:
        said = re.match(r"You said: (m\d+)", one["text"])
        assert said and said[1] == one["reply_to"], one
    assert await stage.value(TAKEN_OVER) > 0, "turns whose leases the outage outlasted"


async def test_a_worker_cut_off_from_the_database_stops_before_another_takes_over(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(1) as [lonely]:
        await stage.say("slow 8 first")
        await eventually(lambda: running(stage), what="the turn is under way")
        async with stage.replicas(1) as [other]:
            await lonely.cut_database()
            lease_until = await stage.value("SELECT lease_until FROM session_execution")
            await logged(lonely, "turn.lease_lost", timeout=20)
            assert logged_at(lonely, "turn.lease_lost") < lease_until + LATE, "it needs nobody to tell it"
            await stage.say("second")
            await stage.answered(2, timeout=30)
            await lonely.heal()
            await lonely.wait_ready()
            await stage.say("third")
            await stage.answered(3)
            await stage.settled(3)
            assert [text.partition("\n")[0] for text in stage.sent()] == [
                "You said: first",
                "You said: second",
                "You said: third",
            ]
            runs = await stage.rows(RUNS)
            assert [(run["state"], run["attempts"]) for run in runs] == [("completed", n) for n in (2, 1, 1)]
            assert process_in(runs[0]["worker_id"]) == other.pid
    assert stage.platform.send_calls == 3


async def running(stage: Stage) -> bool:
    return await stage.run_states() == ["running"]


async def test_an_owner_cut_off_from_the_database_sends_nothing_more_though_the_platform_is_there(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    gate = stage.platform.controls.hold("held", {"text": {"contains": "said: first"}})
    async with stage.replicas(3, roles=[WORKER_OFF, WORKER_OFF, OWNER_OFF]) as replicas:
        lonely = await stage.owner_among(replicas)
        waiting = replicas[1] if lonely is replicas[0] else replicas[0]
        await stage.say("first")
        await eventually(lambda: gate.entered == 1, what="the send is at the platform")
        await lonely.cut_database()
        stage.platform.controls.release("held")
        await stage.answered(1)
        await stage.say("second")
        await stage.say("elsewhere", chat="c2")
        await stage.owned_by(waiting)
        await stage.answered(3)
        assert [pid for _, pid in stage.senders()] == [lonely.pid, waiting.pid, waiting.pid]
        await lonely.heal()
        await logged(lonely, "channel.ended", timeout=20)
        await stage.settled(3)  # the platform's answer to the first, kept meanwhile, is taken as evidence
        await stage.say("third")
        await stage.answered(4)
        await stage.settled(4)
        assert stage.senders()[-1][1] == waiting.pid
    assert stage.platform.send_calls == 4


def logged_at(replica: Replica, event: str) -> datetime:
    """When the replica first wrote this event."""
    lines = [json.loads(line) for line in replica.log_text().splitlines()]
    return next(datetime.fromisoformat(line["timestamp"]) for line in lines if line["event"] == event)
