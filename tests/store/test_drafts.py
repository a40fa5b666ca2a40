"""One draft after the other: never an older text after a newer one, none but by the owner, none for a run that ends."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from stratus.domain.draft import Step
from stratus.domain.event import NewEvent
from stratus.store import draft, outbox
from stratus.store.database import Database
from stratus.store.execution import Append, append
from stratus.store.intent import begin
from tests.store.painting import Painting, edits, painted
from tests.store.world import make_channel, rows, running

AGE_DRAFTS = "UPDATE channel_outbox SET settled_at = settled_at - interval '1 minute' WHERE kind = 'draft_update'"
INTERVAL = 1.0


@pytest.fixture
async def painting(db: Database) -> Painting:
    return await painted(db)


# -- one draft after the other --


async def test_the_first_draft_is_a_message_and_later_ones_edit_it(painting: Painting) -> None:
    assert await painting.draw("one") is Step.SEND
    first = await painting.begun()
    assert edits(first) == ("one …", None) and first.kind == "draft_update"
    await painting.end(first, "sent", detail={"message_id": "m1"})
    for text in ("two", "three"):
        assert await painting.draw(text) is Step.EDIT
        again = await painting.begun()
        assert edits(again) == (f"{text} …", "m1")
        await painting.end(again, "sent", detail={"message_id": "m1"})


async def test_a_draft_that_has_not_left_takes_the_newer_text(painting: Painting) -> None:
    await painting.shown("one")
    assert await painting.draw("two") is Step.EDIT
    assert await painting.draw("three") is Step.MERGE
    assert await painting.draw("three") is Step.SAME
    assert edits(await painting.one()) == ("three …", "m1")
    assert len(await painting.ops()) == 2


async def test_nothing_is_planned_behind_an_edit_on_its_way(painting: Painting) -> None:
    await painting.draw("one")
    await painting.begun()
    assert await painting.draw("two") is Step.WAIT
    assert len(await painting.ops()) == 1


async def test_an_interval_lies_between_two_edits(painting: Painting) -> None:
    await painting.shown("one")
    assert await painting.draw("two", interval=30.0) is Step.WAIT
    await painting.db.transact(lambda c: c.execute(AGE_DRAFTS))
    assert await painting.draw("two", interval=30.0) is Step.EDIT


async def test_an_older_text_never_follows_a_newer_one(painting: Painting) -> None:
    await painting.draw("new", seq=20)
    assert await painting.draw("old", seq=19) is Step.SAME
    await painting.end(await painting.begun(), "sent", detail={"message_id": "m1"})
    assert await painting.draw("old", seq=19) is Step.SAME
    assert await painting.ops() == [("draft_update", "sent", "new …")]


async def test_a_merge_into_what_became_newer_meanwhile_changes_nothing(painting: Painting) -> None:
    await painting.draw("new", seq=20)
    [op] = await rows(painting.db, "SELECT id FROM channel_outbox")
    older = '{"seq": 19, "text": "old"}'
    await painting.db.transact(lambda c: c.execute(draft._MERGE, [op["id"]], [older]))
    assert edits(await painting.one())[0] == "new …"
    newer = '{"seq": 21, "text": "newer"}'
    await painting.db.transact(lambda c: c.execute(draft._MERGE, [op["id"]], [newer]))
    assert await painting.ops() == [("draft_update", "sending", "new …")]


@pytest.mark.parametrize("outcome", ["unknown", "permanent"])
async def test_after_an_edit_that_is_not_known_or_refused_there_are_no_more(painting: Painting, outcome: str) -> None:
    await painting.shown("one")
    await painting.draw("two")
    await painting.end(await painting.begun(), outcome)
    assert await painting.draw("three") is Step.OVER


async def test_a_flood_wait_is_kept_by_whatever_comes_next(painting: Painting) -> None:
    await painting.shown("one")
    await painting.draw("two")
    await painting.end(await painting.begun(), "retryable", delay=60.0, costs=False)
    assert await painting.draw("three") is Step.MERGE
    assert await painting.intend() == []
    await painting.say("between")
    await painting.end(await painting.one(), "sent")
    assert [state for _, state, _ in await painting.ops()] == ["sent", "canceled", "sent"]
    assert await painting.draw("four") is Step.WAIT


async def test_a_draft_has_less_time_than_an_answer(painting: Painting) -> None:
    await painting.draw("one")
    intent = await painting.one()
    await begin(painting.db, painting.lease, [intent], 20.0, 5.0)
    left = "SELECT extract(epoch FROM attempt_deadline - clock_timestamp())::float8 AS s FROM channel_outbox"
    [found] = await rows(painting.db, left)
    assert 0 < float(str(found["s"])) <= 5


# -- who may draw --


async def test_only_the_owner_draws(painting: Painting) -> None:
    heir = await painting.next_owner()
    assert await painting.draw("stale") is None
    painting.lease = heir.lease
    assert await painting.draw("fresh") is Step.SEND
    assert await painting.ops() == [("draft_update", "pending", "fresh …")]


async def test_a_new_owner_edits_the_same_message(painting: Painting) -> None:
    await painting.shown("one", "m7")
    painting.lease = (await painting.next_owner()).lease
    assert await painting.draw("two") is Step.EDIT
    assert edits(await painting.one()) == ("two …", "m7")


async def test_a_run_that_is_just_ending_is_passed_over(painting: Painting, dsn: str) -> None:
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("SELECT 1 FROM agent_run FOR NO KEY UPDATE")
            async with asyncio.timeout(5):
                assert await painting.draw("late") is None
    finally:
        await other.close()
    await painting.answer()
    assert await painting.draw("later") is None
    assert [kind for kind, _, _ in await painting.ops()] == ["send_reply"]


# -- what there is to read --


async def test_the_events_of_running_turns_are_read_from_their_places(painting: Painting) -> None:
    db, claimed = painting.db, painting.claimed
    await running(db, "elsewhere", channel_id=await make_channel(db))
    await running(db, "web")
    written = [NewEvent("text.delta", {"part": 0, "text": text}) for text in "abc"]
    await append(db, [Append(claimed.lease, claimed.run_seq, claimed.attempt, [*written, NewEvent("usage", {})])])
    [found] = await draft.live(db, [painting.channel], {}, 100)
    assert (found.run_id, found.run, found.direct) == (claimed.lease.run_id, claimed.run, True)
    assert found.reply_to == painting.to and 0 <= found.age < 60
    assert [kind for _, kind, _ in found.events] == ["run.started", *["text.delta"] * 3]
    assert found.last == claimed.run_seq + 4
    [page] = await draft.live(db, [painting.channel], {found.run_id: claimed.run_seq}, 2)
    assert [payload["text"] for _, _, payload in page.events] == ["a", "b"] and page.last == claimed.run_seq + 2
    [rest] = await draft.live(db, [painting.channel], {found.run_id: found.last}, 2)
    assert rest.events == [] and rest.last == found.last
    lease = painting.lease
    assert await outbox.stirring(db, [lease]) == ([], [painting.channel])
    await painting.answer(run_seq=found.last)
    assert await draft.live(db, [painting.channel], {}, 100) == []
    assert await outbox.stirring(db, [lease]) == ([painting.channel], [])
