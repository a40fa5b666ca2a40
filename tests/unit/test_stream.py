"""A reader's stream on a clock that the test moves: what it says while nothing of its own happens, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from stratus.domain.errors import DatabaseAway
from stratus.domain.event import StoredEvent
from stratus.effects import Chance, Clock
from stratus.observe import sse
from stratus.observe.attach import Scope
from stratus.observe.stream import ALLOWED_SECONDS, KEEP_ALIVE_SECONDS, RETRY_MS, frames
from stratus.observe.watch import Watch

MINE, OTHER = UUID(int=1), UUID(int=2)


class Hand(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def monotonic(self) -> float:
        return self.at


class Access:
    """Whether the reader may go on."""

    def __init__(self) -> None:
        self.answer: bool | Exception = True
        self.asked = 0

    async def __call__(self) -> bool:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Reading:
    """A stream of MINE's events and what feeds it."""

    def __init__(self) -> None:
        self.clock = Hand()
        self.access = Access()
        self.watch = Watch("s1", 0, clock=self.clock, wanted=lambda _: None, gone=lambda _: None)
        self._stream: AsyncGenerator[bytes, None] = frames(
            self.watch, Scope(0, frozenset({MINE})), self.access, self.clock, Chance(1)
        )
        self._seq = 0

    def happen(self, run: UUID, kind: str = "text.delta") -> StoredEvent:
        self._seq += 1
        event = StoredEvent("s1", self._seq, run, 1, kind, "{}", datetime(2030, 1, 1, tzinfo=UTC))
        self.watch.offer([event])
        return event

    async def piece(self) -> bytes:
        async with asyncio.timeout(2):
            return await anext(self._stream)


@pytest.fixture
async def reading() -> Reading:
    opened = Reading()
    assert await opened.piece() == sse.retry(RETRY_MS)
    return opened


async def test_it_is_kept_alive_while_only_another_run_is_busy(reading: Reading) -> None:
    for _ in range(3):
        reading.clock.at += KEEP_ALIVE_SECONDS
        reading.happen(OTHER)
        assert await reading.piece() == sse.KEEP_ALIVE


async def test_events_that_came_together_are_one_piece(reading: Reading) -> None:
    events = [reading.happen(MINE), reading.happen(OTHER), reading.happen(MINE)]
    assert await reading.piece() == sse.encode(events[0]) + sse.encode(events[2])


async def test_it_ends_with_its_run_s_terminal_event(reading: Reading) -> None:
    reading.happen(OTHER, "run.completed")
    last = reading.happen(MINE, "run.failed")
    reading.happen(MINE, "delivery.sent")
    assert await reading.piece() == sse.encode(last)
    with pytest.raises(StopAsyncIteration):
        await reading.piece()


async def test_it_says_so_when_it_ends_before_its_run(reading: Reading) -> None:
    event = reading.happen(MINE)
    reading.watch.close()
    assert await reading.piece() == sse.encode(event)
    assert (await reading.piece()).startswith(b"retry: ")
    with pytest.raises(StopAsyncIteration):
        await reading.piece()


async def test_access_is_asked_again_and_an_outage_withdraws_nothing(reading: Reading) -> None:
    for answer in (True, True, DatabaseAway("gone")):
        reading.access.answer = answer
        reading.clock.at += ALLOWED_SECONDS
        event = reading.happen(MINE)
        assert await reading.piece() == sse.encode(event)
    reading.access.answer = False
    reading.clock.at += ALLOWED_SECONDS
    reading.happen(MINE)
    assert (await reading.piece()).startswith(b"retry: ")
    assert reading.access.asked == 3
