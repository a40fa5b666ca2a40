"""Channels as operators configure them, and the lease on their runtime: one owner at a time, by database time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from stratus.channel.values import Event, Sender
from stratus.domain.errors import Conflict, DatabaseAway, LeaseLost, NotFound
from stratus.store import channel, channel_lease, intent
from stratus.store.channel import ChannelRow
from stratus.store.channel_lease import HealthReport, OwnedChannel
from stratus.store.database import Database, Timeouts
from stratus.store.inbox import Arrival, intake
from stratus.store.plan import NewOp, plan
from testbed.eventually import eventually
from testbed.pgproxy import Action, PgProxy
from tests.store.world import WAITING, rows

EXPIRE = "UPDATE channel SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1"


async def add(db: Database, name: str = "one", config: Mapping[str, Any] | None = None) -> ChannelRow:
    return await channel.create(db, uuid4(), "testchan", name, "demo", config or {}, b"sealed")


async def take(db: Database, replica: str = "a", ttl: float = 60.0) -> OwnedChannel:
    [owned] = await channel_lease.acquire(db, replica, ttl, 8)
    return owned


async def renew(db: Database, *owned: OwnedChannel, ttl: float = 60.0) -> list[channel_lease.ChannelRenewal]:
    return await db.read(lambda c: channel_lease.renew(c, [one.lease for one in owned], ttl))


# -- what operators do --


async def test_a_live_name_is_unique_and_free_after_a_delete(db: Database) -> None:
    first = await add(db, config={"base_url": "http://x"})
    assert (first.config, first.credentials, first.enabled, first.config_revision) == (
        {"base_url": "http://x"},
        b"sealed",
        True,
        1,
    )
    with pytest.raises(Conflict):
        await add(db)
    await channel.delete(db, first.id)
    second = await add(db)
    assert [row.id for row in await channel.listing(db)] == [second.id]
    assert (await channel.get(db, "one")).id == second.id == (await channel.get(db, str(second.public_id))).id


async def test_what_is_not_there_is_not_found(db: Database) -> None:
    gone = await add(db)
    await channel.delete(db, gone.id)
    with pytest.raises(NotFound):
        await channel.get(db, "one")
    with pytest.raises(NotFound):
        await channel.configure(db, gone.id, agent_id="x")
    with pytest.raises(NotFound):
        await channel.set_enabled(db, gone.id, True)
    with pytest.raises(NotFound):
        await channel.delete(db, 999)


async def test_configuring_bumps_the_revision_and_keeps_the_rest(db: Database) -> None:
    made = await add(db, config={"a": 1})
    assert await channel.configure(db, made.id, credentials=b"new") == 2
    row = await channel.get(db, "one")
    assert (row.config, row.credentials, row.agent_id, row.config_revision) == ({"a": 1}, b"new", "demo", 2)


async def test_a_delete_cancels_what_waits_and_forgets_the_credentials(db: Database) -> None:
    made = await add(db)
    keep = await add(db, "other")
    ops = [NewOp(one.id, "c", "send_text", {"chat": "c"}, {}, f"k{n}") for n, one in enumerate((made, made, keep))]
    await db.transact(lambda c: plan(c, ops))
    await channel.delete(db, made.id)
    assert await rows(
        db, "SELECT state, error ->> 'code' AS code, settled_at IS NULL AS live FROM channel_outbox ORDER BY id"
    ) == [
        {"state": "canceled", "code": "channel_deleted", "live": False},
        {"state": "canceled", "code": "channel_deleted", "live": False},
        {"state": "pending", "code": None, "live": True},
    ]
    assert await rows(db, "SELECT credentials, enabled FROM channel WHERE id = $1", made.id) == [
        {"credentials": None, "enabled": False}
    ]


async def test_credentials_are_in_no_repr(db: Database) -> None:
    assert "sealed" not in repr(await add(db)) + repr(await take(db))


# -- the lease --


async def test_a_channel_has_one_owner_and_each_has_a_higher_token(db: Database) -> None:
    made = await add(db)
    first = await take(db)
    assert (first.lease.channel_id, first.lease.token, first.row.replica, first.cursor) == (made.id, 1, "a", None)
    assert await channel_lease.acquire(db, "b", 60.0, 8) == []
    await db.transact(lambda c: c.execute(EXPIRE, made.id))
    second = await take(db, "b")
    assert second.lease.token == 2 and second.lease.holder != first.lease.holder
    assert (await channel.get(db, "one")).replica == "b"


async def test_two_who_acquire_at_once_share_without_overlap(db: Database) -> None:
    for number in range(12):
        await add(db, f"c{number}")
    taken = await asyncio.gather(*(channel_lease.acquire(db, f"r{n}", 60.0, 3) for n in range(4)))
    while any(more := await asyncio.gather(*(channel_lease.acquire(db, f"r{n}", 60.0, 3) for n in range(4)))):
        taken += more
    owned = [one.lease.channel_id for some in taken for one in some]
    assert len(owned) == len(set(owned)) == 12


@pytest.mark.parametrize("off", ["enabled = false", "enabled = false, deleted_at = clock_timestamp()"])
async def test_what_is_off_is_not_acquired(db: Database, off: str) -> None:
    made = await add(db)
    await db.transact(lambda c: c.execute(f"UPDATE channel SET {off} WHERE id = $1", made.id))
    assert await channel_lease.acquire(db, "a", 60.0, 8) == []


async def test_the_excluded_are_not_acquired_and_the_limit_holds(db: Database) -> None:
    made = [await add(db, f"c{number}") for number in range(3)]
    assert [one.row.id for one in await channel_lease.acquire(db, "a", 60.0, 1, [made[0].id])] == [made[1].id]


async def test_a_renewal_moves_only_our_living_leases(db: Database) -> None:
    mine, stolen, expired = [await add(db, f"c{number}") for number in range(3)]
    owned = {one.row.id: one for one in await channel_lease.acquire(db, "a", 5.0, 8)}
    for row in (stolen, expired):
        await db.transact(lambda c, row=row: c.execute(EXPIRE, row.id))  # type: ignore[misc]
    await channel_lease.acquire(db, "b", 60.0, 8, [expired.id])
    before = {row["id"]: row["lease_until"] for row in await rows(db, "SELECT id, lease_until FROM channel")}
    found = {one.lease.channel_id: one for one in await renew(db, *owned.values())}
    assert {channel_id: one.ours for channel_id, one in found.items()} == {
        mine.id: True,
        stolen.id: False,
        expired.id: False,
    }
    after = {row["id"]: row["lease_until"] for row in await rows(db, "SELECT id, lease_until FROM channel")}
    assert {channel_id for channel_id in after if after[channel_id] != before[channel_id]} == {mine.id}


async def test_a_renewal_says_what_is_wanted(db: Database) -> None:
    made = await add(db)
    owned = await take(db)
    await channel.configure(db, made.id, config={"x": 1})
    await channel.set_enabled(db, made.id, False)
    [found] = await renew(db, owned)
    assert (found.ours, found.enabled, found.deleted, found.config_revision) == (True, False, False, 2)
    await channel.delete(db, made.id)
    assert [(one.ours, one.deleted) for one in await channel_lease.inspect(db, [owned.lease])] == [(True, True)]


async def test_a_look_does_not_renew(db: Database) -> None:
    await add(db)
    owned = await take(db)
    before = await rows(db, "SELECT lease_until FROM channel")
    [found] = await channel_lease.inspect(db, [owned.lease])
    assert found.ours and await rows(db, "SELECT lease_until FROM channel") == before


async def test_a_release_frees_ours_and_no_others(db: Database) -> None:
    await add(db)
    first = await take(db)
    await db.transact(lambda c: c.execute(EXPIRE, first.row.id))
    second = await take(db, "b")
    await channel_lease.release(db, [first.lease])
    assert [one.ours for one in await channel_lease.inspect(db, [second.lease])] == [True]
    await channel_lease.release(db, [second.lease])
    assert (await take(db, "c")).lease.token == 3


async def test_health_is_written_when_it_changes_and_under_the_fence(db: Database) -> None:
    await add(db)
    owned = await take(db)
    version = "SELECT ctid::text AS at, health, last_error, running_revision FROM channel"

    async def tell(state: str, cause: str, error: str | None = None) -> dict[str, Any]:
        await channel_lease.report_health(db, [HealthReport(owned.lease, state, cause, error, 1)])
        return (await rows(db, version))[0]

    starting = await tell("starting", "")
    assert (await channel.get(db, "one")).health["state"] == "starting"
    assert await tell("starting", "") == starting
    failed = await tell("failed", "poll_conflict", "somebody else polls")
    assert failed["at"] != starting["at"] and failed["last_error"] == "somebody else polls"
    health = (await channel.get(db, "one")).health
    assert (health["cause"], health["v"]) == ("poll_conflict", 1) and health["since"]
    connected = await tell("connected", "")
    assert connected["last_error"] == "somebody else polls"
    await db.transact(lambda c: c.execute(EXPIRE, owned.row.id))
    assert (await tell("failed", "late"))["health"] == connected["health"]


async def test_the_cursor_is_handed_to_the_next_owner(db: Database) -> None:
    made = await add(db)
    first = await take(db)
    event = Event(key="1", kind="message", chat="c", sender=Sender(id="7"))
    await intake(db, [Arrival(made.id, event)], lease=first.lease, cursor={"after": 4})
    await channel_lease.release(db, [first.lease])
    assert (await take(db, "b")).cursor == {"after": 4}


async def test_an_intent_that_waited_for_a_takeover_is_refused(db: Database, dsn: str) -> None:
    """Without the share lock on the channel's row it would read the lease as it was before the takeover."""
    made = await add(db)
    owned = await take(db)
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT 1 FROM channel WHERE id = $1 FOR NO KEY UPDATE", made.id)
    await other.execute(EXPIRE, made.id)
    await other.execute(
        "UPDATE channel SET runtime_token = runtime_token + 1, runtime_holder = $2 WHERE id = $1", made.id, uuid4()
    )
    await db.transact(lambda c: plan(c, [NewOp(made.id, "c", "send_text", {"chat": "c"}, {}, "k")]))
    late = asyncio.create_task(intent.intend(db, owned.lease, "a", 8))
    await eventually(lambda: db.read(lambda c: c.fetchval(WAITING)), what="the intent waits for the takeover")
    await transaction.commit()
    await other.close()
    with pytest.raises(LeaseLost):
        await late
    assert await rows(db, "SELECT state FROM channel_outbox") == [{"state": "pending"}]


