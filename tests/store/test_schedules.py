"""Schedules on a real database: each occurrence once, as a run or a stated skip, whoever steps, whatever was missed, and when COMMIT is in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import AgentMismatch, BadInput, Conflict, NotFound
from stratus.domain.schedule import CatchUp, asked
from stratus.domain.values import ReplyTo
from stratus.effects import Failpoints
from stratus.execution.scheduler import Scheduler
from stratus.store import agent, channel, principal, schedule
from stratus.store.database import Database, Timeouts
from stratus.store.hints import Hints
from stratus.store.schedule import NewSchedule, ScheduleRow
from testbed.pgproxy import Action, PgProxy
from tests.store.world import as_owner, make_channel, new_run, queue, rows

# A test's database may have another time: everything that a schedule does goes by this one.
MOVE_CLOCK = """
CREATE OR REPLACE FUNCTION stratus_now() RETURNS timestamptz LANGUAGE sql STABLE AS
$$ SELECT statement_timestamp() + interval '{} seconds' $$
"""
RUNS = "SELECT kind, session_id, request_key, input ->> 'text' AS text FROM agent_run ORDER BY id"
ROWS = "SELECT due_at, state, reason, run_id FROM schedule_occurrence ORDER BY due_at"
DUE = "UPDATE schedule SET next_at = $1"


def scheduler(db: Database) -> Scheduler:
    return Scheduler(db, Hints(db.dsn, Timeouts(), "test"), Failpoints())


async def add(db: Database, name: str = "daily", cron: str = "0 * * * *", **fields: Any) -> ScheduleRow:
    owner = await principal.ensure_owner(db)
    new = NewSchedule(uuid4(), name, "demo", owner.id, cron, "UTC", asked("report"), **fields)
    return await schedule.create(db, new)


async def due_since(db: Database, **ago: float) -> datetime:
    """Let every schedule be due since the last full hour so long ago."""
    [row] = await rows(db, "SELECT date_trunc('hour', stratus_now() - $1::interval) AS at", timedelta(**ago))
    at = row["at"]
    assert isinstance(at, datetime)
    await db.transact(lambda c: c.execute(DUE, at))
    return at


async def move_clock(db: Database, **ahead: float) -> None:
    seconds = timedelta(**ahead).total_seconds()
    await as_owner(db.dsn, MOVE_CLOCK.format(seconds))


async def decided(db: Database) -> list[str]:
    """What became of the occurrences, oldest first: the reason of each skip, or `run`."""
    return [str(row["reason"] or row["state"]) for row in await rows(db, ROWS)]


@pytest.fixture(autouse=True)
async def demo(db: Database) -> None:
    await agent.upsert(db, AgentDefinition(id="demo", model="demo"))


async def test_an_occurrence_becomes_a_run_in_the_schedules_own_session(db: Database) -> None:
    made = await add(db)
    at = await due_since(db, hours=0)
    assert await scheduler(db).step() is False
    [run] = await rows(db, RUNS)
    assert (run["kind"], run["session_id"], run["text"]) == ("scheduled", f"schedule:{made.public_id}", "report")
    [one] = await schedule.occurrences(db, made.id, 10)
    assert (one.due_at, one.state, one.run_state, one.reason) == (at, "run", "queued", None)
    assert (await schedule.get(db, "daily")).next_at == at + timedelta(hours=1)
    assert await scheduler(db).step() is False
    assert len(await rows(db, RUNS)) == 1


async def test_nothing_is_due_before_its_time_and_the_scheduler_knows_when_that_is(db: Database) -> None:
    await add(db)
    told: list[float] = []
    one = scheduler(db)
    one.wake_within = told.append
    assert await one.step() is False
    assert await rows(db, ROWS) == []
    assert 0.5 <= told[0] <= 3600
    await move_clock(db, hours=1)
    await one.step()
    assert await decided(db) == ["run"]


async def test_two_connections_claim_an_occurrence_once(db: Database, dsn: str) -> None:
    """While one transaction has the schedule, another's step passes it by at once, and finds nothing to do when that has committed."""
    await add(db)
    await due_since(db, hours=0)
    holder = await asyncpg.connect(dsn)
    hold = holder.transaction()
    await hold.start()
    await holder.fetch("SELECT id FROM schedule FOR UPDATE")
    assert await scheduler(db).step() is False
    assert await rows(db, ROWS) == []
    await hold.rollback()
    await holder.close()
    others = [scheduler(db) for _ in range(4)]
    await asyncio.gather(*(one.step() for one in others))
    assert await decided(db) == ["run"]
    assert len(await rows(db, RUNS)) == 1


async def test_many_schedules_over_several_steppers_are_each_run_once(db: Database) -> None:
    for n in range(50):
        await add(db, f"s{n}")
    await due_since(db, hours=0)

    async def until_idle() -> None:
        one = scheduler(db)
        while await one.step():
            pass

    await asyncio.gather(*(until_idle() for _ in range(3)))
    while await scheduler(db).step():
        pass
    assert await decided(db) == ["run"] * 50
    assert len({row["session_id"] for row in await rows(db, RUNS)}) == 50 == len(await rows(db, RUNS))


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[PgProxy]:
    async with PgProxy(dsn) as made:
        yield made


