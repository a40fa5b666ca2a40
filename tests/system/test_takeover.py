"""A worker is killed at each boundary of each step of a long turn, and inside it: others carry on from the last committed step, on both wires."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from testbed.eventually import eventually
from testbed.ledger import Ledger
from testbed.postgres import TestCluster
from testbed.replicas import Replica, ReplicaSet
from testbed.stage import Stage, shared_stage
from tests.system.long_turn import check, outcome, prepare

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Every commit of the turn has a point before it, and one after it; numbers count the hits in one process.
POINTS = [
    *(f"claim.after_commit@{n}" for n in (1, 2, 3)),
    *(f"model.before_request@{n}" for n in (1, 2, 3, 5)),
    *(f"step.before_commit@{n}" for n in (1, 2, 3)),
    *(f"step.after_commit@{n}" for n in (1, 2, 3)),
    *(f"tool.before_intent@{n}" for n in (1, 2, 3, 4)),
    *(f"tool.after_start@{n}" for n in (1, 2, 3, 4)),
    *(f"tool.before_result@{n}" for n in (1, 2, 3, 4)),
    *(f"tool.after_result@{n}" for n in (1, 2, 3, 4, 5)),
    *(f"park.before_commit@{n}" for n in (1, 2)),
    *(f"park.after_commit@{n}" for n in (1, 2)),
    *(f"finish.before_commit@{n}" for n in (1, 2)),
    *(f"finish.after_commit@{n}" for n in (1, 2)),
]


# Turn by turn, so that each wire has its share of the deaths.
BOSSES = ("boss-chat", "boss-anthropic")


@dataclass
class Ground:
    """Two replicas that survive, and what belongs to them."""

    stage: Stage
    ledger: Ledger
    survivors: ReplicaSet
    turns: int = 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    folder: Path = tmp_path_factory.mktemp("ledger")
    ledger = Ledger(folder / "ledger")
    async with shared_stage(cluster) as stage:
        await prepare(stage)
        async with stage.replicas(2, settings=ledger.settings()) as survivors:
            yield Ground(stage, ledger, survivors)


async def begin(ground: Ground, replica: Replica) -> str:
    """Ask for the long turn; returns its run."""
    ground.turns += 1
    async with ground.stage.client(replica) as client:
        answer = await client.post(
            f"/sessions/{uuid4()}/messages",
            json={"agent": BOSSES[ground.turns % 2], "text": f"long turn {ground.turns}."},
            headers={"Idempotency-Key": uuid4().hex},
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run"])


async def approve_all(ground: Ground, *replicas: Replica) -> None:
    """Allow whatever is asked, through a replica that lives."""
    for replica in replicas:
        if replica.running():
            try:
                async with ground.stage.client(replica) as client:
                    for one in (await client.get("/approvals")).json():
                        await client.post(f"/approvals/{one['id']}", json={"decision": "approve"})
                return
            except httpx.HTTPError:
                continue


@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_killed_anywhere_is_followed_by_another(ground: Ground, point: str) -> None:
    name, _, nth = point.partition("@")
    settings = {**ground.ledger.settings(), "STRATUS_FAILPOINTS": f"{name}=kill*1@{nth}"}
    for survivor in ground.survivors:
        survivor.pause()
    try:
        async with ground.stage.replicas(1, settings=settings) as [victim]:
            run = await begin(ground, victim)

            async def killed() -> bool:
                await approve_all(ground, victim)
                return not victim.running()

            await eventually(killed, 20, f"the worker died at {point}")
            for survivor in ground.survivors:
                survivor.resume()

            async def ended() -> bool:
                await approve_all(ground, *ground.survivors)
                return (await outcome(ground.stage, run))["state"] not in ("queued", "running", "waiting")

            await eventually(ended, 30, "the turn ended")
    finally:
        for survivor in ground.survivors:
            survivor.resume()
    await check(ground.stage, ground.ledger, run)
