"""A claim while one session holds ten thousand queued messages, beside the same claim without them."""

from __future__ import annotations

import statistics
import time

from bench.ground import opened
from stratus.domain.values import Actor, RunInput
from stratus.embedded import EmbeddedPostgres
from stratus.store.database import Database
from stratus.store.run import claim
from stratus.store.session import NewRun, enqueue

FLOOD = 10_000
_BATCH = 1_000


async def flooded(server: EmbeddedPostgres, claims: int) -> tuple[float, float]:
    """Median milliseconds of claiming one run of a quiet session: (with the flood, without it), in one database."""
    async with opened(server) as db:
        await _queue(db, ["flood"])
        assert len(await claim(db, "bench", 1, 600.0)) == 1
        without = await _claims(db, "before", claims)
        for _ in range(FLOOD // _BATCH):
            await _queue(db, ["flood"] * _BATCH)
        return await _claims(db, "after", claims), without


async def _claims(db: Database, name: str, count: int) -> float:
    await _queue(db, [f"{name}{n}" for n in range(count)])
    await db.read(lambda c: c.execute("ANALYZE agent_run"))
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        assert len(await claim(db, "bench", 1, 600.0)) == 1
        taken.append(1_000 * (time.perf_counter() - started))
    return statistics.median(taken)


async def _queue(db: Database, sessions: list[str]) -> None:
    actor = Actor(principal="bench")
    runs = [NewRun(name, "demo", None, None, actor, RunInput.of("x")) for name in sessions]
    await db.transact(lambda c: enqueue(c, runs))
