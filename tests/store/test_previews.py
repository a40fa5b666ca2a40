"""The answer and the preview before it: taken over if every edit of it is known, left alone if not, and never left as if it went on."""

from __future__ import annotations

from uuid import uuid4

import pytest

from stratus.domain.draft import Step
from stratus.domain.run import RunEvent
from stratus.domain.values import RunError
from stratus.store.database import Database
from stratus.store.park import park
from stratus.store.plan import NewOp
from stratus.store.preview import REFUSED
from stratus.store.stop import stop
from stratus.store.verdict import Verdict, settle
from tests.store.painting import Painting, edits, painted
from tests.store.parked import asking, parking
from tests.store.test_outbox import AGE
from tests.store.world import make_channel, own, running


@pytest.fixture
async def painting(db: Database) -> Painting:
    return await painted(db)


# -- the answer --


async def test_the_answer_takes_over_the_preview(painting: Painting) -> None:
    await painting.shown("one")
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", "m1")


async def test_without_drafts_the_answer_is_a_message(painting: Painting) -> None:
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", None)


async def test_the_answer_waits_for_the_edit_on_its_way(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    edit = await painting.begun()
    await painting.answer()
    assert await painting.intend() == []
    await painting.end(edit, "sent", detail={"message_id": "m1"})
    assert edits(await painting.one()) == ("the answer", "m1")


@pytest.mark.parametrize("outcome", ["unknown", "permanent"])
async def test_a_polluted_preview_is_abandoned(painting: Painting, outcome: str) -> None:
    await painting.shown("one")
    await painting.draw("two")
    edit = await painting.begun()
    await painting.answer()
    await painting.end(edit, outcome)
    assert edits(await painting.one()) == ("the answer", None)


async def test_a_takeover_with_an_edit_on_its_way_abandons_the_preview(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    await painting.begun()
    await painting.answer()
    heir = await painting.next_owner()
    assert await heir.adopt() == [] and await heir.intend() == []
    await painting.db.transact(lambda c: c.execute(AGE, 60.0))
    assert await heir.adopt() == ["unknown"]
    [intent] = await heir.intend()
    assert edits(intent) == ("the answer", None)


async def test_evidence_makes_a_preview_clean_again(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    edit = await painting.begun()
    await painting.end(edit, "unknown")
    await painting.end(edit, "sent", detail={"message_id": "m1"})
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", "m1")


async def test_a_waiting_draft_neither_holds_the_answer_nor_follows_it(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    await painting.end(await painting.begun(), "retryable", delay=60.0, costs=False)
    await painting.answer()
    answer = await painting.one()
    assert edits(answer) == ("the answer", "m1")
    assert [state for _, state, _ in await painting.ops()] == ["sent", "canceled", "sending"]


async def test_a_draft_that_is_due_leaves_the_lane_to_what_waits_behind_it(painting: Painting) -> None:
    await painting.draw("one")
    await painting.say("between")
    [intent] = await painting.intend()
    assert intent.payload["text"] == "between"
    await painting.end(intent, "sent")
    assert await painting.intend() == []
    assert [state for _, state, _ in await painting.ops()] == ["canceled", "sent"]


async def test_a_draft_of_a_run_that_no_longer_runs_is_not_sent(painting: Painting) -> None:
    await painting.draw("one")
    await painting.db.transact(lambda c: c.execute("DELETE FROM session_execution"))
    ended = "UPDATE agent_run SET state = 'completed', finished_at = clock_timestamp()"
    await painting.db.transact(lambda c: c.execute(ended))
    assert await painting.intend() == []
    assert await painting.ops() == [("draft_update", "canceled", "one …")]


async def test_an_operators_verdict_makes_no_preview_clean(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    edit = await painting.begun()
    await painting.end(edit, "unknown")
    await settle(painting.db, Verdict(edit.op_id, "cancel", "Olga", uuid4()))
    assert await painting.draw("three") is Step.OVER
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", None)


async def test_a_draft_that_an_operator_sent_again_makes_no_preview_clean(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    edit = await painting.begun()
    await painting.end(edit, "unknown")
    await settle(painting.db, Verdict(edit.op_id, "resend", "Olga", uuid4()))
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", None)
    assert [state for _, state, _ in await painting.ops()] == ["sent", "canceled", "sending"]


async def test_an_answer_whose_preview_is_gone_is_sent_as_a_message(painting: Painting) -> None:
    await painting.shown("one")
    await painting.answer()
    edit = await painting.begun()
    assert edits(edit) == ("the answer", "m1")
    refused = {"code": "bad_request", REFUSED: True}
    assert await painting.end(edit, "retryable", detail=refused, costs=False) == "pending"
    again = await painting.begun()
    assert edits(again) == ("the answer", None) and again.attempts == 1
    await painting.end(again, "retryable", detail={"code": "rate_limited"}, costs=False)
    assert edits(await painting.one()) == ("the answer", None)


async def test_a_chat_that_moved_has_no_preview(painting: Painting) -> None:
    await painting.shown("one")
    await painting.answer()
    moved = """UPDATE channel_outbox SET address = '{"chat": "c2", "thread": ""}' WHERE kind = 'send_reply'"""
    await painting.db.transact(lambda c: c.execute(moved))
    assert edits(await painting.one()) == ("the answer", None)


async def test_only_the_first_link_of_a_chain_takes_over(painting: Painting) -> None:
    await painting.shown("one")
    await painting.answer("word " * 2000)
    first = await painting.begun()
    assert first.payload["message_id"] == "m1"
    await painting.end(first, "sent", detail={"message_id": "m1"})
    assert "message_id" not in (await painting.one()).payload


# -- turns that end otherwise --


@pytest.mark.parametrize("event", [RunEvent.FAIL, RunEvent.CANCEL, RunEvent.INTERRUPT])
async def test_a_preview_does_not_stay_as_if_it_were_being_written(painting: Painting, event: RunEvent) -> None:
    await painting.shown("half an answer")
    await painting.ended(event, RunError(code="x", message="it failed"))
    settles = await painting.begun()
    assert edits(settles) == ("half an answer", "m1")
    await painting.end(settles, "sent")
    assert await painting.intend() == []


async def test_a_turn_without_a_preview_has_nothing_to_settle(painting: Painting) -> None:
    await painting.ended(RunEvent.CANCEL)
    assert await painting.ops() == []


async def test_of_a_polluted_preview_nothing_is_settled(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    await painting.end(await painting.begun(), "unknown")
    await painting.ended(RunEvent.CANCEL)
    assert [state for _, state, _ in await painting.ops()] == ["sent", "unknown"]


async def test_an_answer_of_files_alone_leaves_the_preview_as_text(painting: Painting) -> None:
    await painting.shown("🔧 `send_file`")
    file = NewOp(
        painting.channel, painting.to.lane(), "send_attachment", {"chat": "c1", "thread": ""}, {}, "f", run_id=1
    )
    await painting.answer(ops=[file])
    settles = await painting.begun()
    assert edits(settles) == ("🔧 `send_file`", "m1")
    await painting.end(settles, "sent")
    assert (await painting.one()).kind == "send_attachment"


async def test_a_question_ends_the_preview_and_stands_below_it(db: Database) -> None:
    channel = await make_channel(db)
    painting = Painting(db, channel, await own(db, channel))
    painting.claimed, run_seq = await asking(db, channel_id=channel)
    await painting.shown("May I?")
    await park(db, parking(painting.claimed, run_seq))
    settles = await painting.begun()
    assert edits(settles) == ("May I?", "m1")
    await painting.end(settles, "sent")
    assert (await painting.one()).kind == "approval_prompt"


async def test_an_answer_to_a_question_is_not_written_above_it(painting: Painting) -> None:
    await painting.shown("May I?")
    await painting.asks()
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", None)


async def test_what_comes_after_a_question_begins_a_new_preview(painting: Painting) -> None:
    await painting.shown("May I?")
    await painting.asks()
    assert await painting.draw("Thank you") is Step.SEND
    await painting.end(await painting.begun(), "sent", detail={"message_id": "m3"})
    await painting.answer()
    assert edits(await painting.one()) == ("the answer", "m3")


async def test_a_waiting_turn_that_is_stopped_settles_its_preview(db: Database) -> None:
    channel = await make_channel(db)
    painting = Painting(db, channel, await own(db, channel))
    painting.claimed = await running(db, channel_id=channel)
    await painting.shown("asking the other one")
    parked = "UPDATE agent_run SET state = 'waiting', worker_id = NULL"
    await db.transact(lambda c: c.execute("DELETE FROM session_execution"))
    await db.transact(lambda c: c.execute(parked))
    await stop(db, "s1", "Ann", queued=False)
    assert edits(await painting.one()) == ("asking the other one", "m1")
