"""Waiting on a condition: the one way tests wait, so that none sleeps for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(check: Callable[[], Awaitable[T]], timeout: float = ..., what: str = ...) -> T: ...
@overload
async def eventually(check: Callable[[], T], timeout: float = ..., what: str = ...) -> T: ...
async def eventually(check: Callable[[], Any], timeout: float = 10, what: str = "") -> Any:
    """Calls `check` until it answers something truthy, and answers that. The way tests wait.

    Raises AssertionError with `what` and the last answer after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    pause = 0.01
    while True:
        answer = check()
        value = await answer if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what or 'the condition'} (last: {value!r})")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
