"""New sessions of one bot, counted for all replicas: a crash loop of a whole day stays inside what the platform bears."""

from __future__ import annotations

import asyncio

import pytest

from stratus.store import start_budget
from stratus.store.database import Database
from tests.store.world import rows

DAY = 24 * 3600

# The database's clock cannot be moved; what it is compared with can.
PASS = """
UPDATE session_start SET next_at = next_at - make_interval(secs => $1),
       starts = array(SELECT at - make_interval(secs => $1) FROM unnest(starts) AS at)
"""
FILL = """
INSERT INTO session_start (platform, account_key, starts, streak, next_at)
SELECT 'discord', 'full', array_agg(clock_timestamp() - make_interval(secs => s) ORDER BY s DESC), 0, clock_timestamp()
  FROM generate_series(3600, 3600 + ($1 - 1) * 90, 90) AS s
"""


async def passed(db: Database, seconds: float) -> None:
    await db.transact(lambda c: c.execute(PASS, float(seconds)))


async def test_a_start_is_on_record_before_it_is_allowed(db: Database) -> None:
    assert await start_budget.spend(db, "discord", "42") == 0
    [row] = await rows(db, "SELECT cardinality(starts) AS count, streak FROM session_start")
    assert row == {"count": 1, "streak": 0}


async def test_starts_in_a_row_wait_longer_each_time(db: Database) -> None:
    waits = []
    for _ in range(10):
        assert await start_budget.spend(db, "discord", "42") == 0
        wait = await start_budget.spend(db, "discord", "42")
        waits.append(round(wait))
        await passed(db, wait)
    assert waits == [5, 10, 20, 40, 80, 160, 320, 640, 900, 900]
    await passed(db, start_budget.HELD_SECONDS)
    assert await start_budget.spend(db, "discord", "42") == 0
    assert round(await start_budget.spend(db, "discord", "42")) == 5


@pytest.mark.parametrize("crash_every", [5, 60, 950])
async def test_a_crash_loop_of_a_day_stays_inside(db: Database, crash_every: int) -> None:
    """Each new process asks at once; time passes in the steps of the crashes, or of the waits where those are longer."""
    starts, clock = 0, 0.0
    while clock < DAY:
        wait = await start_budget.spend(db, "discord", "42")
        starts += wait == 0
        step = max(crash_every, wait)
        await passed(db, step)
        clock += step
    assert starts <= start_budget.DAY_MAX
    assert clock / starts >= 90


async def test_nine_hundred_a_day_is_the_end(db: Database) -> None:
    await db.transact(lambda c: c.execute(FILL, start_budget.DAY_MAX))
    wait = await start_budget.spend(db, "discord", "full")
    oldest = 3600 + (start_budget.DAY_MAX - 1) * 90
    assert wait == pytest.approx(DAY - oldest, abs=5)
    await passed(db, wait + 1)
    assert await start_budget.spend(db, "discord", "full") == 0
    assert await start_budget.spend(db, "discord", "full") > 0


async def test_of_replicas_that_ask_at_once_one_may(db: Database) -> None:
    waits = await asyncio.gather(*(start_budget.spend(db, "discord", "42") for _ in range(8)))
    assert sorted(wait == 0 for wait in waits) == [False] * 7 + [True]
    assert await start_budget.spend(db, "discord", "another bot") == 0
