"""The tail and a log's standing: one statement for all, contiguous under concurrent writers, of one moment."""

from __future__ import annotations

import asyncio
from typing import Any

from stratus.domain.event import NewEvent
from stratus.store import event as log
from stratus.store.database import Database
from stratus.store.execution import Append, append
from stratus.store.run import ClaimedRun, claim, finish
from stratus.store.stop import stop
from tests.store.world import completion, new_run, queue, running

PAGE = 7


async def write(db: Database, claimed: ClaimedRun, count: int) -> int:
    """`count` deltas, one statement each; the run_seq after them."""
    for n in range(count):
        taken = await append(db, [Append(claimed.lease, claimed.run_seq + n, 1, [NewEvent("text.delta", {"n": n})])])
        assert taken == [True]
    return claimed.run_seq + count


async def test_a_tail_is_one_statement_for_all_watchers(db: Database) -> None:
    claimed = [await running(db, f"s{n}") for n in range(20)]
    statements: list[str] = []

    async def counted(connection: Any) -> Any:
        connection.add_query_logger(lambda record: statements.append(record.query))
        return None

    counting = Database(db.dsn, main_size=1, ingress_size=1)
    await counting.open()
    try:
        await log.tail(counting, [("s1", 0)], PAGE)  # asyncpg looks up types on a connection's first use
        await counting.read(counted)
        pages = await log.tail(counting, [(one.lease.session_id, 1) for one in claimed], PAGE)
    finally:
        await counting.close()
    assert len(statements) == 1
    assert [[event.kind for event in page] for page in pages] == [["run.started", "message.user"]] * 20
    assert [page[0].run for page in pages] == [one.run for one in claimed]
    assert {event.session_id for page in pages for event in page} == {f"s{n}" for n in range(20)}


async def test_a_reader_misses_nothing_of_concurrent_writers(db: Database) -> None:
    claimed = await running(db, "s1")
    done = asyncio.Event()

    async def enqueuer() -> None:
        for n in range(60):
            await queue(db, new_run("s1", f"more {n}"))

    async def writers() -> None:
        await asyncio.gather(enqueuer(), write(db, claimed, 60), enqueuer())
        done.set()

    seen: list[int] = []

    async def reader() -> None:
        while True:
            last_look = done.is_set()
            [page] = await log.tail(db, [("s1", seen[-1] if seen else 0)], PAGE)
            seen.extend(event.seq for event in page)
            if last_look and not page:
                return

    await asyncio.gather(writers(), reader())
    assert seen == list(range(1, 184))


async def test_a_standing_tells_the_heads_and_the_open_runs(db: Database) -> None:
    assert await log.standing(db, "s1", None) is None
    claimed = await running(db, "s1")
    [second, third] = await queue(db, new_run("s1", "two"), new_run("s1", "three"))
    now = await log.standing(db, "s1", third.run)
    assert now is not None
    assert (now.event_seq, now.event_floor) == (5, 0)
    assert [(place.run, place.state, place.first_seq) for place in now.open] == [
        (claimed.run, "running", 1),
        (second.run, "queued", 4),
        (third.run, "queued", 5),
    ]
    assert now.named is not None
    assert (now.named.run, now.named.ended) == (third.run, False)

    assert await finish(db, [completion(claimed)]) == [True]
    after = await log.standing(db, "s1", claimed.run)
    assert after is not None
    assert after.named is not None
    assert (after.named.ended, after.named.last_seq) == (True, 7)
    assert [place.run for place in after.open] == [second.run, third.run]


async def test_a_run_of_another_session_is_not_named(db: Database) -> None:
    await running(db, "s1")
    [other] = await queue(db, new_run("s2"))
    standing = await log.standing(db, "s1", other.run)
    assert standing is not None
    assert standing.named is None


async def test_a_canceled_run_has_its_last_event(db: Database) -> None:
    [queued] = await queue(db, new_run("s1"))
    await stop(db, "s1", "me", queued=True)
    standing = await log.standing(db, "s1", queued.run)
    assert standing is not None
    assert standing.named is not None
    assert (standing.named.ended, standing.named.last_seq, standing.open) == (True, 2, [])
    assert await claim(db, "worker", 10, 60.0) == []
