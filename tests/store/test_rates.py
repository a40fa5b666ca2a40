"""Rates are rows: what a bot and its chats take is kept to by every kind of op and every owner, and what people wait for goes first."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pytest

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.values import Limits
from stratus.delivery import outcomes
from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.domain.values import lane as lane_of
from stratus.store import outbox, settle
from stratus.store.database import Database
from stratus.store.intent import Intent, intend
from stratus.store.plan import NewOp, plan
from stratus.store.rate import BOT, UNLIMITED, Rates, forget, rates_of
from tests.store.test_outbox import Side
from tests.store.world import make_channel, own, rows

# As if that much time had passed.
LATER = """
WITH ops AS (UPDATE channel_outbox SET not_before = not_before - make_interval(secs => $1))
UPDATE channel_rate SET next_at = next_at - make_interval(secs => $1)
"""
HOUR = 3600.0


@pytest.fixture
async def side(db: Database) -> Side:
    channel = await make_channel(db)
    return Side(db, channel, await own(db, channel))


async def later(side: Side, seconds: float) -> None:
    await side.db.transact(lambda c: c.execute(LATER, seconds))


async def put_kind(side: Side, kind: str, *lanes: str) -> None:
    ops = [NewOp(side.channel, lane, kind, {"chat": lane}, {"text": kind}, uuid4().hex) for lane in lanes]
    await side.db.transact(lambda c: plan(c, ops))


async def drained(side: Side) -> list[str]:
    """Sends all that goes now; the lanes in the order in which it went."""
    lanes: list[str] = []
    while intents := await side.intend():
        lanes += [intent.lane for intent in intents]
        for intent in intents:
            await side.end(intent, "sent")
    return lanes


async def wait(side: Side) -> float | None:
    return (await intend(side.db, side.lease, "r", 32, side.rates)).wait


async def flooded(side: Side, intent: Intent, seconds: float, scope: str = "chat") -> None:
    """The platform answers 429, as the dispatcher takes it."""
    error = SendError(SendFailure.RETRYABLE, "rate_limited", "slow down", retry_after=seconds, scope=scope)  # type: ignore[arg-type]
    await settle.complete(side.db, [outcomes.failed(intent, error, 0.5, 0.0)])


async def due(side: Side) -> bool:
    one, _ = await outbox.stirring(side.db, [side.lease])
    return bool(one)


async def test_a_chat_gets_its_burst_and_then_its_rate(side: Side) -> None:
    side.rates = Rates(chat=1.0, burst=2)
    await side.put(*["a"] * 5)
    assert await drained(side) == ["a", "a"]
    left = await wait(side)
    assert left is not None and 0 < left <= 1
    assert not await due(side), "the manager would wake it for nothing"
    await later(side, 1.0)
    assert await due(side)
    assert await drained(side) == ["a"]
    await later(side, 100.0)
    assert await drained(side) == ["a", "a"], "a pause saves up no more than the burst"


async def test_chats_are_independent_and_the_bot_has_a_rate_of_its_own(side: Side) -> None:
    side.rates = Rates(chat=1.0, bot=2.0, burst=1)
    await side.put("a", "a", "b", "c")
    assert await drained(side) == ["a"]
    await later(side, 0.5)
    assert await drained(side) == ["b"], "the chat a must wait for a second"
    await later(side, 0.5)
    assert await drained(side) == ["a"]
    await later(side, 0.5)
    assert await drained(side) == ["c"]


async def test_what_people_wait_for_goes_first_when_the_bots_rate_is_short(side: Side) -> None:
    side.rates = Rates(bot=1.0, burst=2)
    await put_kind(side, "reaction", "a", "b")
    await side.put("c", "d")
    assert await drained(side) == ["c", "d"]
    await later(side, 1.0)
    assert await drained(side) == [], "the first of the burst is not for what nobody waits for"
    await later(side, 1.0)
    assert await drained(side) == ["a"]


async def test_what_nobody_waits_for_leaves_half_of_the_burst(side: Side) -> None:
    side.rates = Rates(bot=0.001, burst=4)
    await put_kind(side, "reaction", *"abcdef")
    assert await drained(side) == ["a", "b"]
    for lane in "ghi":
        await side.put(lane)
    assert await drained(side) == ["g", "h"]


@pytest.mark.parametrize("kind", ["send_reply", "approval_prompt", "notify", "reaction", "send_attachment"])
async def test_every_kind_of_op_uses_the_rate(side: Side, kind: str) -> None:
    side.rates = Rates(chat=0.001, burst=2)
    await put_kind(side, kind, "a")
    assert await drained(side) == ["a"]
    await side.put("a", "a")
    assert await drained(side) == ["a"]


async def test_groups_have_a_rate_of_their_own_and_threads_share_it(side: Side) -> None:
    side.rates = Rates(chat=1.0, group=0.1, burst=1, group_prefix="-", by_chat=True)
    one, other = lane_of("-7", "1"), lane_of("-7", "2")
    await side.put(one, other, "7")
    assert await drained(side) == [one, "7"]
    await side.put("7")
    await later(side, 1.0)
    assert await drained(side) == ["7"]
    await later(side, 9.0)
    assert await drained(side) == [other]


async def test_an_answer_goes_before_a_reaction_in_another_thread_of_its_chat(side: Side) -> None:
    side.rates = Rates(chat=1.0, burst=2, by_chat=True)
    one, other = lane_of("7", "1"), lane_of("7", "2")
    await put_kind(side, "reaction", one)
    await side.put(other)
    assert await drained(side) == [other], "one more may go, but not for what nobody waits for"
    await later(side, 2.0)
    assert await drained(side) == [one]


# -- what the platform demands --


async def test_a_flood_wait_holds_its_chat_alone_and_outlives_a_takeover(side: Side) -> None:
    await side.put("a", "a", "b")
    first, other = await side.intend()
    await side.begin(first, other)
    await flooded(side, first, HOUR)
    await side.end(other, "sent")
    await put_kind(side, "reaction", "b")
    heir = await side.next_owner()
    assert [intent.lane for intent in await heir.intend()] == ["b"]
    await heir.db.transact(lambda c: c.execute("UPDATE channel_outbox SET not_before = clock_timestamp()"))
    assert await heir.intend() == [], "the chat is held, not only the op"
    await later(heir, HOUR + 1)
    assert [intent.op_id for intent in await heir.intend()] == [first.op_id]


async def test_a_flood_wait_of_the_bot_holds_everything(side: Side) -> None:
    await side.put("a")
    first = await side.begun()
    await flooded(side, first, HOUR, "bot")
    await side.put("b")
    await put_kind(side, "reaction", "c")
    assert await side.intend() == [] and not await due(side)
    left = await wait(side)
    assert left is not None and HOUR - 10 < left <= HOUR
    await later(side, HOUR)
    assert len(await side.intend()) == 2
    await later(side, 1.0)
    assert len(await side.intend()) == 1, "what nobody waits for comes a little later"


async def test_a_shorter_wait_shortens_nothing(side: Side) -> None:
    await side.put("a", "b")
    a, b = await side.intend()
    await side.begin(a, b)
    await flooded(side, a, HOUR, "bot")
    await flooded(side, b, 1.0, "bot")
    await later(side, 10.0)
    assert await side.intend() == []


async def test_a_day_of_flood_waits_costs_nothing_and_ends_in_one_send(side: Side) -> None:
    await side.put("a", "a")
    refusals, passed = 0, 0.0
    while passed < 24 * HOUR:
        intent = await side.begun()
        assert intent.attempts == 1 <= MAX_SEND_ATTEMPTS
        await flooded(side, intent, HOUR / 2)
        assert await side.states() == ["pending", "pending"] and await side.intend() == []
        await later(side, HOUR / 2)
        refusals, passed = refusals + 1, passed + HOUR / 2
    assert await drained(side) == ["a", "a"]
    assert await side.states() == ["sent", "sent"]
    tries: Sequence[object] = await rows(
        side.db, "SELECT outcome, count(*) AS n FROM outbox_attempt GROUP BY 1 ORDER BY 1"
    )
    assert tries == [{"outcome": "retryable", "n": refusals}, {"outcome": "sent", "n": 2}] and refusals == 48


async def test_old_rates_are_forgotten(side: Side) -> None:
    await side.put("a", "b")
    await drained(side)
    await later(side, HOUR)
    await side.put("c")
    await side.intend()
    await forget(side.db, side.channel)
    found = await rows(side.db, "SELECT scope FROM channel_rate ORDER BY scope")
    assert found == [{"scope": BOT}, {"scope": "c"}]


def test_a_channel_may_have_rates_of_its_own() -> None:
    limits = Limits(text_max=1, chat_rate=1.0, bot_rate=30.0, group_rate=0.3, group_prefix="-", rate_by="chat")
    assert rates_of(limits, {}) == Rates(1.0, 0.3, 30.0, 4, "-", True)
    assert rates_of(limits, {"chat_rate": 5, "bot_rate": "50"}) == Rates(5.0, 5.0, 50.0, 4, "-", True)
    assert UNLIMITED.parameters()[0] == 1e-6
    for wrong in (0, -1, "fast", 1e9):
        with pytest.raises(ValueError, match=r".+"):
            rates_of(limits, {"chat_rate": wrong})
