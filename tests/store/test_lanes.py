"""Operators are told which lanes stand still, and what the longest of each channel waits for."""

from __future__ import annotations

import pytest

from stratus.store.database import Database
from stratus.store.lane import stuck
from tests.store.test_outbox import Side
from tests.store.world import make_channel, own

OLD = "UPDATE channel_outbox SET created_at = created_at - make_interval(secs => 600)"
OVERDUE = "UPDATE channel_outbox SET attempt_deadline = clock_timestamp() - interval '1 second'"
UNOWNED = "UPDATE channel SET lease_until = NULL, runtime_holder = NULL"
EXPIRED = "UPDATE channel SET lease_until = clock_timestamp() - interval '1 second'"
DISABLED = "UPDATE channel SET enabled = false"
DRAFT = "UPDATE channel_outbox SET kind = 'draft_update' WHERE lane_seq = 1"


@pytest.fixture
async def side(db: Database) -> Side:
    channel = await make_channel(db)
    return Side(db, channel, await own(db, channel))


async def change(db: Database, *statements: str) -> None:
    for statement in statements:
        await db.transact(lambda c, statement=statement: c.execute(statement))  # type: ignore[misc]


async def reason(db: Database) -> str:
    [one] = await stuck(db, 120.0)
    return one.reason


async def test_what_is_young_or_settled_is_not_stuck(db: Database, side: Side) -> None:
    await side.put("a")
    assert await stuck(db, 120.0) == []
    await side.end(await side.begun(), "sent")
    await change(db, OLD)
    assert await stuck(db, 120.0) == []


async def test_each_channel_says_how_many_lanes_and_which_op_is_the_longest(db: Database, side: Side) -> None:
    await side.put("a", "a", "b")
    await change(db, OLD)
    await side.put("c")
    other = await make_channel(db)
    quiet = Side(db, other, await own(db, other))
    await quiet.put("a")
    [one] = await stuck(db, 120.0)
    assert (one.lanes, one.reason, one.code) == (2, "due", None)
    assert 600 <= one.age < 700
    assert [intent.op_id for intent in await side.intend()][0] == one.op_id, "the head that its owner would send next"


@pytest.mark.parametrize("scope", ["", "a", "a\x1f"])
async def test_a_rate_of_the_bot_or_of_the_chat_is_the_reason(db: Database, side: Side, scope: str) -> None:
    await side.put("a")
    held = "INSERT INTO channel_rate (channel_id, scope, next_at) VALUES ($1, $2, clock_timestamp() + interval '90 seconds')"
    await db.transact(lambda c: c.execute(held, side.channel, scope))
    await db.transact(lambda c: c.execute(held, side.channel, "another"))
    await change(db, OLD)
    [one] = await stuck(db, 120.0)
    assert one.reason == "rate" and 80 < one.wait <= 90


@pytest.mark.parametrize(
    ("statement", "expected"), [(UNOWNED, "no_owner"), (EXPIRED, "no_owner"), (DISABLED, "disabled")]
)
async def test_a_channel_that_nobody_runs_is_the_reason(
    db: Database, side: Side, statement: str, expected: str
) -> None:
    await side.put("a")
    await change(db, OLD, statement)
    assert await reason(db) == expected


async def test_a_retry_says_how_long_and_after_what(db: Database, side: Side) -> None:
    await side.put("a")
    await side.end(await side.begun(), "retryable", detail={"code": "rate_limited"}, delay=900.0, costs=False)
    await change(db, OLD)
    [one] = await stuck(db, 120.0)
    assert (one.reason, one.code) == ("not_before", "rate_limited")
    assert 800 < one.wait <= 900


async def test_an_open_attempt_is_told_from_one_past_its_deadline(db: Database, side: Side) -> None:
    await side.put("a")
    await side.begun()
    await change(db, OLD)
    assert await reason(db) == "sending"
    await change(db, OVERDUE)
    assert await reason(db) == "quarantine"


async def test_a_draft_holds_nothing_up(db: Database, side: Side) -> None:
    await side.put("a")
    await change(db, DRAFT, OLD)
    assert await stuck(db, 120.0) == []
