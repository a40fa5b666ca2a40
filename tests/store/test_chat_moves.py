"""A chat that is called otherwise from now on: what is open follows it, in order, once, whichever way it was learnt."""

from __future__ import annotations

from uuid import uuid4

import pytest

from stratus.domain.values import ReplyTo
from stratus.store import chat_move
from stratus.store.database import Database
from stratus.store.inbox import Arrival, intake
from stratus.store.plan import NewOp, plan
from stratus.store.settle import Outcome, complete
from tests.store.test_outbox import Side
from tests.store.world import event, make_channel, new_run, own, queue, rows

OLD, NEW, OTHER = "-5", "-1005", "-6"
OPS = "SELECT lane, lane_seq, state, address ->> 'chat' AS chat, payload ->> 'text' AS text FROM channel_outbox ORDER BY lane, lane_seq"
BIND = "INSERT INTO binding (channel_id, chat_key, thread_key, session_id, revision) VALUES ($1, $2, $3, $4, 1)"
BOUND = "SELECT chat_key, thread_key, session_id FROM binding ORDER BY chat_key, thread_key"


@pytest.fixture
async def side(db: Database) -> Side:
    channel = await make_channel(db)
    return Side(db, channel, await own(db, channel))


async def put(side: Side, chat: str, *texts: str, thread: str = "") -> None:
    to = ReplyTo(channel_id=side.channel, platform="testchan", chat=chat, thread=thread)
    ops = [
        NewOp(side.channel, to.lane(), "send_text", {"chat": chat, "thread": thread}, {"text": text}, uuid4().hex)
        for text in texts
    ]
    await side.db.transact(lambda c: plan(c, ops))


async def move(side: Side) -> None:
    await side.db.transact(lambda c: chat_move.move(c, side.channel, OLD, NEW))


async def lanes(side: Side) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for row in await rows(side.db, OPS):
        found.setdefault(str(row["lane"]), []).append(row["text"])
        assert row["chat"] == str(row["lane"]).partition("\x1f")[0]
    return found


async def test_open_ops_go_behind_what_waits_there_in_their_own_order(side: Side) -> None:
    await put(side, OLD, "1", "2", "3")
    await put(side, OLD, "t1", "t2", thread="9")
    await put(side, NEW, "n1")
    await put(side, OTHER, "o1")
    await move(side)
    await put(side, NEW, "n2")
    assert await lanes(side) == {
        NEW: ["n1", "1", "2", "3", "n2"],
        f"{NEW}\x1f9": ["t1", "t2"],
        OTHER: ["o1"],
    }
    await move(side)
    assert (await lanes(side))[NEW] == ["n1", "1", "2", "3", "n2"], "a repeat changes nothing"


async def test_the_op_in_flight_keeps_its_place_and_its_attempt(side: Side) -> None:
    await put(side, OLD, "1", "2")
    intent = await side.begun()
    await move(side)
    assert (await lanes(side))[NEW] == ["1", "2"]
    assert await side.intend() == [], "the one in flight holds its lane up"
    assert await side.end(intent, "sent") == "sent"
    assert [one.payload["text"] for one in await side.intend()] == ["2"]


async def test_a_refusal_that_names_the_new_chat_moves_all_and_costs_only_its_own_retry(side: Side) -> None:
    await queue(side.db, new_run("s1", channel_id=side.channel))
    await side.db.transact(lambda c: c.execute(BIND, side.channel, OLD, "", "s1"))
    await put(side, OLD, "1", "2")
    intent = await side.begun()
    refused = Outcome(
        intent.op_id,
        intent.token,
        "retryable",
        {"code": "migrated"},
        costs=False,
        address={**intent.address, "chat": NEW},
    )
    assert await complete(side.db, [refused]) == {intent.op_id: "pending"}
    assert await complete(side.db, [refused]) == {}
    assert (await lanes(side)) == {NEW: ["1", "2"]}
    assert await rows(side.db, BOUND) == [{"chat_key": NEW, "thread_key": "", "session_id": "s1"}]
    again = await side.begun()
    assert (again.payload["text"], again.address["chat"], again.attempts) == ("1", NEW, 1)


async def test_sessions_go_along_unless_people_have_begun_another_there(side: Side) -> None:
    await queue(side.db, new_run("s1"), new_run("s2"), new_run("s3"))
    for chat, thread, session in [(OLD, "", "s1"), (OLD, "9", "s2"), (NEW, "9", "s3")]:
        await side.db.transact(lambda c, row=(chat, thread, session): c.execute(BIND, side.channel, *row))  # type: ignore[misc]
    await move(side)
    assert await rows(side.db, BOUND) == [
        {"chat_key": NEW, "thread_key": "", "session_id": "s1"},
        {"chat_key": NEW, "thread_key": "9", "session_id": "s3"},
        {"chat_key": OLD, "thread_key": "9", "session_id": "s2"},
    ]


async def test_open_runs_answer_there_and_waiting_events_are_of_there(side: Side) -> None:
    await queue(side.db, new_run("s1", channel_id=side.channel))
    await side.db.transact(
        lambda c: c.execute("UPDATE agent_run SET reply_to = jsonb_set(reply_to, '{chat}', to_jsonb($1::text))", OLD)
    )
    said = [event("1", "hello", chat=OLD), event("2", "aside", chat=OTHER)]
    await intake(side.db, [Arrival(side.channel, one) for one in said])
    await move(side)
    assert await rows(side.db, "SELECT reply_to ->> 'chat' AS chat FROM agent_run") == [{"chat": NEW}]
    found = await rows(side.db, "SELECT chat_key, payload ->> 'chat' AS chat FROM channel_inbox ORDER BY id")
    assert found == [{"chat_key": NEW, "chat": NEW}, {"chat_key": OTHER, "chat": OTHER}]


async def test_another_channels_chat_of_the_same_id_stays(side: Side, db: Database) -> None:
    other = await make_channel(db)
    await put(Side(db, other, await own(db, other)), OLD, "theirs")
    await move(side)
    assert await lanes(side) == {OLD: ["theirs"]}
