"""What the conformance suite hands to adapters and how long it waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from stratus.channel.protocol import Adapter, Cursor
from stratus.channel.values import Event

PATIENCE_SECONDS = 10


class Delivered:
    """A `Deliver` that keeps what it was given; `fail` makes it raise instead of store."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.events: list[Event] = []
        self.cursor: Cursor | None = None
        self.batches = 0
        self._fail = fail
        self._changed = asyncio.Condition()

    async def __call__(self, events: Sequence[Event], cursor: Cursor | None) -> None:
        if self._fail is not None and events:
            raise self._fail
        async with self._changed:
            self.events.extend(events)
            self.cursor = cursor if cursor is not None else self.cursor
            self.batches += 1
            self._changed.notify_all()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, asked after each batch."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(done)


class CountedGuard:
    """A guard that counts; with `refusal` it raises that."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.asked = 0
        self._refusal = refusal

    async def __call__(self) -> None:
        self.asked += 1
        if self._refusal is not None:
            raise self._refusal


class Interrupted(Exception):
    """What the suite's own `Deliver` and `Guard` raise."""


@contextlib.asynccontextmanager
async def receiving(adapter: Adapter, deliver: Delivered, cursor: Cursor | None = None) -> AsyncIterator[None]:
    """`adapter.receive` runs while the block does, and must then end by its cancellation."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(adapter.receive(cursor, deliver))
        try:
            yield
        finally:
            task.cancel()
    assert task.cancelled()


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the platform's state is as `check` wants it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await check():  # noqa: ASYNC110 - the platform is another program and tells nobody
            await asyncio.sleep(0.01)  # noqa: TID251 - between two looks at it
