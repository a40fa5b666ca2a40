"""Replicas that stand still for longer than their leases: others go on, and the one that wakes writes and sends nothing more."""

from __future__ import annotations

import pytest

from testbed.replicas import Replica, eventually
from testbed.stage import OWNER_OFF, WORKER_OFF, Stage, logged, process_in, stands_still

# Twice the testbed's idle-in-transaction limit (0.3 of the 3 s leases) and what a loaded machine needs to go on.
BEYOND_IDLE_LIMIT = 6.0

RUNS = "SELECT state, attempts, worker_id FROM agent_run ORDER BY id"
OPS = "SELECT state FROM channel_outbox ORDER BY id"
LAST_SENT = "SELECT 1 FROM channel_outbox WHERE state = 'sent' AND id = (SELECT max(id) FROM channel_outbox)"
STREAMED = """
SELECT string_agg(payload ->> 'text', '' ORDER BY run_seq) FROM session_event
 WHERE run_id = $1 AND kind = 'text.delta' AND attempt = (SELECT max(attempt) FROM session_event WHERE run_id = $1)
"""
ZOMBIE_EVENTS = """
SELECT count(*) FROM session_event e
 WHERE e.attempt = 1 AND e.seq > (SELECT min(n.seq) FROM session_event n WHERE n.run_id = e.run_id AND n.attempt = 2)
"""
ROLES = "SELECT role FROM message ORDER BY session_id, position"


