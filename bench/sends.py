"""Sends: how many a second in one channel and over 100, beside the plain HTTP client; and what a killed owner's takeover costs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.ground import stage
from bench.messages import PRODUCTION
from stratus.embedded import EmbeddedPostgres
from stratus.store.plan import NewOp, plan
from testbed.eventually import eventually
from testbed.replicas import ReplicaSet
from testbed.stage import Stage, process_in

LANES = 100
_AT_ONCE = 32
OPEN = "SELECT count(*) FROM channel_outbox WHERE state IN ('pending', 'sending')"
UNKNOWN = "SELECT count(*) FROM channel_outbox WHERE state = 'unknown'"
_OWNED = "SELECT count(*) FROM channel WHERE lease_until > clock_timestamp()"


@dataclass(frozen=True)
class Takeovers:
    """`seconds` from each kill to the first send by another replica, sorted; how many ops ended `unknown`."""

    seconds: Sequence[float]
    unknown: int


async def send_figures(server: EmbeddedPostgres, quick: bool) -> dict[str, float]:
    """The figures of this module by their names."""
    count, kills = (400, 2) if quick else (5_000, 10)
    figures: dict[str, float] = {}
    for channels in (1, 100):
        rate, plain = await sends_per_second(server, channels, count)
        figures[f"sends per second, {channels} channels, 1 replica"] = rate
        figures[f"reference: the plain HTTP client beside {channels} channels, sends per second"] = plain
        figures[f"ratio sends in {channels} channels : plain client"] = rate / plain
    taken = await takeovers(server, kills, 300)
    figures["owner killed amid 300 sends to first send by another, leases of 3 s, s p50"] = taken.seconds[kills // 2]
    figures["owner killed amid 300 sends to first send by another, leases of 3 s, s worst"] = taken.seconds[-1]
    figures["unknown ops per kill of the owner amid 300 sends"] = taken.unknown / kills
    return figures


async def sends_per_second(server: EmbeddedPostgres, channels: int, count: int) -> tuple[float, float]:
    """The rate of one replica that owns all the channels, and the plain client's in a process of its own, on the same platform."""
    async with stage(server) as ground:
        ids = [ground.channel_id]
        for n in range(1, channels):
            ids.append(await ground.add_channel(name=f"chan{n}", options={"bot": f"bot{n}", "wait": 10}))
        async with ground.replicas(1, settings=PRODUCTION):
            await eventually(
                lambda: reached(ground, _OWNED, channels),
                timeout=120,
                what="all channels owned",
            )
            await _sent(ground, ops(ids, channels, "warm"))
            started = time.perf_counter()
            await _sent(ground, ops(ids, count, "op"))
            rate = count / (time.perf_counter() - started)
        return rate, await _plain(ground, count)


async def takeovers(server: EmbeddedPostgres, kills: int, count: int) -> Takeovers:
    """Kill the owner in the midst of `count` sends, `kills` times; leases of the testbed (3 s), two replicas."""
    async with stage(server) as ground, ground.replicas(2) as replicas:
        taken = [await _takeover(ground, replicas, f"kill{n}", count) for n in range(kills)]
        return Takeovers(sorted(taken), int(await ground.value(UNKNOWN)))


async def _takeover(ground: Stage, replicas: ReplicaSet, name: str, count: int) -> float:
    victim = await ground.owner_among(replicas, timeout=30)
    before, pid = len(ground.platform.log), victim.pid
    await planned(ground, ops([ground.channel_id], count, name))
    await eventually(
        lambda: len(ground.platform.log) > before + count // 10,
        timeout=60,
        what="a tenth sent",
    )
    await victim.kill()
    started, seen = time.perf_counter(), len(ground.platform.log)
    while all(process_in(one["replica"]) == pid for one in ground.platform.log[seen:]):
        await asyncio.sleep(0.002)
    seconds = time.perf_counter() - started
    await eventually(lambda: reached(ground, OPEN, 0), timeout=120, what="every op ended")
    victim.start()
    await victim.wait_ready()
    return seconds


def ops(channels: Sequence[int], count: int, name: str) -> list[NewOp]:
    """`count` ops, spread over the channels and in each over the lanes."""
    made = []
    for n in range(count):
        chat = f"c{n // len(channels) % LANES}"
        made.append(
            NewOp(
                channels[n % len(channels)],
                chat,
                "send_text",
                {"chat": chat},
                {"text": "x"},
                f"{name}-{n}",
            )
        )
    return made


async def planned(ground: Stage, made: Sequence[NewOp]) -> None:
    """Plan these, some hundred a transaction."""
    for begin in range(0, len(made), 500):
        batch = made[begin : begin + 500]
        await ground.db.transact(lambda c, batch=batch: plan(c, batch))  # type: ignore[misc]


async def _sent(ground: Stage, made: Sequence[NewOp]) -> None:
    before = len(ground.platform.log)
    await planned(ground, made)
    await eventually(
        lambda: len(ground.platform.log) >= before + len(made),
        timeout=300,
        what="all sent",
    )


async def reached(ground: Stage, sql: str, count: int) -> bool:
    """Whether the statement counts so many."""
    return bool(await ground.value(sql) == count)


async def _plain(ground: Stage, count: int) -> float:
    arguments = ["-m", "bench.plain", ground.platform_url, str(count), str(_AT_ONCE)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return float(said)
