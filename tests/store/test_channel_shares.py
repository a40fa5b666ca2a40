"""Which free channels a replica takes: of platforms that it has adapters for, up to its share, and what nobody else wants."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from stratus.store import channel, channel_lease, replica
from stratus.store.channel_lease import HealthReport, Seeker
from stratus.store.database import Database
from tests.store.world import rows

LONG_FREE = "UPDATE channel SET created_at = clock_timestamp() - interval '1 minute'"


async def add(db: Database, name: str, platform: str = "testchan") -> int:
    return (await channel.create(db, uuid4(), platform, name, "demo", {}, None)).id


async def fleet(db: Database, *served: str) -> list[UUID]:
    """A living replica for each platform named."""
    made = [uuid4() for _ in served]
    for id, platform in zip(made, served, strict=True):
        has = [f"platform:{platform}"] if platform else []
        await replica.register(db, id, host="h", pid=1, version="1", roles={}, capabilities=has)
    return made


async def taken(db: Database, held: int = 0, platforms: tuple[str, ...] = ("testchan",), patience: float = 30.0) -> int:
    seeker = Seeker(platforms, held, patience)
    return len(await channel_lease.acquire(db, "a", 60.0, 8, seeker=seeker))


async def test_only_platforms_with_an_adapter_are_taken(db: Database) -> None:
    await add(db, "one")
    other = await add(db, "two", "pigeon")
    [owned] = await channel_lease.acquire(db, "a", 60.0, 8, seeker=Seeker(("pigeon",)))
    assert owned.row.id == other


@pytest.mark.parametrize(("held", "expected"), [(0, 3), (2, 1), (3, 0), (5, 0)])
async def test_a_replica_takes_its_share_of_what_has_just_come_free(db: Database, held: int, expected: int) -> None:
    for number in range(9):
        await add(db, f"c{number}")
    await fleet(db, "testchan", "testchan", "testchan", "pigeon", "")
    assert await taken(db, held) == expected


async def test_a_replica_that_is_gone_or_drains_has_no_share(db: Database) -> None:
    for number in range(6):
        await add(db, f"c{number}")
    _, draining, gone = await fleet(db, "testchan", "testchan", "testchan")
    await replica.seen(db, draining, True)
    await db.transact(
        lambda c: c.execute("UPDATE replica SET seen_at = clock_timestamp() - interval '1 minute' WHERE id = $1", gone)
    )
    assert await channel_lease.census(db, ["testchan"]) == (6, 1)
    assert await taken(db) == 6


async def test_what_nobody_wants_is_taken_beyond_the_share_one_at_a_time(db: Database) -> None:
    for number in range(4):
        await add(db, f"c{number}")
    await fleet(db, "testchan", "testchan")
    await db.transact(lambda c: c.execute(LONG_FREE))
    assert [await taken(db), await taken(db, 2), await taken(db, 3), await taken(db, 4)] == [2, 1, 1, 0]


async def test_a_channel_whose_owner_died_is_not_left_lying(db: Database) -> None:
    await add(db, "one")
    await add(db, "two")
    await fleet(db, "testchan", "testchan")
    assert await taken(db) == 1
    await db.transact(
        lambda c: c.execute(
            "UPDATE channel SET lease_until = clock_timestamp() - interval '31 s' WHERE lease_until IS NOT NULL"
        )
    )
    assert await taken(db, 1) == 1


async def test_a_channel_without_an_adapter_anywhere_says_so_until_somebody_has_one(db: Database) -> None:
    served = await add(db, "one")
    await add(db, "two", "pigeon")

    async def told() -> list[str]:
        return await channel_lease.note_unserved(db, ["testchan"], 10.0)

    assert await told() == []  # it may be taken any moment
    await db.transact(lambda c: c.execute(LONG_FREE))
    assert await told() == ["two"] and await told() == []
    row = await channel.get(db, "two")
    assert (row.health["state"], row.health["cause"]) == ("failed", "no_adapter") and "pigeon" in (row.last_error or "")
    [owned] = await channel_lease.acquire(db, "b", 60.0, 8, seeker=Seeker(("pigeon",)))
    await channel_lease.report_health(db, [HealthReport(owned.lease, "connected", "", None, 1)])
    assert await told() == []
    assert await rows(db, "SELECT health ->> 'cause' AS cause FROM channel WHERE id <> $1", served) == [{"cause": ""}]


async def test_another_cause_of_failure_is_kept(db: Database) -> None:
    await add(db, "two", "pigeon")
    await db.transact(lambda c: c.execute(LONG_FREE))
    await db.transact(
        lambda c: c.execute("""UPDATE channel SET health = '{"state": "failed", "cause": "credentials_unreadable"}'""")
    )
    assert await channel_lease.note_unserved(db, ["testchan"], 10.0) == []
