"""Histories and transcript pages: whole, in order, and with the cursor that continues them."""

from __future__ import annotations

from stratus.domain.event import Cursor
from stratus.store import event as log
from stratus.store import message as messages
from stratus.store import view
from stratus.store.database import Database
from stratus.store.run import claim, finish
from tests.store.world import completion, new_run, queue, running


async def turn(db: Database, text: str) -> None:
    await queue(db, new_run("s1", text))
    [claimed] = await claim(db, "worker", 1, 60.0)
    assert await finish(db, [completion(claimed)]) == [True]


async def test_histories_come_whole_and_in_order(db: Database) -> None:
    await turn(db, "one")
    await turn(db, "two")
    await running(db, "s2")
    found = await db.read(lambda c: messages.history(c, ["s1", "s2", "s3"]))
    assert [(one.role, one.text()) for _, one in found["s1"]] == [
        ("user", "one"),
        ("assistant", "done"),
        ("user", "two"),
        ("assistant", "done"),
    ]
    assert [one.role for _, one in found["s2"]] == ["user"]
    assert found["s3"] == []


async def test_pages_go_back_to_the_beginning(db: Database) -> None:
    for text in ("one", "two", "three"):
        await turn(db, text)
    newest = await messages.page(db, "s1", None, 4)
    assert newest is not None
    assert [one.position for one in newest.messages] == [3, 4, 5, 6]
    assert newest.before == 3
    oldest = await messages.page(db, "s1", newest.before, 4)
    assert oldest is not None
    assert [one.position for one in oldest.messages] == [1, 2]
    assert oldest.before is None
    assert await messages.page(db, "nowhere", None, 4) is None


async def test_the_cursor_continues_the_page(db: Database) -> None:
    await turn(db, "one")
    idle = await messages.page(db, "s1", None, 50)
    assert idle is not None
    assert idle.cursor == Cursor(idle.messages[0].run, 5)
    assert idle.open_run is None

    claimed = await running(db, "s1")
    [later] = await queue(db, new_run("s1", "later"))
    busy = await messages.page(db, "s1", None, 50)
    assert busy is not None
    # Of the open run nothing may be missed, so the cursor stands before its first event, not before the later run's.
    assert busy.cursor == Cursor(claimed.run, 5)
    assert (busy.open_run, busy.open_state) == (claimed.run, "running")
    [page] = await log.tail(db, [("s1", busy.cursor.seq)], 50)
    assert [(one.run, one.kind) for one in page] == [
        (claimed.run, "run.queued"),
        (claimed.run, "run.started"),
        (claimed.run, "message.user"),
        (later.run, "run.queued"),
    ]


async def test_a_run_is_found_by_id_and_by_key(db: Database) -> None:
    [queued] = await queue(db, new_run("s1", "one", key="a:key"))
    waiting = await view.run_by_key(db, "s1", "a:key")
    assert waiting is not None
    assert (waiting.run, waiting.state, waiting.reply, waiting.delivery) == (queued.run, "queued", "", [])
    assert await view.run_by_key(db, "s2", "a:key") is None
    [claimed] = await claim(db, "worker", 1, 60.0)
    await finish(db, [completion(claimed)])
    done = await view.run_view(db, queued.run)
    assert done is not None
    assert (done.state, done.reply, done.attempts, done.worker) == ("completed", "done", 1, "worker")


async def test_the_backlog_counts_what_waits(db: Database) -> None:
    assert await view.backlog(db) == []
    await running(db, "s1")
    await queue(db, new_run("s1"), new_run("s2"))
    found = {(one.queue, one.state): one for one in await view.backlog(db)}
    assert {place: one.total for place, one in found.items()} == {("runs", "running"): 1, ("runs", "queued"): 2}
    assert all(0 <= one.oldest < 60 for one in found.values())