@pytest.fixture
async def far(proxy: PgProxy) -> AsyncIterator[Database]:
    """The store behind the proxy, with short limits so that a swallowed answer is soon missed."""
    limits = Timeouts(statement=1.0, idle_in_transaction=3.0, lock=0.5)
    database = Database(proxy.dsn, timeouts=limits, main_size=3, ingress_size=3)
    await database.open()
    yield database
    await database.close()


@pytest.mark.parametrize("fault", ["drop_before", "lose_ack_rst", "lose_ack_silent", "delay"])
async def test_a_commit_in_doubt_makes_one_run(db: Database, far: Database, proxy: PgProxy, fault: Action) -> None:
    await add(db)
    await due_since(db, hours=0)
    await proxy.arm("COMMIT", fault, within="INSERT INTO schedule_occurrence")
    await scheduler(far).step()
    await proxy.wait_hit()
    if fault == "delay":
        await proxy.release()
    stepping = scheduler(db)
    async with asyncio.timeout(10):
        while await decided(db) == [] or (await schedule.get(db, "daily")).next_at is None:
            await stepping.step()
    await stepping.step()
    assert await decided(db) == ["run"]
    assert len(await rows(db, RUNS)) == 1
    assert len(await rows(db, "SELECT 1 FROM session_event WHERE kind = 'run.queued'")) == 1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CatchUp.ONE, ["superseded", "superseded", "superseded", "run"]),
        (CatchUp.ALL, ["run", "run", "run", "run"]),
        (CatchUp.SKIP, ["missed", "missed", "missed", "missed"]),
    ],
)
async def test_what_was_missed_ends_by_the_schedules_policy(db: Database, policy: CatchUp, expected: list[str]) -> None:
    await add(db, catch_up=policy)
    first = await due_since(db, hours=-1)
    await move_clock(db, seconds=(first - datetime.now(UTC)).total_seconds() + 3.5 * 3600)
    while await scheduler(db).step():
        pass
    assert await decided(db) == expected
    found = await rows(db, ROWS)
    assert [row["due_at"] for row in found] == [first + timedelta(hours=n) for n in range(4)]
    runs = await rows(db, "SELECT id FROM agent_run ORDER BY turn")
    assert [row["id"] for row in runs] == [row["run_id"] for row in found if row["run_id"] is not None]
    assert (await schedule.get(db, "daily")).next_at == first + timedelta(hours=4)


async def test_skip_still_runs_what_is_only_a_little_late(db: Database) -> None:
    await add(db, catch_up=CatchUp.SKIP, cron="* * * * *")
    await due_since(db, hours=0)
    await scheduler(db).step()
    assert (await decided(db))[-1] == "run"


async def test_a_long_absence_is_worked_off_in_pieces(db: Database) -> None:
    await add(db, cron="*/10 * * * *")
    first = await due_since(db, days=9)
    steps = 1
    while await scheduler(db).step():
        steps += 1
    found = await decided(db)
    assert steps > 2
    assert len(found) >= 9 * 144 and found[-1] == "run" and set(found[:-1]) == {"superseded"}
    assert (await rows(db, ROWS))[0]["due_at"] == first
    assert len(await rows(db, RUNS)) == 1


async def test_an_occurrence_whose_earlier_run_is_still_open_is_skipped(db: Database) -> None:
    await add(db)
    await due_since(db, hours=1)
    await scheduler(db).step()
    await move_clock(db, hours=1)
    await scheduler(db).step()
    assert (await decided(db))[-2:] == ["run", "overlap"]
    await db.transact(
        lambda c: c.execute(
            "UPDATE agent_run SET state = 'canceled', runnable_at = NULL, finished_at = clock_timestamp()"
        )
    )
    await move_clock(db, hours=2)
    await scheduler(db).step()
    assert (await decided(db))[-3:] == ["run", "overlap", "run"]


async def test_other_open_runs_of_the_session_are_no_overlap(db: Database) -> None:
    """Neither a person's, nor another schedule's."""
    await queue(db, new_run("shared"))
    await add(db, "first", session_id="shared")
    await due_since(db, hours=0)
    await scheduler(db).step()
    made = await add(db, "second", session_id="shared")
    await due_since(db, hours=0)
    await scheduler(db).step()
    [second] = await schedule.occurrences(db, made.id, 10)
    assert (second.state, second.reason) == ("run", None)


