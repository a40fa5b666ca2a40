"""A campaign of random faults from one seed: traffic on the test platform while replicas are killed, paused and cut off, then what must hold.

`python -m testbed.chaos --seed 7 --minutes 2`; the last line says how to repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator

from stratus.store.database import Database
from testbed.invariants import sends_out_of_order, sent_twice, violations
from testbed.postgres import TestCluster
from testbed.replicas import ReplicaSet, eventually
from testbed.stage import Stage, stage_on

REPLICAS = 3
CHATS = 12
TTL_SECONDS = 3.0
MODES = ("kill", "pause", "cut", "reset", "platform", "drain")


class Campaign:
    """One run. `faults` and `said` count what was done."""

    def __init__(self, stage: Stage, replicas: ReplicaSet, seed: int) -> None:
        self._stage = stage
        self._replicas = replicas
        self._random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.said = 0

    async def run(self, seconds: float, *, faults: int = 1) -> list[str]:
        """Traffic and faults for `seconds`, and until there were so many faults; then heal and rest. Returns what does not hold."""
        async with asyncio.TaskGroup() as group:
            talking = group.create_task(self._talk())
            await self._break(time.monotonic() + seconds, faults)
            talking.cancel()
        for replica in self._replicas:
            replica.resume()
            await replica.heal()
            if not replica.running():
                replica.start()
        for replica in self._replicas:
            await replica.wait_ready(60)
        await eventually(self._at_rest, timeout=120, what="everything comes to rest")
        return await self._judge()

    async def summary(self) -> str:
        """What was done and what came of it, in one line."""
        runs = await self._stage.rows("SELECT state, count(*) AS n FROM agent_run GROUP BY 1")
        ops = await self._stage.rows("SELECT state, count(*) AS n FROM channel_outbox GROUP BY 1")
        ended, settled = ({row["state"]: row["n"] for row in found} for found in (runs, ops))
        return f"messages {self.said}, faults {dict(self.faults)}, runs {ended}, ops {settled}"

    async def _talk(self) -> None:
        while True:
            text = self._random.choice(["hi", "slow 1 there", "tool", "long 5000"])
            await self._stage.say(f"{text}", chat=f"c{self._random.randrange(CHATS)}")
            self.said += 1
            if self._random.random() < 0.1:  # the platform delivers an old one again
                await self._stage.platform.add_event(dict(self._random.choice(self._stage.platform.events)))
            await asyncio.sleep(self._random.uniform(0.05, 0.4))

    async def _break(self, until: float, faults: int) -> None:
        while time.monotonic() < until or self.faults.total() < faults:
            await asyncio.sleep(self._random.uniform(0.5, 2.5))
            await self._fault(self._random.choice(self._replicas.replicas).name, self._random.choice(MODES))

    async def _fault(self, name: str, mode: str) -> None:
        replica = next(one for one in self._replicas if one.name == name)
        self.faults[mode] += 1
        long = self._random.choice([0.5, 1.3, 2.5]) * TTL_SECONDS
        if mode == "kill":
            await replica.kill()
            replica.start()
        elif mode == "drain":
            await replica.drain()
            replica.start()
        elif mode == "pause":
            replica.pause()
            await asyncio.sleep(long)
            replica.resume()
        elif mode == "platform":
            await replica.cut_platform()
            await asyncio.sleep(long)
            await replica.heal()
        else:
            await replica.cut_database(rst=mode == "reset")
            await asyncio.sleep(long)
            await replica.heal()

    async def _at_rest(self) -> bool:
        stored = await self._stage.value("SELECT count(*) FROM channel_inbox")
        known = len({event["id"] for event in self._stage.platform.events})
        return stored == known and not await violations(self._stage.db, at_rest=True)

    async def _judge(self) -> list[str]:
        wrong = [f"{name}: {ids}" for name, ids in (await violations(self._stage.db, at_rest=True)).items()]
        log = self._stage.platform.log
        lanes = {
            row["id"]: (row["lane"], row["lane_seq"])
            for row in await self._stage.rows("SELECT id, lane, lane_seq FROM channel_outbox")
        }
        if twice := sent_twice(log):
            wrong.append(f"sent twice: {twice}")
        if late := sends_out_of_order(log, lanes):
            wrong.append(f"out of order: {late}")
        accepted = {int(entry["op"]) for entry in log}
        untrue = await self._stage.rows("SELECT id FROM channel_outbox WHERE state = 'sent'")
        if lies := [row["id"] for row in untrue if row["id"] not in accepted]:
            wrong.append(f"sent, says the outbox, but the platform has not got it: {lies}")
        return wrong


@contextlib.asynccontextmanager
async def campaign(dsn: str, seed: int) -> AsyncIterator[Campaign]:
    """A campaign on a migrated database, its replicas started."""
    db = Database(dsn)
    await db.open()
    try:
        async with stage_on(dsn, db) as stage:
            await stage.add_agent(tools=["current_time"])
            await stage.add_channel()
            async with stage.replicas(REPLICAS) as replicas:
                yield Campaign(stage, replicas, seed)
    finally:
        await db.close()


async def main(seed: int, minutes: float) -> int:
    """Run and report; 0 when everything holds."""
    async with TestCluster() as cluster, cluster.database() as dsn, campaign(dsn, seed) as one:
        wrong = await one.run(minutes * 60)
        summary = await one.summary()
    print(summary)
    for line in wrong:
        print(f"VIOLATED {line}")
    print(f"{'failed' if wrong else 'holds'}; repeat with: make chaos SEED={seed} MINUTES={minutes:g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m testbed.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--minutes", type=float, default=1.0)
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.seed, given.minutes)))
