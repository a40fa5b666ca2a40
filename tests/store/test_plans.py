"""The hot statements keep their plans on a grown database: the right index, and few rows touched."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from stratus.store import (
    database,
    decision,
    draft,
    event,
    execution,
    inbox,
    intent,
    lane,
    log,
    message,
    occurrence,
    outbox,
    preview,
    prompts,
    run,
    tool_call,
    view,
    waiting,
)
from stratus.store.rate import UNLIMITED

SEED = """
INSERT INTO agent (id) VALUES ('demo');
INSERT INTO channel (platform, name, agent_id) SELECT 'testchan', 'c' || n, 'demo' FROM generate_series(1, 20) n;
INSERT INTO session (id, agent_id, event_seq, message_seq) SELECT 's' || n, 'demo', 20, 20 FROM generate_series(1, 2000) n;
INSERT INTO agent_run (session_id, turn, agent_id, kind, state, finished_at)
SELECT 's' || (1 + n % 2000), 1 + n / 2000, 'demo', 'message', 'completed', clock_timestamp() FROM generate_series(0, 19999) n;
INSERT INTO agent_run (session_id, turn, agent_id, kind, state, runnable_at)
SELECT 's' || n, 100, 'demo', 'message', 'queued', clock_timestamp() FROM generate_series(1, 500) n;
INSERT INTO agent_run (session_id, turn, agent_id, kind, state)
SELECT 's1', 200 + n, 'demo', 'message', 'queued' FROM generate_series(1, 5000) n;
INSERT INTO session_event (session_id, seq, kind) SELECT 's' || n, m, 'usage' FROM generate_series(1, 2000) n, generate_series(1, 20) m;
INSERT INTO channel_inbox (channel_id, event_key, kind, chat_key, state, routed_at)
SELECT 1 + n % 20, n, 'message', 'c' || n % 100, 'routed', clock_timestamp() FROM generate_series(1, 20000) n;
INSERT INTO channel_inbox (channel_id, event_key, kind, chat_key, state)
SELECT 1, 'r' || n, 'message', 'c' || n % 100, 'ready' FROM generate_series(1, 2000) n;
INSERT INTO channel_outbox (channel_id, lane, lane_seq, kind, delivery_key, state, settled_at)
SELECT 1, 'l' || n % 100, n, 'notify', n, 'sent', clock_timestamp() FROM generate_series(1, 20000) n;
INSERT INTO channel_outbox (channel_id, lane, lane_seq, kind, delivery_key, state)
SELECT 1, 'l' || n % 100, 100000 + n, 'notify', 'p' || n, 'pending' FROM generate_series(1, 500) n;
INSERT INTO outbox_attempt (op_id, attempt, token, runtime_token, holder, replica)
SELECT n, 1, gen_random_uuid(), 1, '00000000-0000-4000-8000-000000000000', 'r' FROM generate_series(1, 2000) n;
INSERT INTO principal (name, role) VALUES ('owner', 'owner');
INSERT INTO schedule (name, agent_id, session_id, owner_id, cron, time_zone, catch_up, next_at)
SELECT 'n' || n, 'demo', 's' || n, 1, '0 0 * * *', 'UTC', 'one',
       stratus_now() + CASE WHEN n <= 40 THEN -interval '1 s' ELSE interval '1 day' END FROM generate_series(1, 2000) n;
INSERT INTO schedule_occurrence (schedule_id, due_at, state, run_id)
SELECT 1 + r.id % 2000, stratus_now() - make_interval(mins => r.id::int), 'run', r.id FROM agent_run r WHERE r.state = 'completed';
INSERT INTO message (session_id, position, run_id, role)
SELECT r.session_id, m, r.id, 'user' FROM agent_run r, generate_series(1, 20) m WHERE r.turn = 1;
INSERT INTO tool_call (run_id, call_id, step, ordinal, name, args, args_hash, effect, state)
SELECT id, 'c', 1, 1, 't', '{}', '', 'read', 'proposed' FROM agent_run WHERE turn < 5;
INSERT INTO session_execution (session_id, run_id, token, holder, worker_id)
SELECT session_id, id, 1, '00000000-0000-4000-8000-000000000000', 'w' FROM agent_run WHERE turn = 1;
INSERT INTO tool_call (run_id, call_id, step, ordinal, name, args, args_hash, effect, state)
SELECT r.id, 'a', 1, 2, 'x', '{}', sha256('{}'), 'once', 'awaiting' FROM agent_run r WHERE r.state = 'completed';
INSERT INTO approval (run_id, call_id, args_hash, state, approvers, expires_at, decided_at, prompt_op_id, offers)
SELECT r.id, 'a', sha256('{}'), CASE WHEN r.id <= 200 THEN 'pending' ELSE 'approved' END, '{}',
       stratus_now() + CASE WHEN r.id <= 20 THEN -interval '1 s' ELSE interval '1 day' END,
       CASE WHEN r.id > 200 THEN stratus_now() END, r.id, 1
  FROM agent_run r WHERE r.state = 'completed';
