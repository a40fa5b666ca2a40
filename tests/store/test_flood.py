"""Ten thousand queued messages in one session cost nobody else anything, and that session only their places in the table."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from stratus.store import run, session, steer, stop, view
from stratus.store.database import Database
from stratus.store.run import claim, finish
from testbed.invariants import violations
from tests.store.test_plans import nodes
from tests.store.world import completion, new_run, queue, rows

FLOOD = 10_000
# Ordinary traffic around it, so that the planner has something to choose from.
GROW = """
INSERT INTO session (id, agent_id) SELECT 'old' || n, 'demo' FROM generate_series(1, 2000) n;
INSERT INTO agent_run (session_id, turn, agent_id, kind, state, finished_at, started_at)
SELECT 'old' || (1 + n % 2000), 1 + n / 2000, 'demo', 'message', 'completed', clock_timestamp(), clock_timestamp()
  FROM generate_series(0, 9999) n;
"""
POUR = """
WITH bump AS (
    UPDATE session SET run_seq = run_seq + $1, event_seq = event_seq + $1 WHERE id = 'flood'
    RETURNING run_seq - $1 AS base, event_seq - $1 AS seq
), made AS (
    INSERT INTO agent_run (session_id, turn, agent_id, kind, state, actor, input)
    SELECT 'flood', base + n, 'demo', 'message', 'queued', '{"principal": "1"}', '{"text": "more"}' FROM bump, generate_series(1, $1) n
    RETURNING id, turn)
INSERT INTO session_event (session_id, seq, run_id, run_seq, kind)
SELECT 'flood', bump.seq + made.turn - bump.base, made.id, 1, 'run.queued' FROM made, bump
"""
HOLDER = uuid4()


async def pour(db: Database, count: int) -> None:
    """A session with a running turn and so many messages behind it."""
    await queue(db, new_run("flood", "first"))
    await db.transact(lambda c: c.execute(GROW))
    assert len(await claim(db, "w", 10, 600.0)) == 1
    if count:
        await db.transact(lambda c: c.execute(POUR, count))
    await db.read(lambda c: c.execute("ANALYZE agent_run"))


async def read(db: Database, sql: str, *args: Any) -> tuple[int, str]:
    """How many rows of agent_run a statement reads, and its plan."""

    async def explain(connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record]) -> Any:
        transaction = connection.transaction()
        await transaction.start()
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *args)
        await transaction.rollback()
        return json.loads(text)[0]["Plan"]

    plan = await db.read(explain)
    scans = [one for one in nodes(plan) if one.get("Relation Name") == "agent_run" and "Scan" in one["Node Type"]]
    total = sum((one["Actual Rows"] + one.get("Rows Removed by Filter", 0)) * one["Actual Loops"] for one in scans)
    return int(total), json.dumps(plan, indent=1)


def enqueue_args(name: str) -> list[Any]:
    one = new_run(name)
    actor, given = one.actor.model_dump_json(), one.input.model_dump_json()
    empty: list[Any] = [None]
    asked = [[name], ["demo"], empty, ["message"], empty, empty, [actor], [given], empty, empty, empty]
    return [*asked, ["queue"], empty, empty, [0], empty]


@pytest.mark.parametrize("flood", [0, FLOOD])
async def test_what_others_pay_is_the_same_with_the_flood_and_without(db: Database, flood: int) -> None:
    await pour(db, flood)
    await queue(db, *(new_run(f"s{n}") for n in range(20)), new_run("other"))
    taken, plan = await read(db, run._LEASE, 10, "w", 30.0, [])
    assert taken <= 60, plan
    taken, plan = await read(db, session._ENQUEUE, *enqueue_args("other"))
    assert taken <= 10, plan


async def test_the_flooded_session_itself_finds_its_heads_by_the_index(db: Database) -> None:
    await pour(db, FLOOD)
    running = (await rows(db, "SELECT id FROM agent_run WHERE state = 'running'"))[0]["id"]
    end = [[running], ["flood"], ["completed"], [uuid4()], [None], [None], [0]]
    for sql, args in (
        (session._ENQUEUE, enqueue_args("flood")),
        (session._HEADS, [["flood"]]),
        (run._END, end),
        (steer._ANY_WAITS, ["flood", running]),
        (view._AHEAD, ["flood", FLOOD]),
        (stop._OPEN, [["flood"], ["me"], [None], [None], False]),
    ):
        taken, plan = await read(db, sql, *args)
        assert taken <= 10, f"{taken} rows:\n{sql}\n{plan}"


async def test_the_flood_drains_in_order_beside_the_others(db: Database) -> None:
    await pour(db, 50)
    await queue(db, new_run("quiet"))
    [quiet] = await claim(db, "w", 10, 60.0)
    assert quiet.lease.session_id == "quiet"
    assert await violations(db, at_rest=False) == {}
    assert await finish(db, [completion(quiet)]) == [True]
