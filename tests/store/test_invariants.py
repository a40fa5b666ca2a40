"""Each invariant fires on its own seeded violation and is silent on a clean history."""

from __future__ import annotations

import pytest

from stratus.store.database import Database
from stratus.store.plan import NewOp
from stratus.store.run import finish
from testbed.invariants import ALWAYS, AT_REST, sends_out_of_order, sent_twice, violations
from tests.store.world import as_owner, completion, make_channel, new_run, queue, running

# Constraints and triggers would refuse most of these, so they go first.
LOOSEN = """
ALTER TABLE agent_run DISABLE TRIGGER ALL;
DROP INDEX agent_run_running;
ALTER TABLE agent_run DROP CONSTRAINT agent_run_inbox_id_key;
ALTER TABLE channel_outbox DISABLE TRIGGER ALL;
"""
SEEDS = {
    "one running run a session": "UPDATE agent_run SET state = 'running', finished_at = NULL WHERE session_id = 's1'",
    "a lease only for a running run": (
        "INSERT INTO session_execution (session_id, run_id, holder, worker_id) "
        "SELECT session_id, id, gen_random_uuid(), 'w' FROM agent_run WHERE session_id = 's2'"
    ),
    "a run starts after all earlier ones of its session ended": (
        "UPDATE agent_run SET started_at = enqueued_at - interval '1 hour' WHERE session_id = 's1' AND turn = 2"
    ),
    "only the head is runnable": (
        "UPDATE agent_run SET state = 'queued', finished_at = NULL, runnable_at = clock_timestamp() WHERE session_id = 's1'"
    ),
    "turns are contiguous": "UPDATE agent_run SET turn = 9 WHERE session_id = 's1' AND turn = 2",
    "events are contiguous and match the counter": "UPDATE session SET event_seq = event_seq + 1 WHERE id = 's1'",
    "a run's events are contiguous": "UPDATE session_event SET run_seq = 99 WHERE session_id = 's1' AND run_seq = 2",
    "an ended run has one terminal event, its last": "UPDATE session_event SET kind = 'usage' WHERE kind = 'run.completed'",
    "history is contiguous": "UPDATE message SET position = 99 WHERE session_id = 's1' AND position = 1",
    "turns do not interleave in history": "UPDATE message SET run_id = (SELECT min(run_id) FROM message) WHERE session_id = 's1' AND position = 4",
    "an inbox row makes one run": "UPDATE agent_run SET inbox_id = 1",
    "a run asks its question once, and once that of each run it took up": "UPDATE message SET role = 'user'",
    "a run is merged into one of its session, which tells it once": (
        "UPDATE agent_run SET state = 'merged', merged_into = (SELECT min(id) FROM agent_run WHERE session_id = 's1') "
        "WHERE session_id = 's1' AND turn = 2"
    ),
    "unknown is never sent again by us": (
        "INSERT INTO outbox_attempt (op_id, attempt, token, runtime_token, holder, replica, outcome, ended_at) "
        "SELECT id, n, gen_random_uuid(), 1, gen_random_uuid(), 'r', 'unknown', clock_timestamp() "
        "FROM channel_outbox, generate_series(1, 2) n"
    ),
    "every event has an outcome": (
        "INSERT INTO channel_inbox (channel_id, event_key, kind, chat_key, state) SELECT id, 'x', 'message', 'c', 'ready' FROM channel"
    ),
    "every run has ended": "UPDATE agent_run SET state = 'queued', finished_at = NULL WHERE session_id = 's2'",
    "no lease is left": (
        "INSERT INTO session_execution (session_id, run_id, holder, worker_id) "
        "SELECT session_id, id, gen_random_uuid(), 'w' FROM agent_run WHERE session_id = 's2'"
    ),
    "every op is settled": "UPDATE channel_outbox SET state = 'pending', settled_at = NULL",
    "nobody is left without a word": "DELETE FROM channel_outbox",
}


@pytest.fixture
async def clean(db: Database) -> Database:
    """Two sessions, three runs, one answer sent."""
    channel = await make_channel(db)
    for session in ("s1", "s1", "s2"):
        claimed = await running(db, session, channel_id=channel)
        key = f"k{claimed.lease.run_id}"
        op = NewOp(channel, "c1", "send_reply", {"chat": "c1"}, {"text": "1"}, key, claimed.lease.run_id)
        assert await finish(db, [completion(claimed, ops=[op])]) == [True]
    await db.transact(
        lambda c: c.execute("UPDATE channel_outbox SET state = 'sending', attempt_token = gen_random_uuid()")
    )
    settle = "UPDATE channel_outbox SET state = 'sent', attempt_token = NULL, settled_at = clock_timestamp()"
    await db.transact(lambda c: c.execute(settle))
    return db


async def test_a_clean_history_has_no_violation(clean: Database) -> None:
    assert await violations(clean, at_rest=True) == {}


def test_every_invariant_has_a_seed() -> None:
    assert set(SEEDS) == {*ALWAYS, *AT_REST}


@pytest.mark.parametrize("name", SEEDS)
async def test_the_seeded_violation_is_found(clean: Database, name: str) -> None:
    await as_owner(clean.dsn, LOOSEN)
    await clean.transact(lambda c: c.execute(SEEDS[name]))
    assert name in await violations(clean, at_rest=True)


async def test_what_is_open_is_no_violation_before_rest(clean: Database) -> None:
    await queue(clean, new_run("s3"))
    assert await violations(clean, at_rest=False) == {}
    assert "every run has ended" in await violations(clean, at_rest=True)


def test_order_and_doubles_are_seen_in_the_platforms_log() -> None:
    lanes = {1: ("a", 1), 2: ("a", 2), 3: ("b", 1)}
    assert sends_out_of_order([{"op": 1}, {"op": 3}, {"op": 2}], lanes) == []
    assert sends_out_of_order([{"op": 2}, {"op": 3}, {"op": 1}], lanes) == [1]
    assert sent_twice([{"op": 1}, {"op": 2}, {"op": 1}]) == [1]
