"""One tailer for all of a replica's readers: in order, at each one's own pace, bounded, and only what has committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stratus.domain.errors import DatabaseAway
from stratus.domain.event import NewEvent
from stratus.effects import Clock
from stratus.observe.tailer import Tailer
from stratus.observe.watch import BYTES_MAX, COUNT_MAX, Watch
from stratus.store import event as log
from stratus.store.database import Connection, Database, Timeouts
from stratus.store.execution import Append, append
from stratus.store.hints import Hints
from stratus.store.run import ClaimedRun
from stratus.store.session import enqueue
from testbed.eventually import eventually
from tests.store.world import new_run, queue, running


class Hand(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
async def hand() -> Hand:
    return Hand()


@pytest.fixture
async def tailer(db: Database, hand: Hand) -> AsyncIterator[Tailer]:
    """Driven step by step."""
    yield Tailer(db, Hints(db.dsn, Timeouts(), "test"), poll_seconds=5.0, clock=hand)


async def fill(db: Database, claimed: ClaimedRun, count: int, text: str = "x") -> None:
    events = [NewEvent("text.delta", {"text": text})] * count
    assert await append(db, [Append(claimed.lease, claimed.run_seq, 1, events)]) == [True]


async def seqs(watch: Watch) -> list[int]:
    return [event.seq for event in await watch.take(0.01) or []]


async def test_readers_of_one_session_share_a_read(
    db: Database, tailer: Tailer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(db, "s1")
    await running(db, "s2")
    asked: list[list[tuple[str, int]]] = []

    async def spy(database: Database, watches: list[tuple[str, int]], limit: int) -> object:
        asked.append(sorted(watches))
        return await real(database, watches, limit)

    real = log.tail
    monkeypatch.setattr(log, "tail", spy)
    watches = [tailer.watch("s1", 0) for _ in range(30)] + [tailer.watch("s2", 0), tailer.watch("s2", 2)]
    await tailer.step()
    assert asked == [[("s1", 0), ("s2", 0), ("s2", 2)]]
    assert [await seqs(watch) for watch in watches] == [[1, 2, 3]] * 31 + [[3]]


async def test_a_hint_reads_that_session_and_the_poll_reads_all(db: Database, tailer: Tailer, hand: Hand) -> None:
    one, two = tailer.watch("s1", 0), tailer.watch("s2", 0)
    await tailer.step()
    await queue(db, new_run("s1"), new_run("s2"))
    tailer.hint("s1")
    await tailer.step()
    assert (await seqs(one), await seqs(two)) == ([1], [])
    hand.at += 10  # the hint for s2 was lost
    await tailer.step()
    assert await seqs(two) == [1]


async def test_hints_without_end_do_not_starve_the_poll(db: Database, tailer: Tailer, hand: Hand) -> None:
    busy, quiet = tailer.watch("s1", 0), tailer.watch("s2", 0)
    await tailer.step()
    await queue(db, new_run("s2"))  # its hint is lost
    for _ in range(6):
        hand.at += 1
        tailer.hint("s1")
        await tailer.step()
    assert (await seqs(busy), await seqs(quiet)) == ([], [1])


async def test_nothing_is_told_before_its_commit(db: Database, tailer: Tailer, hand: Hand) -> None:
    watch = tailer.watch("s1", 0)

    async def work(connection: Connection) -> None:
        await enqueue(connection, [new_run("s1")])
        hand.at += 10
        await tailer.step()
        assert await seqs(watch) == []

    await db.transact(work)
    hand.at += 10
    await tailer.step()
    assert await seqs(watch) == [1]


async def test_a_long_log_comes_page_by_page_and_bounded(db: Database, tailer: Tailer) -> None:
    claimed = await running(db, "s1")
    await fill(db, claimed, 2 * COUNT_MAX)
    with tailer.watch("s1", 0) as watch:
        while await tailer.step():
            pass
        first = await seqs(watch)
        assert len(first) == COUNT_MAX, "a window holds so much and no more, though more is there"
        while await tailer.step():
            pass
        rest = await seqs(watch)
        await tailer.step()
        assert first + rest + await seqs(watch) == list(range(1, 2 * COUNT_MAX + 4))
    assert tailer.watchers == 0


async def test_large_events_are_bounded_by_their_size(db: Database, tailer: Tailer) -> None:
    claimed = await running(db, "s1")
    await fill(db, claimed, 12, "x" * 200_000)
    watch = tailer.watch("s1", 3)
    read: list[int] = []
    while len(read) < 12:
        await tailer.step()
        events = await watch.take(0.01)
        assert events
        assert sum(len(event.payload) for event in events[:-1]) < BYTES_MAX
        read += [event.seq for event in events]
    assert read == list(range(4, 16))


async def test_a_slow_reader_is_ended_and_others_go_on(db: Database, tailer: Tailer, hand: Hand) -> None:
    claimed = await running(db, "s1")
    await fill(db, claimed, COUNT_MAX + 100)
    slow, quick = tailer.watch("s1", 0), tailer.watch("s1", 0)
    got: list[int] = []
    for _ in range(12):
        hand.at += 10
        await tailer.step()
        got += await seqs(quick)
    assert got == list(range(1, COUNT_MAX + 104))
    held = await slow.take(0.01)
    assert held is not None
    assert [event.seq for event in held] == list(range(1, COUNT_MAX + 1)), "what it had is whole, so it can resume"
    assert await slow.take(0.01) is None, "then it ends, and is not fed on behind its back"


async def test_an_outage_keeps_the_windows_open(db: Database, tailer: Tailer, monkeypatch: pytest.MonkeyPatch) -> None:
    await running(db, "s1")
    watch = tailer.watch("s1", 0)
    away = Database("postgresql://dev@127.0.0.1:1/none")
    with monkeypatch.context() as patch:
        patch.setattr(tailer, "_db", away)
        with pytest.raises(DatabaseAway):
            await tailer.step()
    assert await seqs(watch) == []
    tailer.hint("s1")
    await tailer.step()
    assert await seqs(watch) == [1, 2, 3]


async def test_closing_ends_all_windows_and_those_to_come(db: Database, tailer: Tailer) -> None:
    await running(db, "s1")
    early = tailer.watch("s1", 0)
    await tailer.step()
    tailer.close()
    assert await seqs(early) == [1, 2, 3]
    assert await early.take(0.01) is None
    assert await tailer.watch("s1", 0).take(0.01) is None


async def test_the_loop_brings_hinted_events_at_once(db: Database) -> None:
    tailer = Tailer(db, Hints(db.dsn, Timeouts(), "test"), poll_seconds=60.0)
    task = asyncio.create_task(tailer.loop.run())
    try:
        with tailer.watch("s1", 0) as watch:
            await eventually(lambda: tailer.loop.health.steps, what="the first step")
            await queue(db, new_run("s1"))
            tailer.hint("s1")
            events = await watch.take(10)
            assert events is not None
            assert [event.kind for event in events] == ["run.queued"]
    finally:
        tailer.loop.stop()
        await task