# -- a lost answer --


@pytest.mark.parametrize("fault", ["drop_before", "lose_ack_rst", "lose_ack_silent"])
async def test_an_acquire_whose_answer_is_lost_takes_each_channel_once(db: Database, dsn: str, fault: Action) -> None:
    await add(db)
    async with PgProxy(dsn) as proxy:
        far = Database(
            proxy.dsn, timeouts=Timeouts(statement=1.0, idle_in_transaction=3.0, lock=0.5), main_size=2, ingress_size=1
        )
        await far.open()
        await proxy.arm("COMMIT", fault, within="UPDATE channel")
        [owned] = await channel_lease.acquire(far, "a", 60.0, 8)
        await proxy.wait_hit()
        await far.close()
    assert [one.ours for one in await channel_lease.inspect(db, [owned.lease])] == [True]


async def test_a_resolve_waits_for_the_acquire_in_doubt(db: Database, dsn: str) -> None:
    """COMMIT arrives while the outcome is looked up: what it took must be found, not left to nobody."""
    await add(db)
    async with PgProxy(dsn) as proxy:
        far = Database(
            proxy.dsn, timeouts=Timeouts(statement=1.0, idle_in_transaction=4.0, lock=3.0), main_size=2, ingress_size=1
        )
        await far.open()
        await proxy.arm("COMMIT", "delay", within="UPDATE channel")
        task = asyncio.create_task(channel_lease.acquire(far, "a", 60.0, 8))
        await proxy.wait_hit()
        await eventually(lambda: db.read(lambda c: c.fetchval(WAITING)), what="the lookup waits for the row")
        await proxy.release()
        [owned] = await task
        await far.close()
    assert owned.lease.token == 1
    assert [one.ours for one in await channel_lease.inspect(db, [owned.lease])] == [True]


