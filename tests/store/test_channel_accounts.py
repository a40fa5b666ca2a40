"""The account behind a channel: known under the fence, one channel for each, and what it means for the cursor and the inbox."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from stratus.channel.values import Event, Sender
from stratus.domain.errors import LeaseLost
from stratus.store import channel, channel_lease
from stratus.store.channel_lease import AccountTaken, HealthReport
from stratus.store.database import Database
from stratus.store.inbox import Arrival, intake
from testbed.eventually import eventually
from tests.store.test_channel_leases import EXPIRE, add, take
from tests.store.world import WAITING, rows


async def test_the_account_is_recorded_under_the_fence(db: Database) -> None:
    await add(db)
    first = await take(db)
    for account, before in (("bot1", None), ("bot1", "bot1"), ("bot2", "bot1")):
        assert (await channel_lease.set_account(db, first.lease, account)).before == before
    await db.transact(lambda c: c.execute(EXPIRE, first.row.id))
    with pytest.raises(LeaseLost):
        await channel_lease.set_account(db, first.lease, "bot3")
    assert await rows(db, "SELECT account_key FROM channel") == [{"account_key": "bot2"}]


async def test_a_cursor_is_good_for_one_account_only(db: Database) -> None:
    made = await add(db)
    owned = await take(db)
    await channel_lease.set_account(db, owned.lease, "bot1")
    await intake(db, [], lease=owned.lease, cursor={"after": 4})
    assert (await channel_lease.set_account(db, owned.lease, "bot1")).cursor == {"after": 4}
    assert (await channel_lease.set_account(db, owned.lease, "bot2")).cursor is None
    assert (await channel_lease.set_account(db, owned.lease, "bot2")).cursor is None  # as after a lost answer
    assert await rows(db, "SELECT cursor FROM channel WHERE id = $1", made.id) == [{"cursor": None}]


async def test_events_of_two_accounts_are_told_apart_and_those_of_one_are_known_again(db: Database) -> None:
    made = await add(db)
    owned = await take(db)
    event = Event(key="7:message:1", kind="message", chat="7", sender=Sender(id="7"))

    async def stored(account: str | None = None) -> int:
        return await intake(db, [Arrival(made.id, event, account)])

    news = []
    for account in ("bot1", "bot1", "bot2", "bot2", "bot3", "bot1", "bot2"):
        await channel_lease.set_account(db, owned.lease, account)
        news.append(await stored())
    assert news == [1, 0, 1, 0, 1, 0, 0]
    assert await stored("bot3") == 0  # pushed under the account that was there before
    accounts = [row["account_key"] for row in await rows(db, "SELECT account_key FROM channel_inbox ORDER BY id")]
    assert accounts == ["bot1", "bot2", "bot3"]


async def test_an_event_keeps_the_account_that_received_it(db: Database) -> None:
    made = await add(db)
    owned = await take(db)
    await channel_lease.set_account(db, owned.lease, "bot2")
    late = Event(key="1", kind="message", chat="7", sender=Sender(id="7"))
    await intake(db, [Arrival(made.id, late, "bot1")])
    assert await rows(db, "SELECT account_key FROM channel_inbox") == [{"account_key": "bot1"}]


async def test_an_account_answers_on_one_channel(db: Database) -> None:
    first, second = await add(db), await add(db, "two")
    one, two = await channel_lease.acquire(db, "a", 60.0, 8)
    await channel_lease.set_account(db, one.lease, "bot1")
    with pytest.raises(AccountTaken, match="one"):
        await channel_lease.set_account(db, two.lease, "bot1")
    assert (await channel.get(db, "two")).account_key is None
    await channel.set_enabled(db, first.id, False)
    await channel_lease.set_account(db, two.lease, "bot1")
    await channel.set_enabled(db, first.id, True)
    await channel_lease.set_account(db, one.lease, "bot1")  # both did: the older goes on
    with pytest.raises(AccountTaken):
        await channel_lease.set_account(db, two.lease, "bot1")
    assert second.id > first.id


async def test_two_channels_can_exchange_their_accounts(db: Database) -> None:
    made = [await add(db), await add(db, "two")]
    one, two = await channel_lease.acquire(db, "a", 60.0, 8)
    await channel_lease.set_account(db, one.lease, "bot1")
    await channel_lease.set_account(db, two.lease, "bot2")
    for row in made:
        await channel.configure(db, row.id, credentials=b"the other's")
    await channel_lease.set_account(db, one.lease, "bot2")
    await channel_lease.set_account(db, two.lease, "bot1")


async def test_of_two_who_learn_of_one_account_at_once_one_gets_it(db: Database, dsn: str) -> None:
    """Without the account's lock neither would see the other's row."""
    await add(db)
    await add(db, "two")
    one, two = await channel_lease.acquire(db, "a", 60.0, 8)
    held = await asyncpg.connect(dsn)
    transaction = held.transaction()
    await transaction.start()
    await held.execute("SELECT 1 FROM channel WHERE id = $1 FOR NO KEY UPDATE", one.row.id)
    first = asyncio.create_task(channel_lease.set_account(db, one.lease, "bot1"))
    await eventually(lambda: db.read(lambda c: c.fetchval(WAITING)), what="the first waits")
    second = asyncio.create_task(channel_lease.set_account(db, two.lease, "bot1"))
    await asyncio.wait([second], timeout=0.3)
    await transaction.commit()
    await held.close()
    await first
    with pytest.raises(AccountTaken):
        await second


@pytest.mark.parametrize("new", [{"config": {}}, {"credentials": b"new"}])
async def test_a_new_configuration_is_unproven_until_its_account_is_known(db: Database, new: dict[str, Any]) -> None:
    made = await add(db)
    owned = await take(db)
    await channel_lease.set_account(db, owned.lease, "bot1")
    await channel.configure(db, made.id, agent_id="other")
    assert (await channel.get(db, "one")).account_proven()
    await channel.configure(db, made.id, **new)
    assert not (await channel.get(db, "one")).account_proven()
    await channel_lease.set_account(db, owned.lease, "bot1")
    assert (await channel.get(db, "one")).account_proven()


async def test_a_contact_by_a_release_that_does_not_know_better_proves_it_too(db: Database) -> None:
    made = await add(db)
    owned = await take(db)
    await channel.configure(db, made.id, credentials=b"new")
    for state, proven in (("starting", False), ("connected", True)):
        await channel_lease.report_health(db, [HealthReport(owned.lease, state, "", None, 2)])
        assert (await channel.get(db, "one")).account_proven() == proven
