"""Ops go out in lane order, once, by the channel's owner; and each end of an attempt leads where it must."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from stratus.domain.errors import LeaseLost
from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.store import channel
from stratus.store import intent as intents_of
from stratus.store.attempt import SAME_KEY, same_key_ages
from stratus.store.database import Database
from stratus.store.inbox import ChannelLease
from stratus.store.intent import Intent
from stratus.store.plan import NewOp, plan
from stratus.store.rate import UNLIMITED
from stratus.store.settle import Outcome, abandon, adopt, complete
from stratus.store.verdict import Verdict, settle
from tests.store.world import make_channel, own, rows

BUDGET, GRACE = 20.0, 8.0
# As if the attempt had begun that much earlier.
AGE = """
UPDATE channel_outbox SET attempt_deadline = attempt_deadline - make_interval(secs => $1) WHERE attempt_deadline IS NOT NULL
"""
AGE_ATTEMPTS = "UPDATE outbox_attempt SET started_at = started_at - make_interval(secs => $1)"
AGE_INTENTS = "UPDATE outbox_attempt SET created_at = created_at - make_interval(secs => $1)"
FENCES = {
    "expired": "UPDATE channel SET lease_until = clock_timestamp() WHERE id = $1",
    "newer token": "UPDATE channel SET runtime_token = runtime_token + 1 WHERE id = $1",
    "other holder": "UPDATE channel SET runtime_holder = gen_random_uuid() WHERE id = $1",
    "disabled": "UPDATE channel SET enabled = false WHERE id = $1",
    "deleted": "UPDATE channel SET deleted_at = clock_timestamp() WHERE id = $1",
}


class Side:
    """One channel with its owner, and what the tests do to it."""

    def __init__(self, db: Database, channel: int, lease: ChannelLease) -> None:
        self.db = db
        self.channel = channel
        self.lease = lease
        self.rates = UNLIMITED

    async def put(self, *lanes: str, chained: bool = False, account: str | None = None) -> None:
        """One op in each of these lanes, in order; `chained`: each depends on the one before."""
        ops = [
            NewOp(
                self.channel,
                lane,
                "send_text",
                {"chat": lane},
                {"text": str(number)},
                uuid4().hex,
                account_key=account,
                after=number - 1 if chained and number else None,
            )
            for number, lane in enumerate(lanes)
        ]
        await self.db.transact(lambda c: plan(c, ops))

    async def intend(self, limit: int = 32) -> list[Intent]:
        return list((await intents_of.intend(self.db, self.lease, "r", limit, self.rates)).intents)

    async def begin(self, *intents: Intent) -> set[UUID]:
        return await intents_of.begin(self.db, self.lease, intents, BUDGET)

    async def begun(self) -> Intent:
        [intent] = await self.intend()
        assert await self.begin(intent) == {intent.token}
        return intent

    async def end(self, intent: Intent, outcome: str, **fields: Any) -> str | None:
        detail = fields.pop("detail", {"code": "x", "message_id": "9"})
        states = await complete(self.db, [Outcome(intent.op_id, intent.token, outcome, detail, **fields)])
        return states.get(intent.op_id)

    async def states(self) -> list[str]:
        return [str(row["state"]) for row in await rows(self.db, "SELECT state FROM channel_outbox ORDER BY id")]

    async def next_owner(self) -> Side:
        return Side(self.db, self.channel, await own(self.db, self.channel))

    async def adopt(self, windows: Mapping[str, float] | None = None) -> list[str]:
        return sorted((await adopt(self.db, self.lease, GRACE, windows)).values())

    async def age(self, seconds: float) -> None:
        await self.db.transact(lambda c: c.execute(AGE, seconds))


@pytest.fixture
async def side(db: Database) -> Side:
    made = await make_channel(db)
    return Side(db, made, await own(db, made))


def texts(intents: list[Intent]) -> list[str]:
    return [intent.payload["text"] for intent in intents]


# -- order --


async def test_only_the_head_of_a_lane_is_claimed_and_lanes_are_independent(side: Side) -> None:
    await side.put("a", "a", "b", "b", "a")
    heads = await side.intend()
    assert texts(heads) == ["0", "2"]
    assert await side.intend() == []
    await side.end(heads[0], "sent")
    assert texts(await side.intend()) == ["1"]


async def test_a_lane_is_sent_in_order_whatever_ends_its_ops(side: Side) -> None:
    await side.put(*["a"] * 5)
    seen = []
    for outcome in ("sent", "permanent", "unknown", "sent", "sent"):
        [intent] = await side.intend()
        seen.append(intent.payload["text"])
        await side.end(intent, outcome)
    assert seen == ["0", "1", "2", "3", "4"]


async def test_a_head_that_waits_holds_its_lane(side: Side) -> None:
    await side.put("a", "a", "b")
    first = (await side.intend(1))[0]
    await side.end(first, "retryable", delay=60.0)
    assert texts(await side.intend()) == ["2"]


async def test_the_limit_holds(side: Side) -> None:
    await side.put("a", "b", "c")
    assert len(await side.intend(2)) == 2


async def test_two_at_once_never_claim_the_same(side: Side) -> None:
    await side.put(*[f"lane{n}" for n in range(20)])
    claimed = await asyncio.gather(*(side.intend(8) for _ in range(4)))
    claimed.append(await side.intend(32))
    ids = [intent.op_id for some in claimed for intent in some]
    assert len(ids) == len(set(ids)) == 20


# -- fences --


@pytest.mark.parametrize("fence", FENCES)
async def test_nothing_is_intended_or_begun_past_a_fence(side: Side, fence: str) -> None:
    await side.put("a", "b")
    [intent] = await side.intend(1)
    await side.db.transact(lambda c: c.execute(FENCES[fence], side.channel))
    with pytest.raises(LeaseLost):
        await side.intend()
    assert await side.begin(intent) == set()
    assert await rows(side.db, "SELECT started_at, outcome FROM outbox_attempt") == [
        {"started_at": None, "outcome": None}
    ]


async def test_an_op_of_another_account_fails_and_cancels_what_depends_on_it(side: Side) -> None:
    await side.db.transact(lambda c: c.execute("UPDATE channel SET account_key = 'new' WHERE id = $1", side.channel))
    await side.put("a", "a", chained=True, account="old")
    await side.put("b", account="new")
    assert [intent.lane for intent in await side.intend()] == ["b"]
    assert await side.states() == ["failed", "canceled", "sending"]
    assert (await rows(side.db, "SELECT error ->> 'code' AS code FROM channel_outbox ORDER BY id LIMIT 1"))[0] == {
        "code": "account_mismatch"
    }


async def test_the_guard_knows_the_account_too(side: Side) -> None:
    await side.db.transact(lambda c: c.execute("UPDATE channel SET account_key = 'old' WHERE id = $1", side.channel))
    await side.put("a", account="old")
    [intent] = await side.intend()
    await side.db.transact(lambda c: c.execute("UPDATE channel SET account_key = 'new' WHERE id = $1", side.channel))
    assert await side.begin(intent) == set()


async def test_the_guard_says_yes_again_until_the_attempts_deadline(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    deadline = await rows(side.db, "SELECT attempt_deadline FROM channel_outbox")
    assert await side.begin(intent) == {intent.token}
    assert await rows(side.db, "SELECT attempt_deadline FROM channel_outbox") == deadline
    await side.age(BUDGET)
    assert await side.begin(intent) == set()


async def test_a_settled_attempt_does_not_begin_again(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "retryable")
    assert await side.begin(intent) == set()


# -- takeover --


async def test_an_intent_that_never_began_is_taken_back_and_costs_nothing(side: Side) -> None:
    await side.put("a", "a")
    [intent] = await side.intend()
    heir = await side.next_owner()
    assert await heir.intend() == []
    assert await heir.adopt() == ["pending"]
    [again] = await heir.intend()
    assert (again.op_id, again.attempt, again.attempts) == (intent.op_id, 2, 1)
    assert await rows(side.db, "SELECT outcome FROM outbox_attempt ORDER BY attempt") == [
        {"outcome": "not_sent"},
        {"outcome": None},
    ]


async def test_a_begun_attempt_holds_its_lane_and_is_then_unknown(side: Side) -> None:
    await side.put("a", "a", "b")
    [first, *_] = await side.intend(1)
    await side.begin(first)
    heir = await side.next_owner()
    assert await heir.adopt() == []
    assert texts(await heir.intend()) == ["2"]
    await side.age(BUDGET + GRACE - 2)
    assert await heir.adopt() == [] and await heir.intend() == []
    await side.age(3)
    assert await heir.adopt() == ["unknown"]
    assert texts(await heir.intend()) == ["1"]


async def test_a_channel_that_is_off_leaves_no_op_under_way(side: Side) -> None:
    """Where no owner will come, what began is unknown after its deadline; what did not waits for the channel, and ends with it."""
    await side.put("a", "b", "b")
    first, second = await side.intend()
    await side.begin(first)
    await side.age(BUDGET + GRACE + 1)
    await side.db.transact(lambda c: c.execute(AGE_INTENTS, BUDGET + GRACE + 1))
    await side.db.transact(lambda c: c.execute(FENCES["disabled"], side.channel))
    assert await abandon(side.db, GRACE, 100) == {}, "its owner may be sending yet"
    await channel.set_enabled(side.db, side.channel, True)
    await side.db.transact(lambda c: c.execute(FENCES["expired"], side.channel))
    assert await abandon(side.db, GRACE, 100) == {}, "a channel that is on will have an owner, who may repeat by key"
    await side.db.transact(lambda c: c.execute(FENCES["disabled"], side.channel))
    assert await abandon(side.db, GRACE, 1) == {first.op_id: "unknown"}
    assert await abandon(side.db, GRACE, 100) == {second.op_id: "pending"}
    assert await side.states() == ["unknown", "pending", "pending"] and await abandon(side.db, GRACE, 100) == {}
    assert await side.end(first, "sent") == "sent", "a late receipt is evidence still"
    await side.db.transact(lambda c: c.execute(FENCES["deleted"], side.channel))
    assert set((await abandon(side.db, GRACE, 100)).values()) == {"canceled"}
    assert await side.states() == ["sent", "canceled", "canceled"]


async def test_a_send_that_may_be_under_way_is_not_abandoned(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.db.transact(lambda c: c.execute(FENCES["disabled"], side.channel))
    await side.db.transact(lambda c: c.execute(FENCES["expired"], side.channel))
    assert await abandon(side.db, GRACE, 100) == {}
    await side.age(BUDGET + GRACE - 2)
    assert await abandon(side.db, GRACE, 100) == {}
    await side.age(3)
    assert await abandon(side.db, GRACE, 100) == {intent.op_id: "unknown"}


async def test_a_begun_attempt_goes_again_where_the_platform_still_takes_its_key(side: Side) -> None:
    """Within the window it is repeated under the same key, past it nobody can know."""
    await side.put("a", "b")
    first, second = await side.intend()
    await side.begin(first, second)
    heir = await side.next_owner()
    await side.age(BUDGET + GRACE + 1)
    await side.db.transact(lambda c: c.execute(AGE_ATTEMPTS + " WHERE op_id = $2", 60.0, second.op_id))
    assert await heir.adopt({"send_text": 50.0}) == ["pending", "unknown"]
    [again] = await heir.intend()
    assert (again.op_id, again.delivery_key, again.attempt) == (first.op_id, first.delivery_key, 2)
    assert list(await same_key_ages(side.db, [again.op_id])) == [again.op_id]
    assert await heir.begin(again) == {again.token}


async def test_our_own_open_intents_are_not_taken_from_us(side: Side) -> None:
    await side.put("a")
    [intent] = await side.intend()
    assert await side.adopt() == []
    assert await side.begin(intent) == {intent.token}


async def test_an_intent_of_ours_that_was_forgotten_is_taken_back_and_may_not_begin(side: Side) -> None:
    await side.put("a")
    [intent] = await side.intend()
    await side.db.transact(lambda c: c.execute(AGE_INTENTS, GRACE + 1))
    assert await side.adopt() == ["pending"]
    assert await side.begin(intent) == set()


async def test_only_the_owner_adopts(side: Side) -> None:
    await side.put("a")
    await side.intend()
    heir = await side.next_owner()
    await heir.next_owner()
    assert await heir.adopt() == []


# -- how attempts end --


async def test_an_old_attempt_does_not_settle_a_new_one(side: Side) -> None:
    await side.put("a")
    old = await side.begun()
    await side.end(old, "retryable")
    await side.begun()
    assert await side.end(old, "permanent") is None
    assert await side.states() == ["sending"]


async def test_a_failed_link_cancels_what_depends_on_it_and_an_unknown_does_not(side: Side) -> None:
    await side.put("a", "a", "a", chained=True)
    await side.put("b", "b", chained=True)
    [first, other] = await side.intend()
    await side.begin(first, other)
    await side.end(first, "permanent")
    await side.end(other, "unknown")
    assert await side.states() == ["failed", "canceled", "canceled", "unknown", "pending"]
    assert [intent.lane for intent in await side.intend()] == ["b"]


async def test_a_rate_limit_costs_no_attempt_and_is_waited_for(side: Side) -> None:
    await side.put("a")
    for _ in range(MAX_SEND_ATTEMPTS + 2):
        intent = await side.begun()
        assert intent.attempts == 1
        assert await side.end(intent, "retryable", costs=False) == "pending"
    intent = await side.begun()
    await side.end(intent, "retryable", costs=False, delay=30.0)
    [row] = await rows(
        side.db, "SELECT extract(epoch FROM not_before - clock_timestamp())::int AS wait FROM channel_outbox"
    )
    assert row["wait"] in (29, 30) and await side.intend() == []


async def test_the_last_attempt_fails(side: Side) -> None:
    await side.put("a", "a", chained=True)
    for number in range(1, MAX_SEND_ATTEMPTS + 1):
        intent = await side.begun()
        assert intent.attempts == number
        assert await side.end(intent, "retryable") == ("failed" if number == MAX_SEND_ATTEMPTS else "pending")
    assert await side.states() == ["failed", "canceled"]


async def test_a_chat_that_moved_is_addressed_anew(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "retryable", address={"chat": "-100"})
    [again] = await side.intend()
    assert again.address == {"chat": "-100"} and again.lane == "-100"


async def test_many_are_settled_in_one_statement(side: Side) -> None:
    await side.put("a", "b", "c")
    intents = await side.intend()
    await side.begin(*intents)
    ends = ["sent", "permanent", "unknown"]
    outcomes = [Outcome(i.op_id, i.token, end, {}) for i, end in zip(intents, ends, strict=True)]
    assert list((await complete(side.db, outcomes)).values()) == ["sent", "failed", "unknown"]


# -- a key that the platform takes again --


async def test_the_age_of_a_key_counts_from_its_first_open_attempt(side: Side) -> None:
    await side.put("a")
    for seconds in (50.0, 10.0):
        intent = await side.begun()
        await side.end(intent, "retryable", detail={SAME_KEY: True})
        await side.db.transact(lambda c, seconds=seconds: c.execute(AGE_ATTEMPTS, seconds))  # type: ignore[misc]
    ages = await same_key_ages(side.db, [intent.op_id, 999])
    assert list(ages) == [intent.op_id] and 59 < ages[intent.op_id] < 70


async def test_a_key_is_young_again_after_a_verdict_and_proven_failures_have_none(side: Side) -> None:
    await side.put("a")
    intent = await side.begun()
    await side.end(intent, "retryable")
    assert await same_key_ages(side.db, [intent.op_id]) == {}
    intent = await side.begun()
    await side.end(intent, "retryable", detail={SAME_KEY: True})
    intent = await side.begun()
    await side.end(intent, "unknown")
    await settle(side.db, Verdict(intent.op_id, "resend", "ann", uuid4()))
    assert await same_key_ages(side.db, [intent.op_id]) == {}
    assert (await side.begun()).attempts == 1
