"""What must hold of a database, as SQL that returns the violations; some hold at every moment, some once everything has come to rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stratus.domain.run import TERMINAL_EVENTS
from stratus.store.database import Connection, Database

_TERMINAL = ", ".join(f"'{kind}'" for kind in sorted(TERMINAL_EVENTS))

ALWAYS: Mapping[str, str] = {
    "one running run a session": "SELECT session_id FROM agent_run WHERE state = 'running' GROUP BY 1 HAVING count(*) > 1",
    "a lease only for a running run": (
        "SELECT x.session_id FROM session_execution x JOIN agent_run r ON r.id = x.run_id WHERE r.state <> 'running'"
    ),
    "a run starts after all earlier ones of its session ended": (
        "SELECT b.id FROM agent_run a JOIN agent_run b ON a.session_id = b.session_id AND a.turn < b.turn "
        "WHERE b.started_at IS NOT NULL AND (a.finished_at IS NULL OR a.finished_at > b.started_at)"
    ),
    "only the head is runnable": (
        "SELECT b.id FROM agent_run a JOIN agent_run b ON a.session_id = b.session_id AND a.turn < b.turn "
        "WHERE b.runnable_at IS NOT NULL AND a.state IN ('queued', 'running', 'waiting')"
    ),
    "turns are contiguous": "SELECT session_id FROM agent_run GROUP BY 1 HAVING count(*) <> max(turn) OR min(turn) <> 1",
    "events are contiguous and match the counter": (
        "SELECT s.id FROM session s LEFT JOIN session_event e ON e.session_id = s.id GROUP BY s.id, s.event_seq, s.event_floor "
        "HAVING count(e.seq) <> s.event_seq - s.event_floor OR coalesce(max(e.seq), s.event_floor) <> s.event_seq"
    ),
    "a run's events are contiguous": (
        "SELECT run_id FROM session_event WHERE run_id IS NOT NULL GROUP BY 1 HAVING count(*) <> max(run_seq) OR min(run_seq) <> 1"
    ),
    "an ended run has one terminal event, its last": (
        "SELECT r.id FROM agent_run r JOIN session_event e ON e.run_id = r.id WHERE r.finished_at IS NOT NULL GROUP BY r.id "
        f"HAVING count(*) FILTER (WHERE e.kind IN ({_TERMINAL})) <> 1 OR max(e.run_seq) FILTER (WHERE e.kind IN ({_TERMINAL})) <> max(e.run_seq)"
    ),
    "history is contiguous": "SELECT session_id FROM message GROUP BY 1 HAVING count(*) <> max(position) OR min(position) <> 1",
    "turns do not interleave in history": (
        "SELECT session_id FROM message GROUP BY session_id, run_id HAVING max(position) - min(position) + 1 <> count(*)"
    ),
    "an inbox row makes one run": "SELECT inbox_id FROM agent_run WHERE inbox_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1",
    "a run asks its question once, and once that of each run it took up": (
        "SELECT m.run_id FROM message m WHERE m.role = 'user' GROUP BY 1 "
        "HAVING count(*) <> 1 + (SELECT count(*) FROM agent_run r WHERE r.merged_into = m.run_id)"
    ),
    "a run is merged into one of its session, which tells it once": (
        "SELECT r.id FROM agent_run r JOIN agent_run t ON t.id = r.merged_into WHERE t.session_id <> r.session_id "
        "OR t.started_at IS NULL OR r.started_at IS NOT NULL OR t.finished_at < r.finished_at OR 1 <> ("
        "SELECT count(*) FROM session_event e WHERE e.run_id = t.id AND e.kind = 'message.user' "
        "AND e.payload ->> 'merged' = r.public_id::text)"
    ),
    "unknown is never sent again by us": (
        "SELECT b.op_id FROM outbox_attempt a JOIN outbox_attempt b ON b.op_id = a.op_id AND b.attempt > a.attempt "
        "JOIN channel_outbox o ON o.id = a.op_id WHERE a.outcome = 'unknown' AND NOT coalesce(o.error, '{}') ? 'resolved_by'"
    ),
}

AT_REST: Mapping[str, str] = {
    "every event has an outcome": "SELECT id FROM channel_inbox WHERE state IN ('received', 'ready')",
    "every run has ended": "SELECT id FROM agent_run WHERE finished_at IS NULL",
    "no lease is left": "SELECT session_id FROM session_execution",
    "every op is settled": "SELECT id FROM channel_outbox WHERE state IN ('pending', 'sending')",
    "nobody is left without a word": (
        "SELECT r.id FROM agent_run r WHERE r.state IN ('completed', 'failed', 'interrupted') AND r.reply_to IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM channel_outbox o WHERE o.run_id = r.id AND o.kind <> 'draft_update')"
    ),
}


async def violations(db: Database, *, at_rest: bool) -> dict[str, list[Any]]:
    """Names of what does not hold, with the ids that show it."""
    found = {}
    for name, sql in {**ALWAYS, **(AT_REST if at_rest else {})}.items():
        rows = await db.read(partial(_fetch, sql))
        if rows:
            found[name] = [row[0] for row in rows[:10]]
    return found


async def _fetch(sql: str, connection: Connection) -> list[Any]:
    return list(await connection.fetch(sql))


def sends_out_of_order(log: Sequence[Mapping[str, Any]], lanes: Mapping[int, tuple[str, int]]) -> list[int]:
    """Ops that the platform accepted after a later one of their lane. `lanes` maps an op's id to (lane, lane_seq)."""
    last: dict[str, int] = {}
    late = []
    for entry in log:
        lane, number = lanes[int(entry["op"])]
        if number < last.get(lane, 0):
            late.append(int(entry["op"]))
        last[lane] = max(number, last.get(lane, 0))
    return late


def sent_twice(log: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ops that the platform accepted more than once."""
    ops = [int(entry["op"]) for entry in log]
    return sorted({op for op in ops if ops.count(op) > 1})
