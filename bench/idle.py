"""What a replica costs that has nothing to do: statements, processor and memory."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench.ground import stage
from bench.messages import PRODUCTION
from stratus.embedded import EmbeddedPostgres

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Idle:
    """Transactions per second, share of a core, resident megabytes."""

    transactions: float
    core: float
    megabytes: float


async def idle(server: EmbeddedPostgres, seconds: float) -> Idle:
    """One replica that owns a channel, after a warm-up, with nobody writing."""
    async with stage(server) as ground, ground.replicas(1, settings=PRODUCTION) as replicas:
        await ground.say("warm")
        await ground.answered(1)
        await asyncio.sleep(3.0)
        pid = replicas[0].pid
        count = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        before, cpu, started = await ground.value(count), _cpu(pid), time.perf_counter()
        await asyncio.sleep(seconds)
        # One of the transactions in between is the look itself.
        transactions = (await ground.value(count) - before - 1) / (time.perf_counter() - started)
        return Idle(transactions, (_cpu(pid) - cpu) / (time.perf_counter() - started), _resident(pid))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
