"""Stops and interrupts are whole: what they meet while a claim or a finish is under way, and what they leave in the queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from stratus.domain.event import NewEvent
from stratus.store.database import Connection, Database
from stratus.store.execution import Append, append
from stratus.store.log import LOCK_SESSIONS
from stratus.store.run import claim
from stratus.store.stop import Halt, Stopped, halt, lock_leases, stop
from testbed.eventually import eventually
from testbed.invariants import violations
from tests.store.world import holding_the_lease, new_run, queue, rows, running, somebody_waits

STATES = "SELECT turn, state, runnable_at IS NOT NULL AS runnable FROM agent_run ORDER BY session_id, turn"
# What a claim does, so far that only its COMMIT is missing.
CLAIMING = """
WITH s AS (SELECT id FROM session WHERE id = 's1' FOR UPDATE), r AS (
    UPDATE agent_run SET state = 'running', runnable_at = NULL, started_at = clock_timestamp(), claims = 1, attempts = 1
     WHERE session_id IN (SELECT id FROM s) AND turn = 1 RETURNING id)
INSERT INTO session_execution (session_id, run_id, holder, worker_id, lease_until)
SELECT 's1', id, gen_random_uuid(), 'w', clock_timestamp() + interval '1 minute' FROM r
"""


async def states(db: Database) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await rows(db, STATES)]


async def test_a_stop_that_meets_a_claim_waits_for_it_and_asks_the_turn(db: Database, dsn: str) -> None:
    await queue(db, new_run("s1", "one"), new_run("s1", "two"))
    claimer = await asyncpg.connect(dsn)
    move = claimer.transaction()
    await move.start()
    await claimer.execute(CLAIMING)
    stopping = asyncio.create_task(stop(db, "s1", "me", queued=True))
    await eventually(lambda: somebody_waits(db), what="the stop waits for the session")
    await move.commit()
    await claimer.close()
    assert await stopping == Stopped(running=True, canceled=1)
    assert await states(db) == [(1, "running", False), (2, "canceled", False)]
    assert await rows(db, "SELECT cancel_requested FROM session_execution") == [{"cancel_requested": True}]
    terminal = "SELECT count(*) AS n FROM session_event WHERE kind = 'run.canceled'"
    assert await rows(db, terminal) == [{"n": 1}]


async def test_a_stop_waits_behind_an_append_without_a_deadlock(db: Database, dsn: str) -> None:
    """The stop takes the lease's row before the session's, as every write of the turn does."""
    claimed = await running(db)
    async with holding_the_lease(dsn) as blocker:
        stopping = asyncio.create_task(stop(db, "s1", "me", queued=True))
        await eventually(lambda: somebody_waits(db), what="the stop waits for the lease's row")
        # It holds nothing else yet: the session can be locked by the one that has the lease's row.
        await blocker.execute("SELECT 1 FROM session WHERE id = 's1' FOR UPDATE NOWAIT")
    assert (await stopping).running
    event = Append(claimed.lease, claimed.run_seq, 1, [NewEvent("usage", {})])
    assert await append(db, [event]) == [True], "a turn that is asked to end still writes its end"


async def interrupt(db: Database, *halts: Halt) -> Stopped:
    async def work(connection: Connection) -> Stopped:
        await lock_leases(connection, [one.session_id for one in halts])
        await connection.fetch(LOCK_SESSIONS, sorted(one.session_id for one in halts))
        return await halt(connection, halts, queued=False)

    return await db.transact(work)


@pytest.mark.parametrize("parked", [False, True])
async def test_an_interrupt_ends_what_is_before_it_and_spares_the_queue(db: Database, parked: bool) -> None:
    await running(db)
    await queue(db, new_run("s1", "ordinary"), replace(new_run("s1", "now"), busy="interrupt"))
    if parked:
        await db.transact(lambda c: c.execute("DELETE FROM session_execution"))
        await db.transact(lambda c: c.execute("UPDATE agent_run SET state = 'waiting' WHERE turn = 1"))
    await interrupt(db, Halt("s1", "me", before=3))
    first = (1, "canceled", False) if parked else (1, "running", False)
    assert await states(db) == [first, (2, "queued", parked), (3, "queued", False)]
    assert await violations(db, at_rest=False) == {}


async def test_an_interrupt_leaves_a_turn_that_began_after_it_alone(db: Database) -> None:
    await running(db)
    await interrupt(db, Halt("s1", "me", before=1))
    assert await rows(db, "SELECT cancel_requested FROM session_execution") == [{"cancel_requested": False}]


async def test_stops_of_many_sessions_promote_the_next_of_each(db: Database) -> None:
    for name in ("s1", "s2"):
        await queue(db, new_run(name, "one"), new_run(name, "two"))
    assert len(await claim(db, "w", 10, 60.0)) == 2
    await db.transact(lambda c: c.execute("DELETE FROM session_execution"))
    await db.transact(lambda c: c.execute("UPDATE agent_run SET state = 'waiting' WHERE turn = 1"))
    await interrupt(db, Halt("s1", "me"), Halt("s2", "you"))
    assert await states(db) == [(1, "canceled", False), (2, "queued", True)] * 2
    by = await rows(db, "SELECT cancel_by FROM agent_run WHERE state = 'canceled' ORDER BY session_id")
    assert [row["cancel_by"] for row in by] == ["me", "you"]
    assert await violations(db, at_rest=False) == {}
