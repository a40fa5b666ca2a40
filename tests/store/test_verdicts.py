"""Operators settle what only a person can tell: moved once, recorded with who said so, refused with what the op is now."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from stratus.domain.errors import Conflict, NotFound
from stratus.store import outbox_view
from stratus.store.database import Database
from stratus.store.outbox_view import Filter, evidence
from stratus.store.verdict import Settled, Verdict, settle
from tests.store.test_outbox import Side
from tests.store.world import make_channel, own, rows

VERDICTS = "SELECT op_id, action, by, from_state, to_state, note FROM outbox_verdict ORDER BY id"


@pytest.fixture
async def side(db: Database) -> Side:
    channel = await make_channel(db)
    return Side(db, channel, await own(db, channel))


async def unknown(side: Side, lane: str = "a") -> int:
    """An op that the platform may have taken."""
    await side.put(lane)
    intent = await side.begun()
    assert await side.end(intent, "unknown", detail={"code": "reset"}) == "unknown"
    return intent.op_id


async def say(
    db: Database, op_id: int, action: str, by: str = "ann", key: UUID | None = None, **fields: Any
) -> Settled:
    return await settle(db, Verdict(op_id, action, by, key or uuid4(), **fields))


@pytest.mark.parametrize(("action", "state"), [("sent", "sent"), ("resend", "pending"), ("cancel", "canceled")])
async def test_a_verdict_moves_the_op_and_says_who_passed_it(db: Database, side: Side, action: str, state: str) -> None:
    op_id = await unknown(side)
    settled = await say(db, op_id, action, note=" seen in the chat ")
    assert (settled.state, settled.channel_id, settled.repeated) == (state, side.channel, False)
    assert await rows(db, VERDICTS) == [
        {
            "op_id": op_id,
            "action": action,
            "by": "ann",
            "from_state": "unknown",
            "to_state": state,
            "note": "seen in the chat",
        }
    ]


async def test_what_was_seen_on_the_platform_keeps_its_id(db: Database, side: Side) -> None:
    op_id = await unknown(side)
    await say(db, op_id, "sent", message_id="77")
    assert (await evidence(db, op_id))["sent_message_id"] == "77"


async def test_a_repeat_of_the_same_saying_moves_nothing(db: Database, side: Side) -> None:
    """As after a COMMIT whose answer was lost: the op has moved on meanwhile."""
    op_id, key = await unknown(side), uuid4()
    await say(db, op_id, "resend", key=key)
    [again] = await side.intend()
    assert (await say(db, op_id, "resend", key=key)).state == "pending"
    assert await side.states() == ["sending"]
    assert again.attempt == 2
    assert len(await rows(db, VERDICTS)) == 1


async def test_the_same_person_saying_it_twice_is_answered_the_first(db: Database, side: Side) -> None:
    op_id = await unknown(side)
    await say(db, op_id, "sent")
    assert (await say(db, op_id, "sent")).repeated
    with pytest.raises(Conflict, match="is sent: the platform has it"):
        await say(db, op_id, "sent", by="bob")
    assert len(await rows(db, VERDICTS)) == 1


async def test_a_refused_verdict_says_what_the_op_is_now_and_is_not_recorded(db: Database, side: Side) -> None:
    await side.put("a")
    [first] = await rows(db, "SELECT id FROM channel_outbox")
    op_id = int(str(first["id"]))
    for action in ("sent", "resend"):
        with pytest.raises(Conflict, match="is pending: it waits to be sent"):
            await say(db, op_id, action)
    intent = await side.begun()
    with pytest.raises(Conflict, match="is sending: it is being sent right now"):
        await say(db, op_id, "cancel")
    await side.end(intent, "permanent")
    with pytest.raises(Conflict, match="is failed: the platform refused it"):
        await say(db, op_id, "resend")
    with pytest.raises(NotFound, match="no operation 999"):
        await say(db, 999, "cancel")
    assert await rows(db, VERDICTS) == []


async def test_canceling_takes_along_what_depends_on_it(db: Database, side: Side) -> None:
    await side.put("a", "a", "a", chained=True)
    [first, *_] = await rows(db, "SELECT id FROM channel_outbox ORDER BY id")
    await say(db, int(str(first["id"])), "cancel")
    assert await side.states() == ["canceled"] * 3


async def test_resending_gives_new_attempts(db: Database, side: Side) -> None:
    op_id = await unknown(side)
    await db.transact(lambda c: c.execute("UPDATE channel_outbox SET attempts = 5"))
    await say(db, op_id, "resend")
    intent = await side.begun()
    assert (intent.attempts, intent.attempt) == (1, 2)
    assert await side.end(intent, "sent") == "sent"


async def test_the_evidence_is_each_attempt_each_verdict_and_the_neighbours(db: Database, side: Side) -> None:
    op_id = await unknown(side)
    await say(db, op_id, "resend", note="nobody saw it")
    intent = await side.begun()
    await side.end(intent, "unknown", detail={"code": "silence"})
    await side.put("a", "b")
    found = await evidence(db, op_id)
    assert [(one["attempt"], one["outcome"], one["detail"]["code"]) for one in found["attempts_made"]] == [
        (1, "unknown", "reset"),
        (2, "unknown", "silence"),
    ]
    assert all(one["begun"] and one["replica"] == "r" for one in found["attempts_made"])
    assert [(one["action"], one["by"], one["note"]) for one in found["verdicts"]] == [
        ("resend", "ann", "nobody saw it")
    ]
    assert [(one["lane_seq"], one["state"]) for one in found["around"]] == [(2, "pending")]
    assert (found["text"], found["address"], found["error"]["code"]) == ("0", {"chat": "a"}, "silence")
    with pytest.raises(NotFound):
        await evidence(db, 999)


async def test_a_page_is_filtered_and_continued(db: Database, side: Side) -> None:
    other = await make_channel(db)
    lost = await unknown(side, "e")
    await side.put("a", "b", "c")
    await Side(db, other, await own(db, other)).put("d")

    async def ids(**which: Any) -> list[int]:
        return [one["id"] for one in await outbox_view.listing(db, Filter(**which))]

    everything = await ids()
    assert len(everything) == 5 and everything == sorted(everything, reverse=True)
    first = await ids(limit=2)
    assert first + await ids(limit=9, before=first[-1]) == everything
    [name] = await rows(db, "SELECT name, public_id::text AS id FROM channel WHERE id = $1", other)
    assert len(await ids(channel=str(name["name"]))) == len(await ids(channel=str(name["id"]))) == 1
    assert await ids(state="unknown", older=0.0) == [lost]
    await db.transact(
        lambda c: c.execute("UPDATE channel_outbox SET created_at = created_at - interval '1 hour' WHERE lane = 'a'")
    )
    assert len(await ids(older=3000.0)) == 1