async def test_what_keeps_a_schedule_from_running_is_stated(db: Database) -> None:
    channel_id = await make_channel(db)
    to = ReplyTo(channel_id=channel_id, platform="testchan", chat="c1")
    await agent.upsert(db, AgentDefinition(id="other", model="demo"))
    await add(db, "a-gone")
    await db.transact(lambda c: c.execute("UPDATE schedule SET agent_id = 'gone' WHERE name = 'a-gone'"))
    await add(db, "b-switched-off", reply_to=to)
    await channel.set_enabled(db, channel_id, False)
    await add(db, "c-session", session_id="taken")
    await queue(db, new_run("taken"))
    await db.transact(lambda c: c.execute("UPDATE session SET agent_id = 'other' WHERE id = 'taken'"))
    await add(db, "d-unreadable")
    await db.transact(lambda c: c.execute("UPDATE schedule SET time_zone = 'Mars/Olympus' WHERE name LIKE 'd-%'"))
    await add(db, "e-fine")
    await due_since(db, hours=0)
    await scheduler(db).step()
    found = await rows(
        db,
        "SELECT s.name, o.reason, s.enabled FROM schedule_occurrence o JOIN schedule s ON s.id = o.schedule_id ORDER BY s.name",
    )
    assert [(row["name"], row["reason"], row["enabled"]) for row in found] == [
        ("a-gone", "agent_gone", True),
        ("b-switched-off", "channel_off", True),
        ("c-session", "session_of_another_agent", True),
        ("d-unreadable", "unreadable", False),
        ("e-fine", None, True),
    ]


async def test_a_disabled_owner_runs_nothing(db: Database) -> None:
    await add(db)
    await db.transact(lambda c: c.execute("UPDATE principal SET disabled_at = clock_timestamp()"))
    await due_since(db, hours=0)
    await scheduler(db).step()
    assert await decided(db) == ["owner_disabled"]


async def test_an_answer_goes_out_by_the_account_that_the_channel_has_by_then(db: Database) -> None:
    channel_id = await make_channel(db)
    await add(db, reply_to=ReplyTo(channel_id=channel_id, platform="testchan", chat="c1", thread="t"))
    await db.transact(lambda c: c.execute("UPDATE channel SET account_key = 'bot-2'"))
    await due_since(db, hours=0)
    await scheduler(db).step()
    [row] = await rows(
        db, "SELECT reply_to ->> 'account_key' AS account, reply_to ->> 'thread' AS thread FROM agent_run"
    )
    assert row == {"account": "bot-2", "thread": "t"}


async def test_a_clock_that_was_set_back_repeats_no_occurrence(db: Database) -> None:
    made = await add(db)
    at = await due_since(db, hours=0)
    await scheduler(db).step()
    await schedule.set_enabled(db, made.id, False)
    await move_clock(db, hours=-1)
    await schedule.set_enabled(db, made.id, True)
    assert (await schedule.get(db, "daily")).next_at == at
    await move_clock(db, hours=0)
    await scheduler(db).step()
    assert await decided(db) == ["run"]
    assert len(await rows(db, RUNS)) == 1
    assert (await schedule.get(db, "daily")).next_at == at + timedelta(hours=1)


async def test_a_schedule_that_is_off_has_no_occurrences_and_goes_on_with_the_next_one(db: Database) -> None:
    made = await add(db)
    await due_since(db, hours=5)
    await schedule.set_enabled(db, made.id, False)
    assert (await schedule.get(db, "daily")).next_at is None
    await scheduler(db).step()
    await schedule.set_enabled(db, made.id, True)
    await scheduler(db).step()
    assert await decided(db) == []
    next_at = (await schedule.get(db, "daily")).next_at
    assert next_at is not None and next_at > datetime.now(UTC)


async def test_a_removed_schedule_leaves_its_runs(db: Database) -> None:
    made = await add(db)
    await due_since(db, hours=0)
    await scheduler(db).step()
    await schedule.remove(db, made.id)
    await schedule.remove(db, made.id)
    assert await schedule.listing(db) == [] and await rows(db, ROWS) == []
    assert len(await rows(db, RUNS)) == 1
    with pytest.raises(NotFound):
        await schedule.get(db, "daily")
    with pytest.raises(NotFound):
        await schedule.set_enabled(db, made.id, True)


async def test_what_a_new_schedule_must_have(db: Database) -> None:
    made = await add(db)
    owner = await principal.ensure_owner(db)
    with pytest.raises(Conflict, match="'daily' already"):
        await add(db)
    # The repeat of a transaction whose COMMIT went unanswered finds its own row.
    again = NewSchedule(made.public_id, "daily", "demo", owner.id, "0 * * * *", "UTC", asked("report"))
    assert (await schedule.create(db, again)).id == made.id
    with pytest.raises(NotFound, match="no agent 'nobody'"):
        await schedule.create(db, NewSchedule(uuid4(), "x", "nobody", owner.id, "0 * * * *", "UTC", asked("report")))
    with pytest.raises(BadInput, match="cron: "):
        await add(db, "x", cron="hourly")
    await agent.upsert(db, AgentDefinition(id="other", model="demo"))
    await queue(db, new_run("taken"))
    with pytest.raises(AgentMismatch):
        await schedule.create(
            db, NewSchedule(uuid4(), "x", "other", owner.id, "0 * * * *", "UTC", asked("r"), session_id="taken")
        )
