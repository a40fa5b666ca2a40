"""What faults leave unknown: of a thousand sends amid each fault, those whose outcome nobody can tell, and those that the platform took twice."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.ground import stage
from bench.sends import OPEN, UNKNOWN, ops, planned, reached
from stratus.embedded import EmbeddedPostgres
from testbed.eventually import eventually
from testbed.replicas import Replica
from testbed.stage import Stage, process_in

_SAME_KEY_SECONDS = 120

# With the number of sends, of which a share may be answered wrongly.
Fault = Callable[[Stage, Replica, int], Awaitable[None]]


@dataclass(frozen=True)
class Left:
    """Per thousand sends: `unknown` at the end, and calls that took effect a second time."""

    unknown: float
    twice: float


async def fault_figures(server: EmbeddedPostgres, quick: bool) -> dict[str, float]:
    """The figures of this module by their names; without and with a platform that takes a key again."""
    count = 200 if quick else 1_000
    figures: dict[str, float] = {}
    for name, fault in FAULTS.items():
        for seconds, platform in ((0, ""), (_SAME_KEY_SECONDS, ", idempotent platform")):
            left = await left_by(server, fault, count, seconds)
            figures[f"unknown per thousand sends, {name}{platform}"] = left.unknown
            figures[f"taken twice per thousand sends, {name}{platform}"] = left.twice
    return figures


async def left_by(server: EmbeddedPostgres, fault: Fault, count: int, same_key: int) -> Left:
    """`count` ops over the lanes of one channel, two replicas (leases of 3 s), and the fault when a tenth has been taken."""
    async with stage(server, idempotent=same_key) as ground, ground.replicas(2) as replicas:
        ground.platform.same_key_seconds = float(same_key)
        owner = await ground.owner_among(replicas, timeout=30)
        await planned(ground, ops([ground.channel_id], count, "op"))
        await eventually(lambda: len(ground.platform.log) > count // 10, timeout=60, what="a tenth sent")
        await fault(ground, owner, count)
        await eventually(lambda: reached(ground, OPEN, 0), timeout=120, what="every op ended")
        unknown = int(await ground.value(UNKNOWN))
        return Left(unknown * 1_000 / count, _twice(ground) * 1_000 / count)


def _twice(ground: Stage) -> int:
    taken = collections.Counter(one["key"] for one in ground.platform.log)
    return sum(times - 1 for times in taken.values())


async def _kill(_ground: Stage, owner: Replica, _count: int) -> None:
    await owner.kill()


async def _pause(ground: Stage, owner: Replica, _count: int) -> None:
    owner.pause()
    pid = owner.pid
    await eventually(
        lambda: any(process_in(one["replica"]) != pid for one in ground.platform.log),
        timeout=60,
        what="another replica sends",
    )
    owner.resume()


def _cut(*, rst: bool) -> Fault:
    async def cut(_ground: Stage, owner: Replica, _count: int) -> None:
        await owner.cut_platform(rst=rst)
        await asyncio.sleep(1.0)
        await owner.heal()

    return cut


def _answer(answer: int | str, **options: float) -> Fault:
    async def answer_so(ground: Stage, _owner: Replica, count: int) -> None:
        ground.platform.controls.fault({}, answer, times=count // 100, **options)

    return answer_so


FAULTS: dict[str, Fault] = {
    "the owner is killed once": _kill,
    "the owner stands still past its lease once": _pause,
    "the platform's connections are reset for a second": _cut(rst=True),
    "the platform is silent for a second": _cut(rst=False),
    "1 % answered 500 untaken": _answer(500),
    "1 % taken, then the connection is reset": _answer("store_then_reset"),
    "1 % taken, then never answered": _answer("store_then_hang"),
    "1 % answered 429": _answer(429, retry_after=0.2),
}
