"""The event log: fenced batches for many sessions in one statement, beside plain inserts of the same rows."""

from __future__ import annotations

import time
from functools import partial

import asyncpg

from bench.ground import opened
from stratus.domain.event import NewEvent
from stratus.domain.values import Actor, RunInput
from stratus.embedded import EmbeddedPostgres
from stratus.store.database import Connection, Database
from stratus.store.execution import Append, append
from stratus.store.run import ClaimedRun, claim
from stratus.store.session import NewRun, enqueue

SESSIONS = 500
_PAYLOAD = {"part": 0, "text": "a few words of text "}
_BARE_TABLE = "CREATE TABLE bare (session_id text, seq bigint, payload jsonb, PRIMARY KEY (session_id, seq))"
_BARE_INSERT = "INSERT INTO bare SELECT * FROM unnest($1::text[], $2::bigint[], $3::jsonb[])"
_BARE_PAYLOAD = '{"part": 0, "text": "a few words of text "}'


async def appended(server: EmbeddedPostgres, rounds: int) -> tuple[float, float]:
    """Events per second: (one append statement for 500 fenced sessions, two events each; one multi-row insert without a fence)."""
    async with opened(server) as db:
        actor = Actor(principal="bench")
        runs = [NewRun(f"s{n}", "demo", None, None, actor, RunInput.of("x")) for n in range(SESSIONS)]
        await db.transact(lambda c: enqueue(c, runs))
        claimed: list[ClaimedRun] = []
        while taken := await claim(db, "bench", 100, 300.0):
            claimed += taken
        events = [NewEvent("text.delta", _PAYLOAD)] * 2
        started = time.perf_counter()
        for n in range(rounds):
            written = await append(db, [Append(one.lease, one.run_seq + 2 * n, 1, events) for one in claimed])
            assert all(written)
        fenced = rounds * len(claimed) * 2 / (time.perf_counter() - started)
        return fenced, await _bare(db, rounds, [one.lease.session_id for one in claimed])


async def _bare(db: Database, rounds: int, sessions: list[str]) -> float:
    owner = await asyncpg.connect(db.dsn)  # the store's role may make no tables
    await owner.execute(_BARE_TABLE)
    await owner.close()
    names, payloads = [name for name in sessions for _ in range(2)], [_BARE_PAYLOAD] * (2 * len(sessions))
    started = time.perf_counter()
    for n in range(rounds):
        numbers = [2 * n + m for _ in sessions for m in range(2)]
        await db.transact(partial(_insert, names, numbers, payloads), autocommit=True)
    return rounds * len(names) / (time.perf_counter() - started)


async def _insert(names: list[str], numbers: list[int], payloads: list[str], connection: Connection) -> None:
    await connection.execute(_BARE_INSERT, names, numbers, payloads)
