"""Delegated runs end with the turn that asked for them, down all generations, and when their time is up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from stratus.domain.run import RunEvent
from stratus.store.database import Database
from stratus.store.execution import canceled
from stratus.store.family import cancel_orphans
from stratus.store.orphan import take_orphans
from stratus.store.run import ClaimedRun, Ending, claim, end_runs, finish
from stratus.store.session import Parent
from stratus.store.stop import stop
from stratus.store.waiting import resume_ready
from testbed.invariants import violations
from tests.store.world import new_run, queue, rows, running

WAIT = "UPDATE agent_run SET state = 'waiting' WHERE session_id = $1"
DROP = "DELETE FROM session_execution WHERE session_id = $1"
PAST = "UPDATE agent_run SET deadline_at = clock_timestamp() - interval '1 second' WHERE session_id = $1"
STATES = "SELECT session_id, state FROM agent_run ORDER BY id"


async def park(db: Database, session: str) -> None:
    """As a park leaves it: the run waits, and the lease is gone."""
    await db.transact(lambda c: c.execute(DROP, session))
    await db.transact(lambda c: c.execute(WAIT, session))


async def child(db: Database, parent: int, session: str, *, depth: int = 1, seconds: float = 3600.0) -> int:
    [made] = await queue(db, replace(new_run(session), kind="delegated", parent=Parent(parent, "call", depth, seconds)))
    return made.run_id


async def states(db: Database) -> dict[object, object]:
    return {row["session_id"]: row["state"] for row in await rows(db, STATES)}


async def sweep(db: Database) -> int:
    rounds = 0
    while await cancel_orphans(db, 10):
        rounds += 1
    return rounds


@pytest.fixture
async def parent(db: Database) -> ClaimedRun:
    """A turn that waits for a child, which waits for a grandchild."""
    claimed = await running(db, "parent")
    made = await child(db, claimed.lease.run_id, "child")
    await park(db, "parent")
    await claim(db, "w", 10, 60.0)
    await child(db, made, "grandchild", depth=2)
    await park(db, "child")
    return claimed


async def test_stopping_a_turn_ends_its_children_and_theirs(db: Database, parent: ClaimedRun) -> None:
    assert await cancel_orphans(db, 10) == []
    await stop(db, "parent", "me", queued=True)
    assert await states(db) == {"parent": "canceled", "child": "waiting", "grandchild": "queued"}
    assert await sweep(db) == 2
    assert await states(db) == {"parent": "canceled", "child": "canceled", "grandchild": "canceled"}
    told = await rows(
        db, "SELECT payload ->> 'by' AS by FROM session_event WHERE kind = 'run.canceled' ORDER BY run_id"
    )
    assert told[1] == {"by": f"run:{parent.run}"}
    assert await violations(db, at_rest=True) == {}


async def test_a_running_child_is_asked_once_and_its_holder_ends_it(db: Database) -> None:
    claimed = await running(db, "parent")
    await child(db, claimed.lease.run_id, "child")
    await park(db, "parent")
    [working] = await claim(db, "w", 10, 60.0)
    await stop(db, "parent", "me", queued=True)
    [asked] = await cancel_orphans(db, 10)
    assert asked.running
    assert await canceled(db, [working.lease.holder]) == {"child"}
    assert await cancel_orphans(db, 10) == []
    assert await finish(db, [Ending(working.lease, 1, 0, RunEvent.CANCEL, working.lease.holder)]) == [True]
    assert (await states(db))["child"] == "canceled"


async def test_many_replicas_sweep_without_a_second_ending(db: Database, parent: ClaimedRun) -> None:
    await stop(db, "parent", "me", queued=True)
    await asyncio.gather(*(sweep(db) for _ in range(4)))
    counts = await rows(db, "SELECT count(*) AS n FROM session_event WHERE kind = 'run.canceled' GROUP BY run_id")
    assert counts == [{"n": 1}] * 3
    assert await violations(db, at_rest=True) == {}


async def test_a_deadline_ends_a_queued_child_and_its_parent_goes_on(db: Database) -> None:
    claimed = await running(db, "parent")
    await child(db, claimed.lease.run_id, "child")
    await park(db, "parent")
    assert await resume_ready(db, 10) == []
    await db.transact(lambda c: c.execute(PAST, "child"))
    assert await sweep(db) == 1
    ended = await rows(
        db, "SELECT state, error ->> 'code' AS code, cancel_by FROM agent_run WHERE session_id = 'child'"
    )
    assert ended == [{"state": "canceled", "code": "deadline", "cancel_by": "deadline"}]
    event = "SELECT payload -> 'error' ->> 'code' AS code FROM session_event WHERE kind = 'run.canceled'"
    assert await rows(db, event) == [{"code": "deadline"}]
    assert await resume_ready(db, 10) == ["parent"]


@pytest.mark.parametrize("ends", ["holder", "reaper"])
async def test_a_deadline_of_a_running_child_is_its_error_whoever_ends_it(db: Database, ends: str) -> None:
    claimed = await running(db, "parent")
    await child(db, claimed.lease.run_id, "child")
    await park(db, "parent")
    [working] = await claim(db, "w", 10, 60.0)
    await db.transact(lambda c: c.execute(PAST, "child"))
    assert await sweep(db) == 1
    if ends == "holder":
        await finish(db, [Ending(working.lease, 1, 0, RunEvent.CANCEL, working.lease.holder)])
    else:
        await db.transact(lambda c: c.execute(DROP, "child"))
        [orphan] = await db.transact(lambda c: take_orphans(c, 10))
        assert orphan.cancel_requested
        ending = Ending(working.lease, 1, orphan.run_seq, RunEvent.CANCEL, working.lease.holder)
        await db.transact(lambda c: end_runs(c, [ending]))
    assert await rows(db, "SELECT error ->> 'code' AS code FROM agent_run WHERE session_id = 'child'") == [
        {"code": "deadline"}
    ]
    event = "SELECT payload -> 'error' ->> 'code' AS code FROM session_event WHERE kind = 'run.canceled'"
    assert await rows(db, event) == [{"code": "deadline"}]


async def test_a_child_that_completes_all_the_same_has_no_error(db: Database) -> None:
    claimed = await running(db, "parent")
    await child(db, claimed.lease.run_id, "child")
    await park(db, "parent")
    [working] = await claim(db, "w", 10, 60.0)
    await db.transact(lambda c: c.execute(PAST, "child"))
    await sweep(db)
    await finish(db, [Ending(working.lease, 1, 0, RunEvent.COMPLETE, working.lease.holder)])
    assert await rows(db, "SELECT state, error FROM agent_run WHERE session_id = 'child'") == [
        {"state": "completed", "error": None}
    ]


async def test_a_child_whose_time_is_not_up_and_whose_parent_waits_is_left_alone(db: Database) -> None:
    claimed = await running(db, "parent")
    await child(db, claimed.lease.run_id, "child", seconds=60.0)
    await park(db, "parent")
    assert await cancel_orphans(db, 10) == []
