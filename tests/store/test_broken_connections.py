"""What must run as long as the process does, outlives a connection that breaks in any way that asyncpg has for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import asyncpg
import pytest

from stratus.domain.errors import DatabaseAway
from stratus.store import hints as hints_module
from stratus.store import renewal as renewal_module
from stratus.store.database import Database, Timeouts
from stratus.store.database import connect as really_connect
from stratus.store.faults import Fault, classify, translate
from stratus.store.hints import Hints
from stratus.store.renewal import LeaseKeeper, Renewable
from testbed.eventually import eventually

BREAKS = [
    asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
    asyncpg.InterfaceError("connection is closed"),
    RuntimeError("unable to perform operation on a closed transport"),
]


class BrokenConnection:
    """Connects, and breaks at the first statement."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def add_listener(self, *_given: object) -> None:
        """Nothing comes."""

    async def fail(self, *_given: object) -> None:
        raise self.error

    execute = fetch = fail

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        """It is gone already."""


def breaking_once(error: Exception) -> Callable[[str, Timeouts, str], Awaitable[Any]]:
    """`connect` whose first connection is a broken one."""
    left = [BrokenConnection(error)]

    async def connect(dsn: str, timeouts: Timeouts, name: str) -> Any:
        return left.pop() if left else await really_connect(dsn, timeouts, name)

    return connect


@contextlib.asynccontextmanager
async def in_task(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
async def test_hints_go_on_after_a_break(db: Database, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    there = Hints(db.dsn, db.timeouts, "there")
    heard: list[str] = []
    there.on("runs", heard.append)
    async with in_task(there.run()):
        await eventually(lambda: there.connected, what="the other replica listens")
        monkeypatch.setattr(hints_module, "connect", breaking_once(error))
        here = Hints(db.dsn, db.timeouts, "here")
        async with in_task(here.run()) as running:
            here.send("runs", "lost")
            await eventually(lambda: not here.connected or running.done(), what="the break")
            heard.clear()

            def said() -> bool:
                here.send("runs", "again")
                return "again" in heard

            await eventually(said, what="a hint after the break")
            assert not running.done()


@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
async def test_leases_are_renewed_after_a_break(
    db: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    renewed: list[Sequence[Any]] = []

    async def renew(connection: Any, leases: Sequence[Any], _ttl: float) -> Sequence[Any]:
        await connection.fetch("SELECT 1")
        return leases

    monkeypatch.setattr(renewal_module, "connect", breaking_once(error))
    kind = Renewable("runs", 0.3, lambda: ["lease"], renew, lambda results, _sent_at: renewed.append(results))
    keeper = LeaseKeeper(db.dsn, db.timeouts, "test", [kind])
    keeper.start()

    def done() -> bool:
        keeper.pulse()
        return bool(renewed)

    await eventually(done, what="a renewal after the break")
    await keeper.stop()


def test_a_connection_found_broken_leaves_the_outcome_in_doubt() -> None:
    error = BREAKS[0]
    assert classify(error) is Fault.LOST
    assert isinstance(translate(error), DatabaseAway)
