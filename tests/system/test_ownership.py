"""Who works a channel when owners change, stop or are cut off, and that no two of them ever send the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from stratus.delivery.terms import Doors
from stratus.effects import Failpoints
from stratus.store import channel
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from testbed.eventually import eventually
from testbed.pgproxy import PgProxy
from tests.store.world import rows
from tests.system.delivery_rig import (
    TERMS,
    Gate,
    Platform,
    Replica,
    all_are,
    hang,
    health_is,
    put,
    second_store,
    states,
)

EXPIRE = "UPDATE channel SET lease_until = clock_timestamp() - interval '1 second'"
LEASE_FOR_EVER = "UPDATE channel SET lease_until = clock_timestamp() + interval '1 hour'"


async def test_a_disabled_channel_stops_and_an_enabled_one_goes_on(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    async with Replica(db, platform) as replica:
        await eventually(lambda: platform.receiving == 1)
        await channel.set_enabled(db, row.id, False)
        await eventually(lambda: platform.receiving == 0)
        await eventually(lambda: replica.manager.leases() == [])
        await put(db, row.id, "x")
        assert await states(db) == ["pending"]
        await channel.set_enabled(db, row.id, True)
        await all_are(db, "sent")


async def test_another_configuration_is_applied(db: Database, row: ChannelRow, platform: Platform) -> None:
    async with Replica(db, platform):
        await eventually(lambda: platform.receiving == 1)
        await channel.configure(db, row.id, config={"speed": 2})
        await eventually(lambda: len(platform.configs) == 2 and platform.receiving == 1)

        async def told() -> bool:
            return (await channel.get(db, "one")).running_revision == 2

        await eventually(told)
    assert platform.configs[1].options == {"speed": 2} and platform.closed == 2


async def test_without_renewals_polling_and_sending_stop_first(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    """The database would still let it: the owner's own deadline must be what stops it."""
    async with Replica(db, platform, replace(TERMS, ttl=2.0)) as replica:
        await eventually(lambda: platform.receiving == 1)
        replica.renewing = False
        await db.transact(lambda c: c.execute(LEASE_FOR_EVER))
        await eventually(lambda: platform.receiving == 0)
        await put(db, row.id, "x")
        replica.wake(row.id)
        with pytest.raises(AssertionError):
            await eventually(lambda: platform.calls, timeout=0.5)
        assert await states(db) == ["pending"] and await rows(db, "SELECT 1 FROM outbox_attempt") == []
        replica.renewing = True
        await all_are(db, "sent")
        await eventually(lambda: platform.receiving == 1)


async def test_a_further_call_is_refused_when_the_lease_is_gone(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    gate = Gate(platform, ask_guard=True)
    platform.answers = [gate]
    await put(db, row.id, "x")
    async with Replica(db, platform, replace(TERMS, send_budget=5.0)) as replica:
        await gate.entered.wait()
        replica.renewing = False
        await db.transact(lambda c: c.execute(EXPIRE))
        gate.release.set()
        await all_are(db, "sent")  # by the tenure after this one
    assert [op.attempt for op in platform.sent] == [2] and len(platform.calls) == 2
    assert await rows(db, "SELECT outcome FROM outbox_attempt ORDER BY attempt LIMIT 1") == [{"outcome": "not_sent"}]


async def test_a_takeover_waits_for_what_may_be_under_way_and_takes_its_evidence(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    gate = Gate(platform)
    gates: list[Any] = [gate]
    old_platform = Platform()
    old_platform.answers = gates
    await put(db, row.id, "1", "2")
    old_terms = replace(TERMS, replica="old", send_budget=20.0)
    async with Replica(db, old_platform, old_terms) as old:
        await gate.entered.wait()
        old.renewing = False
        # What the attempt's deadline would be with the heir's budget.
        await db.transact(
            lambda c: c.execute(
                "UPDATE channel_outbox SET attempt_deadline = clock_timestamp() WHERE state = 'sending'"
            )
        )
        await db.transact(lambda c: c.execute(EXPIRE + ", enabled = true"))
        async with Replica(db, platform, replace(TERMS, replica="new")):
            await all_are(db, "unknown", "sent")
            assert platform.texts() == ["2"]
            gate.release.set()
            await all_are(db, "sent", "sent")
    assert platform.texts() == ["2", "1"] and len(platform.calls) == 1
    assert old_platform.calls[0].text == "1" and len(old_platform.calls) == 1


class CountedFailpoints(Failpoints):
    """Counts who comes by."""

    def __init__(self) -> None:
        super().__init__()
        self.hits: Counter[str] = Counter()

    async def hit(self, name: str) -> None:
        self.hits[name] += 1


async def test_receipts_survive_an_outage_of_the_database(
    db: Database, dsn: str, row: ChannelRow, platform: Platform
) -> None:
    gate = Gate(platform)
    platform.answers = [gate]
    await put(db, row.id, "1", "2")
    tries = CountedFailpoints()
    async with PgProxy(dsn) as proxy, second_store(db, proxy.dsn) as far:
        async with Replica(far, platform, replace(TERMS, send_budget=5.0, ttl=30.0), Doors(failpoints=tries)):
            await gate.entered.wait()
            await proxy.cut(rst=True)
            gate.release.set()
            await eventually(lambda: tries.hits["receipt.before_commit"] >= 2, what="storing has failed once")
            assert await states(db) == ["sending", "pending"]
            await proxy.heal()
            await all_are(db, "sent", "sent")
    assert platform.texts() == ["1", "2"]


async def test_a_drain_lets_sends_end_and_gives_the_channels_back(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    gate = Gate(platform)
    platform.answers = [gate]
    await put(db, row.id, "1", "2")
    async with Replica(db, platform, replace(TERMS, send_budget=5.0)) as replica:
        await gate.entered.wait()
        draining = asyncio.create_task(replica.manager.drain(5.0))
        await eventually(lambda: platform.receiving == 0)
        assert replica.manager.leases()
        gate.release.set()
        await draining
        assert await states(db) == ["sent", "pending"]
        assert await rows(db, "SELECT runtime_holder FROM channel") == [{"runtime_holder": None}]
        assert not await replica.manager.step() and replica.manager.leases() == []


async def test_a_drain_does_not_wait_longer_than_it_may(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.answers = [hang]
    await put(db, row.id, "1")
    async with Replica(db, platform, replace(TERMS, send_budget=60.0)) as replica:
        await eventually(lambda: platform.calls)
        async with asyncio.timeout(5):
            await replica.manager.drain(0.2)
        assert await states(db) == ["unknown"]


async def test_a_replica_that_leases_no_channels_takes_none(db: Database, row: ChannelRow, platform: Platform) -> None:
    async with Replica(db, platform, replace(TERMS, lease_channels=False)) as replica:
        assert not await replica.manager.step()
    assert platform.configs == []


async def test_a_channel_that_cannot_start_is_given_back_with_its_reason(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    async with Replica(db, platform, replace(TERMS, test_channels=False)) as replica:
        await health_is(db, "failed", "error")
        await eventually(lambda: replica.manager.leases() == [])

        async def given_back() -> bool:
            [found] = await channel.listing(db)
            return found.replica is None and "STRATUS_TEST_CHANNELS" in (found.last_error or "")

        await eventually(given_back)
        async with Replica(db, platform, replace(TERMS, replica="b")):
            await health_is(db, "connected", "")