async def test_without_a_database_nothing_is_acquired(dsn: str) -> None:
    closed = Database(dsn)
    with pytest.raises(DatabaseAway):
        await channel_lease.acquire(closed, "a", 60.0, 8)


async def test_silence_is_counted_over_tenures_until_contact_is_made(db: Database) -> None:
    await add(db)
    first = await take(db, "a")
    assert first.away < 5
    await channel_lease.report_health(db, [HealthReport(first.lease, "connected", "", None, 1)])
    assert "deaf_since" not in (await channel.get(db, "one")).health
    await channel_lease.release(db, [first.lease])
    await db.transact(
        lambda c: c.execute(
            "UPDATE channel SET health = health || jsonb_build_object('deaf_since', clock_timestamp() - interval '100 s')"
        )
    )
    second = await take(db, "b")
    assert 100 <= second.away < 110
    for state in ("starting", "failed"):
        await channel_lease.report_health(db, [HealthReport(second.lease, state, "unreachable", None, 1)])
    await channel_lease.release(db, [second.lease])
    third = await take(db, "c")
    assert 100 <= third.away < 110
    await channel_lease.report_health(db, [HealthReport(third.lease, "connected", "", None, 1)])
    await channel_lease.release(db, [third.lease])
    assert (await take(db, "d")).away < 5


async def test_a_lapsed_lease_is_silence_from_its_end_on(db: Database) -> None:
    await add(db)
    one = await take(db)
    await channel_lease.report_health(db, [HealthReport(one.lease, "connected", "", None, 1)])
    await db.transact(lambda c: c.execute("UPDATE channel SET lease_until = clock_timestamp() - interval '300 s'"))
    assert 300 <= (await take(db, "b")).away < 310