async def test_an_owner_that_wakes_with_a_send_at_the_platform_sends_nothing_more(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    gate = stage.platform.controls.hold("held", {"text": {"contains": "said: one"}})
    async with stage.replicas(3, roles=[WORKER_OFF, WORKER_OFF, OWNER_OFF]) as replicas:
        owner = await stage.owner_among(replicas)
        waiting = replicas[1] if owner is replicas[0] else replicas[0]
        await stage.say("one")
        await eventually(lambda: gate.entered == 1, what="the send is at the platform")
        owner.pause()
        await stage.say("two")
        await stage.say("elsewhere", chat="c2")
        await stage.owned_by(waiting)
        await stage.answered(2)  # the lane goes on once the attempt in it can no longer be under way
        assert [pid for _, pid in stage.senders()] == [waiting.pid] * 2
        stage.platform.controls.release("held")
        await stage.answered(3)  # what had left the owner arrives late
        owner.resume()
        await logged(owner, "channel.ended")
        await stage.say("three")
        await stage.answered(4)
        # Not by their number: the late receipt may be one of them.
        await eventually(lambda: stage.rows(LAST_SENT), what="the receipt of the last")
        assert [pid for _, pid in stage.senders()] == [waiting.pid, waiting.pid, owner.pid, waiting.pid]
        first, *others = [row["state"] for row in await stage.rows(OPS)]
        assert first in ("unknown", "sent"), "the late receipt is evidence, if the owner still heard it"
        assert others == ["sent"] * 3
    assert stage.platform.send_calls == 4


async def test_an_owner_that_stops_between_its_intent_and_its_send_does_not_send_when_it_wakes(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(1, settings={"STRATUS_FAILPOINTS": "send.before_write=stop*1"}) as [owner]:
        await stage.say("one")
        await stands_still(owner)
        async with stage.replicas(1) as [other]:
            await stage.owned_by(other)
            await stage.say("two")
            await stage.answered(1)
            owner.resume()
            await logged(owner, "channel.ended")
            await stage.say("three")
            await stage.answered(2)
            await stage.settled(2)
            assert [pid for _, pid in stage.senders()] == [other.pid] * 2
            # It had begun, so that nobody but the sleeper could know that no byte had left.
            assert [row["state"] for row in await stage.rows(OPS)] == ["unknown", "sent", "sent"]
    assert stage.platform.send_calls == 2


@pytest.mark.parametrize(
    ("point", "asked", "roles"),
    [
        ("model.before_request", "hello", ["user", "assistant"]),
        ("step.before_commit", "tool", ["user", "assistant", "tool", "assistant"]),
        ("tool.after_start", "tool", ["user", "assistant", "tool", "assistant"]),
        ("finish.before_commit", "hello", ["user", "assistant"]),
    ],
)
async def test_a_worker_that_wakes_after_its_lease_writes_nothing(
    stage: Stage, point: str, asked: str, roles: list[str]
) -> None:
    await stage.add_agent(tools=["current_time"])
    await stage.add_channel()
    # The one that takes over is still at work when the sleeper wakes, at the very same run.
    waits = {"STRATUS_FAILPOINTS": "model.before_request=sleep:2"}
    async with stage.replicas(1, settings={"STRATUS_FAILPOINTS": f"{point}=stop*1"}) as [sleeper]:
        await stage.say(asked)
        await stands_still(sleeper)
        async with stage.replicas(1, settings=waits) as [other]:
            await eventually(lambda: runs_on(stage, other), 15, "the turn is taken over")
            sleeper.resume()
            await logged(sleeper, "turn.lease_lost")
            [answer] = await stage.answered(1)
            await stage.settled(1)
            assert await stage.value(STREAMED, 1) == answer
            assert await stage.value(ZOMBIE_EVENTS) == 0, "nothing of the first attempt comes after the second began"
            assert [one["role"] for one in await stage.rows(ROLES)] == roles
            [run] = await stage.rows(RUNS)
            assert (run["state"], run["attempts"], process_in(run["worker_id"])) == ("completed", 2, other.pid)
            assert [pid for _, pid in stage.senders()] == [other.pid]
    assert stage.platform.send_calls == 1


async def runs_on(stage: Stage, replica: Replica) -> bool:
    """Whether the session's turn is being executed by this process."""
    name = await stage.value("SELECT worker_id FROM session_execution")
    return name is not None and process_in(name) == replica.pid


async def test_a_claim_that_stands_still_in_its_transaction_is_taken_over(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(3, roles=[WORKER_OFF, OWNER_OFF, OWNER_OFF]) as replicas:
        owner, *workers = replicas
        await stage.owned_by(owner)
        for worker in workers:
            await worker.database_proxy.arm("SET state = 'running'", "delay")
        await stage.say("one")
        sleeper = await first_held(workers)
        sleeper.pause()
        other = workers[1] if sleeper is workers[0] else workers[0]
        await other.database_proxy.heal()
        await stage.answered(1, timeout=BEYOND_IDLE_LIMIT)
        await sleeper.database_proxy.heal()
        sleeper.resume()
        await logged(sleeper, "loop.failed")
        await stage.say("two")
        await stage.answered(2)
        [first, second] = await stage.rows(RUNS)
        assert (first["state"], first["attempts"], process_in(first["worker_id"])) == ("completed", 1, other.pid)
        assert (second["state"], second["attempts"]) == ("completed", 1)
    assert stage.platform.send_calls == 2


async def first_held(replicas: list[Replica]) -> Replica:
    """The first whose statement is held on its way to the database."""
    await eventually(lambda: any(one.database_proxy.log for one in replicas), what="a statement is held")
    return next(one for one in replicas if one.database_proxy.log)


async def test_a_finish_that_stands_still_in_its_transaction_leaves_nothing_behind(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(1) as [sleeper]:
        await stage.owned_by(sleeper)
        await sleeper.database_proxy.arm("finish_token = e.finish_token", "delay")
        await stage.say("one")
        await sleeper.database_proxy.wait_hit()
        sleeper.pause()
        async with stage.replicas(1) as [other]:
            await stage.answered(1)
            await sleeper.database_proxy.heal()
            sleeper.resume()
            await logged(sleeper, "turn.lease_lost")
            await stage.say("two")
            await stage.answered(2)
            await stage.settled(2)
            assert [one["state"] for one in await stage.rows(RUNS)] == ["completed", "completed"]
            assert [one["role"] for one in await stage.rows(ROLES)] == ["user", "assistant"] * 2
            assert [text.partition("\n")[0] for text in stage.sent()] == ["You said: one", "You said: two"]
            assert [pid for _, pid in stage.senders()] == [other.pid] * 2
    assert stage.platform.send_calls == 2
