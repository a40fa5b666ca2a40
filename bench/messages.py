"""Messages end to end: event on the HTTP test platform → inbox → run (demo model) → outbox → accepted send."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import asyncpg

from bench.ground import stage
from stratus.embedded import EmbeddedPostgres
from testbed.replicas import eventually
from testbed.stage import HTTP_ONLY, OWNER_OFF, WORKER_OFF, Stage

CHATS = 200
PRODUCTION = {
    "STRATUS_LEASE_TTL": "30s",
    "STRATUS_CHANNEL_TTL": "30s",
    "STRATUS_SWEEP": "5s",
    "STRATUS_POLL": "0.5s",
    "STRATUS_SEND_BUDGET": "20s",
    "STRATUS_SEND_GRACE": "8s",
}
SPREAD: Sequence[Mapping[str, str]] = (WORKER_OFF, OWNER_OFF, HTTP_ONLY)
# Transactions on the path of one message when each has a message to itself: intake, route, claim, finish, intent, guard, receipt.
PATH_COMMITS = 7


@dataclass(frozen=True)
class Throughput:
    """Messages per second, and transactions committed for each."""

    rate: float
    transactions: float


async def saturated(server: EmbeddedPostgres, replicas: int, count: int) -> Throughput:
    """`count` messages over 200 chats, offered at once; with three replicas the channel and the runs are on different ones."""
    async with stage(server) as ground:
        roles = SPREAD if replicas == 3 else ()
        async with ground.replicas(replicas, roles=roles, settings=PRODUCTION):
            await _warm(ground)
            before, commits = len(ground.platform.log), await _commits(ground)
            started = time.perf_counter()
            await asyncio.gather(*(ground.say("hi", chat=f"c{n % CHATS}") for n in range(count)))
            await eventually(lambda: len(ground.platform.log) >= before + count, timeout=300, what="all sent")
            seconds = time.perf_counter() - started
            await eventually(lambda: _all_sent(ground), timeout=30, what="all receipts stored")
            return Throughput(count / seconds, (await _commits(ground) - commits) / count)


async def latencies(server: EmbeddedPostgres, count: int, per_second: float) -> list[float]:
    """Milliseconds from the event to its accepted send, at a steady rate."""
    async with stage(server) as ground, ground.replicas(1, settings=PRODUCTION):
        await _warm(ground)
        taken = []
        for n in range(count):
            before = len(ground.platform.log)
            started = time.perf_counter()
            await ground.say("hi", chat=f"c{n % CHATS}")
            while len(ground.platform.log) == before:
                await asyncio.sleep(0.0005)
            taken.append((time.perf_counter() - started) * 1000)
            await asyncio.sleep(max(0.0, 1 / per_second - (time.perf_counter() - started)))
        return sorted(taken)


async def path_commits(server: EmbeddedPostgres, count: int) -> float:
    """The reference: milliseconds of the path's commits alone, one row each, from one connection."""
    await server.ensure_database("reference")
    connection = await asyncpg.connect(server.dsn("reference"))
    await connection.execute("CREATE TABLE IF NOT EXISTS row (id bigint GENERATED ALWAYS AS IDENTITY, body text)")
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        for _ in range(PATH_COMMITS):
            await connection.execute("INSERT INTO row (body) VALUES ($1)", "x" * 200)
        taken.append((time.perf_counter() - started) * 1000)
    await connection.close()
    return statistics.median(taken)


async def _warm(ground: Stage) -> None:
    """The first messages pay for imports and plans."""
    before = len(ground.platform.log)
    await asyncio.gather(*(ground.say("warm", chat=f"c{n % CHATS}") for n in range(CHATS)))
    await eventually(lambda: len(ground.platform.log) >= before + CHATS, timeout=60, what="warm")


async def _all_sent(ground: Stage) -> bool:
    return bool(await ground.value("SELECT count(*) = 0 FROM channel_outbox WHERE state IN ('pending', 'sending')"))


async def _commits(ground: Stage) -> int:
    return int(await ground.value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"))
