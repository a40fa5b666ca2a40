"""Schedules on several real replicas: killed, paused and racing, each occurrence is one run and one answer in its chat."""

from __future__ import annotations

from uuid import uuid4

import pytest

from stratus.domain.schedule import CatchUp, asked
from stratus.domain.values import ReplyTo
from stratus.store import principal, schedule
from stratus.store.schedule import NewSchedule
from testbed.invariants import sent_twice, violations
from testbed.replicas import eventually
from testbed.stage import Stage, stands_still

# A minute in the past, so that a test need not wait for one.
MAKE_DUE = (
    "UPDATE schedule SET next_at = date_trunc('minute', stratus_now()) - make_interval(mins => $1) WHERE name ^@ $2"
)
OCCURRENCES = """
SELECT s.name, o.due_at, o.state, o.reason, r.state AS run_state FROM schedule_occurrence o
  JOIN schedule s ON s.id = o.schedule_id LEFT JOIN agent_run r ON r.id = o.run_id ORDER BY s.name, o.due_at
"""


async def add(stage: Stage, name: str, *, chat: str = "c1", catch_up: CatchUp = CatchUp.ONE) -> None:
    owner = await principal.ensure_owner(stage.db)
    to = ReplyTo(channel_id=stage.channel_id, platform="testchan", chat=chat)
    # Rarely due by itself: how long a test takes decides nothing.
    cron = "* * * * *" if catch_up is CatchUp.ALL else "0 0 29 2 *"
    new = NewSchedule(uuid4(), name, "demo", owner.id, cron, "UTC", asked(f"report {name}"), catch_up, reply_to=to)
    await schedule.create(stage.db, new)


async def make_due(stage: Stage, prefix: str, *, minutes: int = 0) -> None:
    await stage.db.transact(lambda c: c.execute(MAKE_DUE, minutes, prefix))


async def at_rest(stage: Stage) -> bool:
    return not await violations(stage.db, at_rest=True)


async def test_a_replica_killed_before_its_commit_leaves_the_occurrence_to_another(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    await add(stage, "daily")
    dying = {"STRATUS_FAILPOINTS": "schedule.before_commit=kill"}
    async with stage.replicas(3, roles=[dying]) as replicas:
        for other in replicas.replicas[1:]:
            other.pause()
        await make_due(stage, "daily")
        await eventually(lambda: not replicas[0].running(), 30, "the first replica died in its step")
        assert await stage.rows(OCCURRENCES) == []
        assert await stage.run_states() == []
        for other in replicas.replicas[1:]:
            other.resume()
        [answer] = await stage.answered(1, timeout=30)
        assert "report daily" in answer
        await eventually(lambda: at_rest(stage), 30, "everything comes to rest")
        assert [one["chat"] for one in stage.platform.log] == ["c1"]
        [only] = await stage.rows(OCCURRENCES)
        assert (only["state"], only["run_state"]) == ("run", "completed")
        assert await stage.run_states() == ["completed"]


async def test_a_replica_that_stands_still_in_its_step_and_goes_on_later_adds_nothing(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    await add(stage, "daily")
    stopping = {"STRATUS_FAILPOINTS": "schedule.before_commit=stop*1"}
    async with stage.replicas(2, roles=[stopping]) as replicas:
        replicas[1].pause()
        await make_due(stage, "daily")
        await stands_still(replicas[0])
        replicas[1].resume()
        await stage.answered(1, timeout=30)
        replicas[0].resume()
        await eventually(lambda: at_rest(stage), 30, "everything comes to rest")
        await add(stage, "later", chat="c2")
        await make_due(stage, "later")
        await eventually(lambda: stage.sent("c2"), 30, "both go on")
        await eventually(lambda: at_rest(stage), 30, "everything comes to rest")
    assert [one["name"] for one in await stage.rows(OCCURRENCES)] == ["daily", "later"]
    assert await stage.run_states() == ["completed", "completed"]
    assert [one["chat"] for one in stage.platform.log] == ["c1", "c2"]


@pytest.mark.timeout(120)
async def test_many_schedules_on_three_replicas_one_of_which_dies(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    names = [f"s{n:02}" for n in range(60)]
    for name in names:
        await add(stage, name, chat=f"chat of {name}")
    async with stage.replicas(3) as replicas:
        await make_due(stage, "s")

        async def begun() -> bool:
            return bool(await stage.rows("SELECT 1 FROM schedule_occurrence LIMIT 1"))

        await eventually(begun, 30, "the first occurrences are recorded")
        await replicas[0].kill()
        await eventually(lambda: stage_is_through(stage, len(names)), 60, "every schedule has run")
        await eventually(lambda: at_rest(stage), 30, "everything comes to rest")
    found = await stage.rows(OCCURRENCES)
    assert [(one["name"], one["state"]) for one in found] == [(name, "run") for name in names]
    assert len(await stage.run_states()) == len(names)
    assert sent_twice(stage.platform.log) == []
    # Not an answer each: a turn that died with its replica says so instead.
    assert {one["chat"] for one in stage.platform.log} == {f"chat of {name}" for name in names}


async def stage_is_through(stage: Stage, count: int) -> bool:
    return len(await stage.rows("SELECT 1 FROM schedule_occurrence")) >= count


async def test_after_an_outage_all_that_was_missed_runs_one_after_the_other(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    await add(stage, "each", catch_up=CatchUp.ALL)
    await make_due(stage, "each", minutes=4)
    async with stage.replicas(2):
        await stage.answered(5, timeout=30)
        await eventually(lambda: at_rest(stage), 30, "everything comes to rest")
    found = await stage.rows(OCCURRENCES)
    assert [one["run_state"] for one in found[:5]] == ["completed"] * 5
    turns = await stage.rows("SELECT turn, started_at, finished_at FROM agent_run ORDER BY turn")
    assert all(one["finished_at"] <= two["started_at"] for one, two in zip(turns, turns[1:], strict=False))
