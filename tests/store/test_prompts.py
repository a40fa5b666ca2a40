"""Prompts: closed with their approval, whichever way that is resolved, and asked again when nobody can have seen or heard them."""

from __future__ import annotations

import asyncio

import pytest

from stratus.domain.approval import MAX_OFFERS
from stratus.store.database import Database
from stratus.store.decision import decide, expire
from stratus.store.intent import Intent, begin, intend
from stratus.store.prompts import offer_lost, offer_unheard
from stratus.store.settle import Outcome, complete
from stratus.store.stop import stop
from testbed.invariants import violations
from tests.store.parked import ASKER, OWNER, parked
from tests.store.world import make_channel, own, rows

OPS = """
SELECT kind, state, delivery_key, payload ->> 'text' AS text, depends_on, error ->> 'code' AS code FROM channel_outbox ORDER BY id
"""


async def ops(db: Database, kind: str) -> list[dict[str, object]]:
    return [row for row in await rows(db, OPS) if row["kind"] == kind]


async def send(db: Database, channel_id: int, outcome: str = "sent") -> list[Intent]:
    """Send what is due, as the channel's owner does, one op of each lane; returns what was sent."""
    lease = await own(db, channel_id)
    intents = (await intend(db, lease, "r", 10)).intents
    await begin(db, lease, intents, 20.0)
    detail = {"message_id": f"m{intents[0].op_id}"} if outcome == "sent" else {"code": "blocked"}
    await complete(db, [Outcome(one.op_id, one.token, outcome, detail) for one in intents])
    return list(intents)


async def age(db: Database, seconds: float) -> None:
    """Make all ops older."""
    await db.transact(
        lambda c: c.execute("UPDATE channel_outbox SET created_at = created_at - make_interval(secs => $1)", seconds)
    )


async def test_a_prompt_that_has_not_left_is_canceled_with_the_decision(db: Database) -> None:
    one = await parked(db, channel_id=await make_channel(db))
    await decide(db, one.approvals[0], "approve", OWNER)
    assert [(op["state"], op["code"]) for op in await ops(db, "approval_prompt")] == [
        ("canceled", "answered"),
        ("pending", None),
    ]
    assert await ops(db, "edit_prompt") == []
    assert await violations(db, at_rest=False) == {}


async def test_a_sent_prompt_says_what_was_decided_and_loses_its_buttons(db: Database) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=1)
    [prompt] = await send(db, channel_id)
    assert prompt.payload["buttons"]
    await decide(db, one.approvals[0], "deny", OWNER, note="too dear")
    [edit] = await send(db, channel_id)
    assert edit.kind == "edit_prompt"
    assert edit.payload["message_id"] == f"m{prompt.op_id}"
    assert "buttons" not in edit.payload
    assert edit.payload["text"] == "charge\nwhat: plum\n\nOlga did not allow this: too dear"
    assert (edit.address, edit.lane) == (prompt.address, prompt.lane)


async def test_a_prompt_that_is_leaving_is_closed_behind_it_with_its_own_message(db: Database) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=1)
    lease = await own(db, channel_id)
    [leaving] = (await intend(db, lease, "r", 10)).intents
    await decide(db, one.approvals[0], "approve", OWNER)
    assert (await intend(db, lease, "r", 10)).intents == [], "the edit waits for the prompt's end"
    await complete(db, [Outcome(leaving.op_id, leaving.token, "sent", {"message_id": "77"})])
    [edit] = (await intend(db, lease, "r", 10)).intents
    assert (edit.kind, edit.payload["message_id"]) == ("edit_prompt", "77")


async def test_a_prompt_that_fails_while_it_leaves_takes_its_edit_along(db: Database) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=1)
    lease = await own(db, channel_id)
    [leaving] = (await intend(db, lease, "r", 10)).intents
    await decide(db, one.approvals[0], "approve", OWNER)
    await complete(db, [Outcome(leaving.op_id, leaving.token, "permanent", {"code": "blocked"})])
    assert [op["state"] for op in await ops(db, "edit_prompt")] == ["canceled"]


@pytest.mark.parametrize(
    ("how", "said"), [("expired", "Nobody answered in time"), ("stopped", "The turn that asked is over")]
)
async def test_expiry_and_a_stop_close_the_prompts_too(db: Database, how: str, said: str) -> None:
    channel_id = await make_channel(db)
    await parked(db, channel_id=channel_id, calls=2)
    await send(db, channel_id)
    if how == "expired":
        await db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp()"))
        assert await expire(db, 10) == ["s1"]
    else:
        await stop(db, "s1", "somebody", queued=True)
    assert [op["state"] for op in await ops(db, "approval_prompt")] == ["sent", "canceled"]
    [edit] = await ops(db, "edit_prompt")
    assert said in str(edit["text"])
    assert await violations(db, at_rest=False) == {}


async def test_a_repeated_decision_closes_nothing_twice(db: Database) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=1)
    await send(db, channel_id)
    await decide(db, one.approvals[0], "approve", ASKER)
    await decide(db, one.approvals[0], "approve", ASKER)
    await stop(db, "s1", "somebody", queued=True)
    assert len(await ops(db, "edit_prompt")) == 1


@pytest.mark.parametrize("outcome", ["permanent", "unknown"])
async def test_a_prompt_that_did_not_get_through_is_asked_again_later_and_not_for_ever(
    db: Database, outcome: str
) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=1)
    await send(db, channel_id, outcome)
    assert await offer_lost(db, 10) == 0, "at once it would only fail again"
    await age(db, 61)
    assert sorted(await asyncio.gather(*(offer_lost(db, 10) for _ in range(3)))) == [0, 0, 1]
    assert [op["delivery_key"] for op in await ops(db, "approval_prompt")] == [
        f"approval:{one.approvals[0].hex}:{n}" for n in (1, 2)
    ]
    for _ in range(MAX_OFFERS):
        await send(db, channel_id, outcome)
        await age(db, 3600)
        await offer_lost(db, 10)
    assert len(await ops(db, "approval_prompt")) == MAX_OFFERS
    await decide(db, one.approvals[0], "approve", ASKER)


async def test_what_is_answered_over_or_deleted_is_not_asked_again(db: Database) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=2)
    await send(db, channel_id, "permanent")
    await send(db, channel_id, "permanent")
    await age(db, 3600)
    await decide(db, one.approvals[0], "deny", OWNER)
    await db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp() WHERE call_id = 'b'"))
    assert await offer_lost(db, 10) == 0
    await db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp() + interval '1 hour'"))
    await db.transact(lambda c: c.execute("UPDATE channel SET deleted_at = clock_timestamp()"))
    assert await offer_lost(db, 10) == 0


async def test_after_a_silence_the_sent_prompts_of_that_channel_are_asked_again(db: Database) -> None:
    channel_id, other = await make_channel(db), await make_channel(db)
    one = await parked(db, channel_id=channel_id, calls=1)
    await parked(db, "s2", channel_id=other, calls=1)
    assert await offer_unheard(db, channel_id) == 0, "it has not even left"
    [first] = await send(db, channel_id)
    assert sorted(await asyncio.gather(*(offer_unheard(db, channel_id) for _ in range(2)))) == [0, 1]
    [second] = await send(db, channel_id)
    assert second.payload == first.payload
    assert len(await ops(db, "approval_prompt")) == 3
    await decide(db, one.approvals[0], "approve", ASKER)
    edited = {(await send(db, channel_id))[0].payload["message_id"] for _ in range(2)}
    assert edited == {f"m{first.op_id}", f"m{second.op_id}"}, "old buttons go as well"
