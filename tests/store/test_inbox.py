"""Intake and batches for the router: dedup, cursor under the fence, order in a chat, rows put aside."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from stratus.channel.values import Event
from stratus.domain.errors import LeaseLost
from stratus.domain.inbox import MAX_ROUTE_ATTEMPTS, InboxState
from stratus.store import inbox
from stratus.store.database import Connection, Database
from stratus.store.inbox import Arrival, ChannelLease, Settled, intake
from tests.store.world import event, make_channel, own, rows


async def put(db: Database, channel_id: int, *events: Event) -> int:
    return await intake(db, [Arrival(channel_id, one) for one in events])


async def batch(db: Database, channel_id: int, limit: int = 50) -> list[str]:
    async def work(connection: Connection) -> list[str]:
        taken = await inbox.take_batch(connection, channel_id, limit)
        return [one.event.key for one in taken or []]

    return await db.transact(work)


async def test_a_redelivery_is_a_no_op_also_within_one_batch(db: Database) -> None:
    channel = await make_channel(db)
    assert await put(db, channel, event("1"), event("1"), event("2")) == 2
    assert await put(db, channel, event("2", text="another body"), event("1")) == 0
    texts = await rows(db, "SELECT payload ->> 'text' AS text FROM channel_inbox ORDER BY id")
    assert [row["text"] for row in texts] == ["hello", "hello"]


async def test_the_same_event_on_two_replicas_at_once_is_one_row(db: Database) -> None:
    channel = await make_channel(db)
    counts = await asyncio.gather(*(put(db, channel, event("1"), event("2")) for _ in range(8)))
    assert sum(counts) == 2


async def test_the_same_key_on_another_channel_is_another_event(db: Database) -> None:
    one, two = await make_channel(db), await make_channel(db)
    assert await put(db, one, event("1")) + await put(db, two, event("1")) == 2


@pytest.mark.parametrize("stale", ["token", "holder", "expired"])
async def test_a_former_owner_stores_nothing_and_moves_no_cursor(db: Database, stale: str) -> None:
    channel = await make_channel(db)
    lease = await own(db, channel, seconds=-1.0 if stale == "expired" else 60.0)
    given = {
        "token": ChannelLease(channel, lease.token - 1, lease.holder),
        "holder": ChannelLease(channel, lease.token, uuid4()),
        "expired": lease,
    }[stale]
    with pytest.raises(LeaseLost):
        await intake(db, [Arrival(channel, event("1"))], lease=given, cursor={"offset": 2})
    assert await rows(db, "SELECT count(*) AS n FROM channel_inbox") == [{"n": 0}]
    assert await rows(db, "SELECT cursor FROM channel") == [{"cursor": None}]


async def test_cursor_and_events_commit_together(db: Database) -> None:
    channel = await make_channel(db)
    lease = await own(db, channel)
    await intake(db, [Arrival(channel, event("1"))], lease=lease, cursor={"offset": 2})
    assert await rows(db, "SELECT cursor ->> 'offset' AS at FROM channel") == [{"at": "2"}]


async def test_a_deleted_channel_takes_nothing(db: Database) -> None:
    channel = await make_channel(db)
    await db.transact(lambda c: c.execute("UPDATE channel SET deleted_at = clock_timestamp()"))
    assert await put(db, channel, event("1")) == 0


async def test_one_router_at_a_time_for_a_channel(db: Database) -> None:
    channel = await make_channel(db)
    await put(db, channel, event("1"))
    entered, leave = asyncio.Event(), asyncio.Event()

    async def hold(connection: Connection) -> None:
        assert await inbox.take_batch(connection, channel, 5) is not None
        entered.set()
        await leave.wait()

    holding = asyncio.ensure_future(db.transact(hold))
    await entered.wait()
    second = await db.transact(lambda c: inbox.take_batch(c, channel, 5))
    leave.set()
    await holding
    assert second is None
    assert await batch(db, channel) == ["1"]


async def test_a_row_put_aside_holds_back_its_own_chat_only(db: Database) -> None:
    channel = await make_channel(db)
    await put(db, channel, event("a1", chat="a"), event("b1", chat="b"), event("a2", chat="a"), event("b2", chat="b"))
    first = (await rows(db, "SELECT id FROM channel_inbox WHERE event_key = 'a1'"))[0]["id"]
    assert isinstance(first, int)
    assert await inbox.back_off(db, first, "boom") is InboxState.READY
    assert await batch(db, channel) == ["b1", "b2"]
    await db.transact(
        lambda c: c.execute("UPDATE channel_inbox SET not_before = clock_timestamp() WHERE id = $1", first)
    )
    assert await batch(db, channel) == ["a1", "b1", "a2", "b2"]


async def test_a_row_that_always_fails_dies_and_lets_its_chat_go_on(db: Database) -> None:
    channel = await make_channel(db)
    await put(db, channel, event("a1", chat="a"), event("a2", chat="a"))
    first = (await rows(db, "SELECT id FROM channel_inbox WHERE event_key = 'a1'"))[0]["id"]
    assert isinstance(first, int)
    states = [await inbox.back_off(db, first, "boom") for _ in range(MAX_ROUTE_ATTEMPTS)]
    assert states == [InboxState.READY] * (MAX_ROUTE_ATTEMPTS - 1) + [InboxState.DEAD]
    assert await batch(db, channel) == ["a2"]
    assert await inbox.back_off(db, first, "boom") is None


async def test_settled_rows_are_final(db: Database) -> None:
    channel = await make_channel(db)
    await put(db, channel, event("1"))
    found = (await rows(db, "SELECT id FROM channel_inbox"))[0]["id"]
    assert isinstance(found, int)
    await db.transact(lambda c: inbox.settle(c, [Settled(found, InboxState.IGNORED, None, {"reason": "x"})]))
    await db.transact(lambda c: inbox.settle(c, [Settled(found, InboxState.ROUTED, None, {})]))
    assert await rows(db, "SELECT state, outcome ->> 'reason' AS why FROM channel_inbox") == [
        {"state": "ignored", "why": "x"}
    ]
