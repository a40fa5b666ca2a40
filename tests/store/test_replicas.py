"""Replicas in the database: signs of life, and forgetting who was not seen for a day."""

from __future__ import annotations

from uuid import uuid4

from stratus.store import replica
from stratus.store.database import Database

LOOK_BACK = "UPDATE replica SET seen_at = clock_timestamp() - $2 * interval '1 hour' WHERE id = $1"


async def test_a_replica_is_seen_and_says_that_it_drains(db: Database) -> None:
    me = uuid4()
    await replica.register(db, me, host="here", pid=7, version="1", roles={"worker": True})
    [row] = await replica.listing(db)
    assert (row.id, row.host, row.pid, row.version, row.roles, row.draining) == (
        me,
        "here",
        7,
        "1",
        {"worker": True},
        False,
    )
    await db.transact(lambda c: c.execute(LOOK_BACK, me, 1))
    assert (await replica.listing(db))[0].unseen_seconds > 3000
    assert await replica.seen(db, me, True)
    [row] = await replica.listing(db)
    assert row.draining and row.unseen_seconds < 60


async def test_who_was_not_seen_for_a_day_is_forgotten_and_told_so(db: Database) -> None:
    gone, away, fresh = uuid4(), uuid4(), uuid4()
    for one, hours in ((gone, 25), (away, 23)):
        await replica.register(db, one, host="h", pid=1, version="1", roles={})
        await db.transact(lambda c, one=one, hours=hours: c.execute(LOOK_BACK, one, hours))  # type: ignore[misc]
    await replica.register(db, fresh, host="h", pid=2, version="1", roles={})
    assert [row.id for row in await replica.listing(db)] == [away, fresh]
    assert not await replica.seen(db, gone, False)
    await replica.register(db, gone, host="h", pid=1, version="1", roles={})
    await replica.register(db, gone, host="h", pid=1, version="1", roles={})
    assert await replica.seen(db, gone, False)
