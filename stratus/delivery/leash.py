"""Work of an adapter that must end when we say so: one that ignores its cancellation is not resumed again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any


class Leash:
    """Runs a coroutine in a task of its own, and can let go of it for good. What it has spawned by itself is beyond reach."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._cut = False

    async def run(self) -> None:
        """The coroutine, to be made a task."""
        await self

    async def end(self, task: asyncio.Task[None], seconds: float) -> bool:
        """Cancel `task`, which runs this, and wait for its end; after `seconds` let go of the work. Whether it ended by itself."""
        task.cancel()
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return True
        self._cut = True
        task.cancel()
        await asyncio.wait([task])
        return False

    def __await__(self) -> Generator[Any, None, None]:
        step = partial(self._work.send, None)
        while True:
            try:
                waits_for = step()
            except StopIteration:
                return
            try:
                yield waits_for
            except BaseException as error:
                if self._cut:
                    with contextlib.suppress(BaseException):
                        self._work.close()
                    raise
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, None)
