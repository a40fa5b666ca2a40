"""Batches that form by themselves: what queues up while one flush runs goes into the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Hands items of many callers to one `flush`, which answers in the same order.

    When a flush of several raises what `whole` does not name, each item is flushed alone, so that a bad one fails only its own caller; an error
    in `whole` (the database is away) is everybody's.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        limit: int = 200,
        whole: tuple[type[Exception], ...] = (),
    ) -> None:
        self._flush = flush
        self._limit = limit
        self._whole = whole
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._due = asyncio.Event()

    async def submit(self, item: T) -> R:
        """Wait for the flush that takes `item`. A caller that is cancelled does not take its item back."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._due.set()
        return await future

    async def run(self) -> None:
        """Flush until cancelled; whoever still waits then is cancelled too."""
        try:
            while True:
                await self._due.wait()
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                if not self._waiting:
                    self._due.clear()
                await self._serve(batch)
        finally:
            for _, future in self._waiting:
                future.cancel()

    async def _serve(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._flush([item for item, _ in batch])
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, self._whole):
                for one in batch:
                    await self._serve([one])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
