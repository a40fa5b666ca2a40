"""Each pair of paths that lock the same rows is held against the other: one keeps its locks, the other waits, both end well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from uuid import uuid4

import asyncpg
import pytest

from stratus.domain.agent import AgentDefinition
from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.schedule import asked
from stratus.effects import Failpoints
from stratus.execution.scheduler import Scheduler
from stratus.store import agent, principal, schedule
from stratus.store.database import Connection, Database, Timeouts
from stratus.store.execution import Append, Step, append, commit_step, renew
from stratus.store.hints import Hints
from stratus.store.orphan import take_orphans
from stratus.store.run import ClaimedRun, Ending, claim, end_runs, finish
from stratus.store.schedule import NewSchedule
from stratus.store.session import enqueue
from stratus.store.steer import take_up
from stratus.store.stop import Halt, halt, lock_leases, stop_in
from testbed.eventually import eventually
from tests.store.world import completion, new_run, queue, rows, running

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@dataclass
class World:
    """A session with a running run and a queued one."""

    db: Database
    claimed: ClaimedRun


Path = Callable[[World], Awaitable[object]]


async def appends(world: World) -> object:
    lease = world.claimed.lease
    return await append(world.db, [Append(lease, world.claimed.run_seq, 1, [NewEvent("usage", {})])])


async def steps(world: World) -> object:
    await commit_step(world.db, Step(world.claimed.lease, world.claimed.run_seq, 1, 1, [NewEvent("usage", {})]))
    return None


async def finishes(world: World) -> object:
    return await finish(world.db, [completion(world.claimed)])


async def enqueues(world: World) -> object:
    return await world.db.transact(lambda c: enqueue(c, [new_run("s1", "more"), new_run("s2", "other")]))


async def stops(world: World) -> object:
    return await world.db.transact(lambda c: stop_in(c, "s1", "me", queued=True))


async def takes_up(world: World) -> object:
    await queue(world.db, replace(new_run("s1", "steer"), busy="steer"))
    return await take_up(world.db, world.claimed.lease, world.claimed.run_seq, 1)


async def interrupts(world: World) -> object:
    async def work(connection: Connection) -> object:
        await lock_leases(connection, ["s1", "s2"])
        made = await enqueue(connection, [new_run("s1", "now"), new_run("s2", "now")])
        return await halt(connection, [Halt(one.session_id, "me", before=one.turn) for one in made], queued=False)

    return await world.db.transact(work)


async def claims(world: World) -> object:
    return await claim(world.db, "other", 10, 60.0)


async def renews(world: World) -> object:
    return await world.db.read(lambda c: renew(c, [world.claimed.lease], 60.0))


async def fires(world: World) -> object:
    await agent.upsert(world.db, AgentDefinition(id="demo", model="demo"))
    owner = await principal.ensure_owner(world.db)
    new = NewSchedule(uuid4(), f"{uuid4()}", "demo", owner.id, "0 * * * *", "UTC", asked("x"), session_id="s1")
    made = await schedule.create(world.db, new)
    await world.db.transact(lambda c: c.execute("UPDATE schedule SET next_at = stratus_now() WHERE id = $1", made.id))
    return await Scheduler(world.db, Hints(world.db.dsn, Timeouts(), "test"), Failpoints()).step()


async def reaps(world: World) -> object:
    async def work(connection: Connection) -> int:
        found = await take_orphans(connection, 10)
        lease = world.claimed.lease
        endings = [Ending(lease, one.claim, one.run_seq, RunEvent.INTERRUPT, lease.holder) for one in found]
        await end_runs(connection, endings)
        return len(found)

    return await world.db.transact(work)


PATHS: list[Path] = [appends, steps, finishes, enqueues, stops, claims, renews, reaps, fires, takes_up, interrupts]
LOCKS = {
    "session_execution": "SELECT 1 FROM session_execution WHERE session_id = 's1' FOR UPDATE",
    "session": "SELECT 1 FROM session WHERE id = 's1' FOR UPDATE",
}


@pytest.mark.parametrize("second", PATHS, ids=lambda path: path.__name__)
@pytest.mark.parametrize("first", PATHS, ids=lambda path: path.__name__)
async def test_no_pair_of_paths_deadlocks(db: Database, dsn: str, first: Path, second: Path) -> None:
    """Both paths queue up behind a lock that is in their way, so that they meet in the middle once it goes."""
    world = World(db, await running(db))
    await queue(db, new_run("s1", "queued"))
    if reaps in (first, second):
        await db.transact(
            lambda c: c.execute("UPDATE session_execution SET lease_until = clock_timestamp() - interval '1 s'")
        )
    blocker = await asyncpg.connect(dsn)
    hold = blocker.transaction()
    await hold.start()
    await blocker.execute(LOCKS["session"])
    both = asyncio.gather(first(world), second(world), return_exceptions=True)
    await eventually(lambda: both.done() or at_least_one_waits(blocker), what="a path waits for the session's row")
    await hold.rollback()
    results = await both
    await blocker.close()
    deadlocks = [one for one in results if isinstance(one, Exception) and "eadlock" in repr(one.__cause__)]
    assert deadlocks == []
    assert (
        await rows(
            db,
            "SELECT s.id FROM session s WHERE s.event_seq <> (SELECT count(*) FROM session_event e WHERE e.session_id = s.id)",
        )
        == []
    )


async def at_least_one_waits(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    return bool(await connection.fetchval(WAITING))


async def test_a_path_that_takes_the_locks_the_other_way_round_is_found(db: Database, dsn: str) -> None:
    """The negative fixture: session first and the lease second does deadlock with a finish."""
    claimed = await running(db)
    wrong = await asyncpg.connect(dsn)
    backwards = wrong.transaction()
    await backwards.start()
    await wrong.execute("SET LOCAL deadlock_timeout = '100ms'")
    await wrong.execute(LOCKS["session"])
    ending = asyncio.ensure_future(finish(db, [completion(claimed)]))
    await eventually(lambda: at_least_one_waits(wrong), what="the finish waits for the session")
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await wrong.execute(LOCKS["session_execution"])
    await backwards.rollback()
    await wrong.close()
    assert await ending == [True]
