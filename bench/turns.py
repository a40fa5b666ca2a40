"""Turns: how many a second with 1, 64 and 500 at once on one replica, what a step costs, and how soon a killed worker's turn goes on."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import asyncpg

from bench.ground import opened, stage
from bench.messages import PRODUCTION
from stratus.domain.event import NewEvent
from stratus.domain.tool_call import CallEvent
from stratus.domain.values import Actor, Message, RunInput, ToolCallPart
from stratus.embedded import EmbeddedPostgres
from stratus.store.database import Database
from stratus.store.execution import Step, commit_step
from stratus.store.run import claim
from stratus.store.session import NewRun, enqueue
from stratus.store.tool_call import CallMove, NewCall
from testbed.eventually import eventually
from testbed.stage import Stage

_ENDED = "SELECT count(*) FROM agent_run WHERE state = 'completed'"
_RESUMED = "SELECT count(*) FROM session_event WHERE kind = 'run.resumed'"
_STREAMING = "SELECT count(*) > 0 FROM session_event e JOIN agent_run r ON r.id = e.run_id WHERE r.state = 'running' AND e.kind = 'text.delta'"


@dataclass(frozen=True)
class StepCost:
    """What a tool call costs the turn: statements of its two step commits (intent, result), and their median time in milliseconds."""

    statements: float
    milliseconds: float


async def turns_per_second(server: EmbeddedPostgres, at_once: int, count: int) -> float:
    """Turns of the instant demo model, queued in `at_once` sessions, on one replica with a slot for each."""
    async with stage(server) as ground:
        each = max(1, count // at_once)
        actor = Actor(principal="bench")
        runs = [
            NewRun(f"s{n}", "demo", None, None, actor, RunInput.of("hi")) for _ in range(each) for n in range(at_once)
        ]
        slots = {"STRATUS_WORKERS": str(at_once), "STRATUS_MODEL_CONCURRENCY": str(at_once)}
        async with ground.replicas(1, settings={**PRODUCTION, **slots}) as [replica]:
            await _warm(ground, actor)
            started = time.perf_counter()
            for begin in range(0, len(runs), 500):
                batch = runs[begin : begin + 500]
                await ground.db.transact(lambda c, batch=batch: enqueue(c, batch))  # type: ignore[misc]
            total = len(runs) + 1
            await eventually(lambda: _reached(ground, total), timeout=300, what="all turns ended")
            assert replica.running()
            return len(runs) / (time.perf_counter() - started)


async def step_cost(server: EmbeddedPostgres, count: int) -> StepCost:
    """`count` tool calls of one turn, each an intent and a result."""
    async with opened(server) as shared:
        db = Database(shared.dsn, main_size=1, ingress_size=1)
        await db.open()
        try:
            return await _steps(db, count)
        finally:
            await db.close()


async def _steps(db: Database, count: int) -> StepCost:
    actor = Actor(principal="bench")
    await db.transact(lambda c: enqueue(c, [NewRun("s", "demo", None, None, actor, RunInput.of("x"))]))
    [claimed] = await claim(db, "bench", 1, 600.0)
    calls = [ToolCallPart(call_id=f"c{n}", name="t") for n in range(count)]
    proposed = [NewCall(call.call_id, call.name, call.args, "once") for call in calls]
    message = Message(role="assistant", parts=calls)
    seq = claimed.run_seq
    await commit_step(db, Step(claimed.lease, seq, 1, 1, messages=[message], proposed=proposed))
    sent: list[str] = []
    await db.read(lambda c: _listen(c, sent))
    taken = []
    for call in calls:
        started = time.perf_counter()
        for event in (CallEvent.START, CallEvent.SUCCEED):
            told = [NewEvent("tool.started" if event is CallEvent.START else "tool.done", {"call_id": call.call_id})]
            outcome = None if event is CallEvent.START else {"content": "1", "outcome": "ok"}
            moves = [CallMove(call.call_id, event, outcome)]
            await commit_step(db, Step(claimed.lease, seq, 1, 0, events=told, moves=moves))
            seq += 1
        taken.append(1_000 * (time.perf_counter() - started))
    return StepCost(len(sent) / count, statistics.median(taken))


async def _listen(connection: Any, sent: list[str]) -> None:
    connection.add_query_logger(lambda record: sent.append(record.query))


async def recoveries(server: EmbeddedPostgres, count: int) -> list[float]:
    """Seconds from the kill of the worker that executes a turn to the turn's first event on another; leases of the testbed (3 s)."""
    taken = []
    async with stage(server) as ground, ground.replicas(2) as replicas:
        actor = Actor(principal="bench")
        for n in range(count):
            run = NewRun(f"r{n}", "demo", None, None, actor, RunInput.of("slow 60 words to stream"))
            await ground.db.transact(lambda c, run=run: enqueue(c, [run]))  # type: ignore[misc]
            await eventually(lambda: ground.value(_STREAMING), timeout=30, what="the turn streams")
            name = await ground.value("SELECT worker_id FROM session_execution")
            victim = next(one for one in replicas if f":{one.pid}:" in name)
            before = await ground.value(_RESUMED)
            started = time.perf_counter()
            await victim.kill()
            while await ground.value(_RESUMED) == before:
                pass
            taken.append(time.perf_counter() - started)
            await ground.db.transact(lambda c: c.execute("UPDATE session_execution SET cancel_requested = true"))
            await eventually(lambda: _none_open(ground), timeout=30, what="the turn is canceled")
            victim.start()
            await victim.wait_ready()
    return sorted(taken)


async def round_trip(server: EmbeddedPostgres, count: int) -> float:
    """The reference of a step: median milliseconds of two transactions of one insert each."""
    await server.ensure_database("steps")
    connection = await asyncpg.connect(server.dsn("steps"))
    await connection.execute("CREATE TABLE IF NOT EXISTS row (id bigint GENERATED ALWAYS AS IDENTITY, body text)")
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        for _ in range(2):
            async with connection.transaction():
                await connection.execute("INSERT INTO row (body) VALUES ($1)", "x" * 200)
        taken.append(1_000 * (time.perf_counter() - started))
    await connection.close()
    return statistics.median(taken)


async def _warm(ground: Stage, actor: Actor) -> None:
    await ground.db.transact(lambda c: enqueue(c, [NewRun("warm", "demo", None, None, actor, RunInput.of("hi"))]))
    await eventually(lambda: _reached(ground, 1), timeout=60, what="warm")


async def _reached(ground: Stage, count: int) -> bool:
    return bool(await ground.value(_ENDED) >= count)


async def _none_open(ground: Stage) -> bool:
    return not await ground.value("SELECT count(*) FROM agent_run WHERE finished_at IS NULL")