INSERT INTO agent_run (session_id, turn, agent_id, kind, state, reply_to)
SELECT 's' || n, 99, 'demo', 'message', 'running', '{"channel_id": 1}' FROM generate_series(1991, 2000) n;
UPDATE channel SET runtime_holder = '00000000-0000-4000-8000-000000000000', lease_until = clock_timestamp() + interval '1 hour' WHERE id = 1;
"""
HOLDER = "00000000-0000-4000-8000-000000000000"

HOT: list[tuple[str, str, list[Any], dict[str, int]]] = [
    ("claim", run._LEASE, [10, "w", 30.0, []], {"agent_run": 200}),
    ("route: which channels", inbox._CHANNELS, [], {"channel_inbox": 60}),
    ("route: a batch", inbox._BATCH, [1, 50], {"channel_inbox": 100}),
    ("intend", intent._INTEND, [1, 0, HOLDER, "r", 32, *UNLIMITED.parameters()], {"channel_outbox": 1200}),
    ("drafts: stirring", outbox._STIRRING, [[1, 2]], {"agent_run": 20, "channel_outbox": 1200}),
    ("drafts: live", draft._LIVE, [[1, 2], [1], [1], ["text.delta"], 100], {"agent_run": 20, "session_event": 220}),
    (
        "drafts: standing",
        draft._STANDING,
        [[25501, 25502], [1, 1], [0, 0], [HOLDER] * 2],
        {"agent_run": 8, "channel_outbox": 12},
    ),
    ("drafts: clean", preview._CLEAN, [[20001], "preview_refused"], {"channel_outbox": 12, "outbox_attempt": 0}),
    ("drafts: unsettled", preview._UNSETTLED, [[1, 2]], {"channel_outbox": 12, "agent_run": 4}),
    (
        "append",
        execution._APPEND,
        [["s1"], [1], [HOLDER], [0], [1], [1], [1], [1], ["usage"], ["{}"]],
        {"session_event": 0},
    ),
    ("schedules: take", occurrence._TAKE, [20], {"schedule": 60}),
    (
        "schedules: facts",
        occurrence._FACTS,
        [list(range(2, 22))],
        {"schedule": 40, "agent_run": 60, "schedule_occurrence": 60},
    ),
    (
        "schedules: known",
        occurrence._KNOWN,
        [[2, 3], [datetime(2026, 1, 1, tzinfo=UTC)] * 2],
        {"schedule_occurrence": 4},
    ),
    ("schedules: how long", occurrence._SECONDS_LEFT, [], {"schedule": 60}),
    ("approvals: overdue", decision._OVERDUE, [100], {"approval": 60, "agent_run": 60}),
    ("approvals: lost prompts", prompts._LOST, [5, 60.0, 100], {"approval": 250, "channel_outbox": 250}),
    ("approvals: unheard prompts", prompts._UNHEARD, [5, 1, 100], {"approval": 250, "channel_outbox": 250}),
    ("approvals: standing prompts", prompts._STANDING, [[201, 202]], {"approval": 4, "channel_outbox": 8}),
    ("stuck lanes", lane._STUCK, [0.0], {"channel_outbox": 1200}),
    (
        "backlog",
        view._BACKLOG,
        [],
        {"channel_inbox": 2500, "agent_run": 6000, "channel_outbox": 1200, "approval": 250},
    ),
    ("waiting: ready", waiting._READY, [100], {"agent_run": 10}),
    ("tail", event._TAIL, [["s1", "s2"], [18, 19], 100], {"session_event": 10}),
]

# Under the policies of a turn; each row that is looked at costs a look at its session or run, by that one's key.
AS_A_TURN: list[tuple[str, str, list[Any], dict[str, int]]] = [
    ("history", message._HISTORY, [["s1"]], {"message": 40, "session": 40}),
    ("fence", execution._STEP_FENCE, ["s1", 1, HOLDER, 0, 3], {"session_execution": 2, "session": 4}),
    ("lock", execution._LOCK_SESSION, ["s1"], {"session": 2}),
    ("calls", tool_call._CALLS, [1], {"tool_call": 2, "agent_run": 2}),
    (
        "log",
        log._WRITE,
        [["s1"], [1], [0], [1], [1], [1], [1], [1], ["usage"], ["{}"], [1], [1], ["user"], ["[]"], ["[]"]],
        {"session": 6, "session_event": 0, "message": 0},
    ),
]


@pytest.fixture
async def grown(dsn: str) -> Any:
    connection = await asyncpg.connect(dsn)
    await connection.execute(SEED)
    await connection.execute("VACUUM ANALYZE")
    yield connection
    await connection.close()


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]


@pytest.mark.parametrize(("name", "sql", "args", "rows"), HOT, ids=[hot[0] for hot in HOT])
async def test_hot_statement(
    grown: asyncpg.Connection[asyncpg.Record], name: str, sql: str, args: list[Any], rows: dict[str, int]
) -> None:
    await keeps_its_plan(grown, name, sql, args, rows)


@pytest.mark.parametrize(("name", "sql", "args", "rows"), AS_A_TURN, ids=[one[0] for one in AS_A_TURN])
async def test_statement_of_a_turn(
    grown: asyncpg.Connection[asyncpg.Record], name: str, sql: str, args: list[Any], rows: dict[str, int]
) -> None:
    await keeps_its_plan(grown, name, sql, args, rows, agent="demo")


async def keeps_its_plan(
    grown: asyncpg.Connection[asyncpg.Record],
    name: str,
    sql: str,
    args: list[Any],
    rows: dict[str, int],
    *,
    agent: str | None = None,
) -> None:
    transaction = grown.transaction()
    await transaction.start()
    if agent is not None:
        await grown.execute(database._ENTER_TURN, agent)
    text = await grown.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *args)
    await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    shown = json.dumps(plan, indent=1)
    touched = [
        node for node in nodes(plan) if node.get("Relation Name") in rows and re.search(r"Scan", node["Node Type"])
    ]
    for node in touched:
        assert node["Node Type"] != "Seq Scan", f"{name} reads all of {node['Relation Name']}:\n{shown}"
        read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        assert read <= rows[node["Relation Name"]], f"{name} reads {read} rows of {node['Relation Name']}:\n{shown}"
