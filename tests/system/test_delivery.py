"""The delivery room at work: what is sent, how each answer of the platform ends, and what is received."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.values import Event, Sender
from stratus.delivery.terms import Doors
from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.effects import Failpoints
from stratus.store import channel
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from testbed.eventually import eventually
from tests.store.world import rows
from tests.system.delivery_rig import (
    TERMS,
    Answer,
    Gate,
    Platform,
    Replica,
    all_are,
    hang,
    health_is,
    put,
    raising,
    states,
)

AGE_KEYS = "UPDATE outbox_attempt SET started_at = started_at - interval '1 minute'"


# -- sending --


async def test_ops_are_sent_once_in_order_with_their_receipts(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    await put(db, row.id, "1", "2", "3", chained=True)
    async with Replica(db, platform):
        await all_are(db, "sent", "sent", "sent")
    assert platform.texts() == ["1", "2", "3"] and len(platform.calls) == 3
    found = await rows(db, "SELECT sent_message_id, account_key FROM channel_outbox ORDER BY id")
    assert [one["sent_message_id"] for one in found] == ["m1", "m2", "m3"]
    assert {op.owner for op in platform.sent} == {"a"} and {op.attempt for op in platform.sent} == {1}
    assert all(re.fullmatch("[0-9a-z]{10,25}", op.key) for op in platform.sent)
    assert len({op.key for op in platform.sent}) == 3
    assert platform.configs[0].webhook_url == f"http://here/hooks/{row.public_id}"
    assert platform.configs[0].credentials["token"].get_secret_value() == "secret"


async def test_a_slow_lane_does_not_hold_the_others(db: Database, row: ChannelRow, platform: Platform) -> None:
    gate = Gate(platform)
    platform.answers = [gate]
    await put(db, row.id, "slow", "after", lane="a")
    async with Replica(db, platform, replace(TERMS, send_budget=5.0)) as replica:
        await gate.entered.wait()
        await put(db, row.id, "b1", "b2", lane="b")
        replica.wake(row.id)
        await eventually(lambda: platform.texts() == ["b1", "b2"])
        gate.release.set()
        await all_are(db, "sent", "sent", "sent", "sent")
    assert platform.texts()[2:] == ["slow", "after"]


async def test_no_more_sends_than_slots(db: Database, row: ChannelRow, platform: Platform) -> None:
    gates = [Gate(platform) for _ in range(3)]
    platform.answers = [*gates]
    for lane in "abc":
        await put(db, row.id, lane, lane=lane)
    async with Replica(db, platform, replace(TERMS, slots=2, send_budget=5.0)):
        await gates[1].entered.wait()
        with pytest.raises(AssertionError):
            await eventually(gates[2].entered.is_set, timeout=0.4)
        assert await states(db) == ["sending", "sending", "pending"]
        gates[0].release.set()
        await gates[2].entered.wait()
        gates[1].release.set()
        gates[2].release.set()
        await all_are(db, "sent", "sent", "sent")


async def test_a_rate_limit_is_waited_for_and_costs_nothing(db: Database, row: ChannelRow, platform: Platform) -> None:
    limit = raising(SendError(SendFailure.RETRYABLE, "rate_limited", "slow down", retry_after=0.05))
    platform.answers = [limit] * (MAX_SEND_ATTEMPTS + 1)
    await put(db, row.id, "x")
    async with Replica(db, platform):
        await all_are(db, "sent")
    assert await rows(db, "SELECT attempts, attempt_seq FROM channel_outbox") == [{"attempts": 1, "attempt_seq": 7}]
    assert len({op.key for op in platform.calls}) == 1


async def test_a_refusal_fails_the_op_and_what_depends_on_it(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.answers = [raising(SendError(SendFailure.PERMANENT, "blocked", "the person blocked the bot"))]
    await put(db, row.id, "1", "2", chained=True)
    await put(db, row.id, "3")
    async with Replica(db, platform):
        await all_are(db, "failed", "canceled", "sent")
    assert platform.texts() == ["3"]


UNKNOWN: dict[str, Answer] = {
    "server error": raising(SendError(SendFailure.UNKNOWN, "http_502", "bad gateway")),
    "unclassified": raising(RuntimeError("https://api/bot123:secret/send")),
    "silence": hang,
}


@pytest.mark.parametrize("answer", UNKNOWN)
async def test_what_may_have_been_taken_is_unknown_and_never_sent_again(
    db: Database, row: ChannelRow, platform: Platform, answer: str
) -> None:
    platform.answers = [UNKNOWN[answer]]
    await put(db, row.id, "1", "2", chained=True)
    async with Replica(db, platform):
        await all_are(db, "unknown", "sent")
    assert [op.text for op in platform.calls] == ["1", "2"]
    [found] = await rows(db, "SELECT error::text AS error FROM channel_outbox WHERE state = 'unknown'")
    assert "secret" not in str(found["error"]) and "owner_lost" not in str(found["error"])


async def test_what_the_platform_shows_of_our_own_settles_an_unknown(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    platform.answers = [raising(SendError(SendFailure.UNKNOWN, "no_answer", "reset"))] * 2
    await put(db, row.id, "x", "y")
    async with Replica(db, platform) as replica:
        await all_are(db, "unknown", "unknown")
        ours = event("echo").model_copy(update={"kind": "other", "echo": platform.calls[0].key, "message_id": "m77"})
        stranger = event("other").model_copy(update={"kind": "other", "echo": "k0", "message_id": "m78"})
        platform.feed = [([ours, stranger, event("1")], {"after": 1})]
        platform.fed.set()
        await all_are(db, "sent", "unknown")
        await eventually(lambda: [one.key for one in replica.delivered] == ["1"])
    assert len(platform.calls) == 2
    assert (await rows(db, "SELECT sent_message_id AS id FROM channel_outbox ORDER BY id"))[0] == {"id": "m77"}


async def test_a_flood_wait_of_the_bot_stops_every_chat_for_as_long(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    limit = SendError(SendFailure.RETRYABLE, "rate_limited", "slow down", retry_after=1.0, scope="bot")
    platform.answers = [raising(limit)]
    await put(db, row.id, "1", lane="a")
    async with Replica(db, platform) as replica:
        await eventually(lambda: len(platform.calls) == 1)
        await all_are(db, "pending")
        held = time.monotonic()
        await put(db, row.id, "2", lane="b")
        replica.wake(row.id)
        await all_are(db, "sent", "sent")
    assert time.monotonic() - held > 0.5 and len(platform.calls) == 3


async def test_an_idempotent_platform_is_asked_again_with_the_same_key(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    platform.window = timedelta(minutes=2)
    platform.answers = [raising(SendError(SendFailure.UNKNOWN, "no_answer", "reset"))]
    await put(db, row.id, "x")
    async with Replica(db, platform):
        await all_are(db, "sent")
    first, second = platform.calls
    assert first.key == second.key and (first.attempt, second.attempt) == (1, 2)


async def test_a_key_that_grew_too_old_meanwhile_is_not_used_again(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    platform.window = timedelta(minutes=1)
    platform.answers = [raising(SendError(SendFailure.UNKNOWN, "no_answer", "reset"))]
    await put(db, row.id, "x")
    async with Replica(db, platform):
        await all_are(db, "pending")
        await eventually(lambda: len(platform.calls) == 1)
        await all_are(db, "pending")
        await db.transact(lambda c: c.execute(AGE_KEYS))
        await all_are(db, "unknown")
    assert len(platform.calls) == 1


async def test_a_chat_that_moved_gets_the_same_op(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.answers = [raising(SendError(SendFailure.RETRYABLE, "migrated", "moved", new_chat="-100"))]
    await put(db, row.id, "x")
    async with Replica(db, platform):
        await all_are(db, "sent")
    assert [op.chat for op in platform.calls] == ["a", "-100"]


async def test_an_op_that_describes_no_call_fails_alone(db: Database, row: ChannelRow, platform: Platform) -> None:
    await put(db, row.id, "bad", lane="a")
    await put(db, row.id, "good", lane="b")
    await db.transact(lambda c: c.execute("""UPDATE channel_outbox SET address = '{}' WHERE lane = 'a'"""))
    async with Replica(db, platform):
        await all_are(db, "failed", "sent")


async def test_an_intent_that_is_interrupted_before_its_call_is_sent_later(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    await put(db, row.id, "x")
    async with Replica(db, platform, doors=Doors(failpoints=Failpoints({"send.after_intent": "raise*1"}))):
        await all_are(db, "sent")
    assert len(platform.calls) == 1
    assert await rows(db, "SELECT attempts, attempt_seq FROM channel_outbox") == [{"attempts": 1, "attempt_seq": 2}]


# -- the account --


async def test_ops_of_another_account_fail(db: Database, row: ChannelRow, platform: Platform) -> None:
    await put(db, row.id, "old", account="bot0")
    await put(db, row.id, "new", account="bot1")
    async with Replica(db, platform):
        await all_are(db, "failed", "sent")
    assert platform.texts() == ["new"]


async def test_refused_credentials_stop_the_channel_until_they_change(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    platform.answers = [raising(SendError(SendFailure.PERMANENT, "unauthorized", "401"))] * 9
    await put(db, row.id, "1", "2")
    async with Replica(db, platform) as replica:
        await health_is(db, "failed", "credentials_refused")
        await all_are(db, "pending", "pending")
        await eventually(lambda: platform.receiving == 0)
        assert len(platform.calls) == 1 and replica.manager.leases()
        platform.answers = []
        await channel.configure(db, row.id, config={"new": True})
        replica.hints.send("channels")
        await all_are(db, "sent", "sent")
    assert platform.texts() == ["1", "2"]


# -- receiving --


def event(key: str) -> Event:
    return Event(key=key, kind="message", chat="c", sender=Sender(id="7"), text=key)


async def test_events_are_stored_with_the_cursor_and_an_outage_repeats_from_it(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    async with Replica(db, platform) as replica:
        await health_is(db, "connected", "")
        platform.feed = [([event("1")], {"after": 1})]
        platform.fed.set()
        await eventually(lambda: [one.key for one in replica.delivered] == ["1"])
        replica.away = True
        platform.feed = [([event("2")], {"after": 2})]
        platform.fed.set()
        await eventually(lambda: len(platform.cursors) > 2)
        assert platform.cursors[-1] == {"after": 1} and await rows(db, "SELECT cursor FROM channel") == [
            {"cursor": '{"after": 1}'}
        ]
        replica.away = False
        await eventually(lambda: [one.key for one in replica.delivered] == ["1", "2"])
    assert platform.receiving == 0 and platform.closed == 1
