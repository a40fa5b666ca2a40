"""Persists the repair of a history: the messages from the first fault on are written anew, in place, under the lease's fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stratus.domain.errors import LeaseLost
from stratus.domain.history import repaired_by_run
from stratus.domain.values import PARTS, Message
from stratus.store.database import Connection, Database
from stratus.store.execution import ExecutionLease
from stratus.store.log import LOCK_SESSIONS, call_ids, encode

_FENCE = """
SELECT run_id FROM session_execution
 WHERE session_id = $1 AND token = $2 AND holder = $3 AND lease_until > clock_timestamp()
   FOR UPDATE
"""

_READ = "SELECT position, run_id, role, parts, created_at FROM message WHERE session_id = $1 ORDER BY position"

_CUT = "DELETE FROM message WHERE session_id = $1 AND position > $2"

_WRITE = """
INSERT INTO message (session_id, position, run_id, role, parts, tool_calls, created_at)
SELECT $1, m.position, m.run_id, m.role, m.parts, ARRAY(SELECT jsonb_array_elements_text(m.calls)), coalesce(m.created_at, clock_timestamp())
  FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::jsonb[], $6::jsonb[], $7::timestamptz[])
       AS m(position, run_id, role, parts, calls, created_at)
"""

_COUNT = "UPDATE session SET message_seq = $2 WHERE id = $1"

Row = Mapping[str, Any]


async def repair(db: Database, lease: ExecutionLease, *, working: bool) -> list[tuple[int, Message]]:
    """Repair the session's history (domain/history.py) and return it, each message with its run. Raises LeaseLost.

    A repeat finds nothing left to repair. `working` as in `repaired_by_run`.
    """

    async def work(connection: Connection) -> list[tuple[int, Message]]:
        if await connection.fetchval(_FENCE, lease.session_id, lease.token, lease.holder) is None:
            raise LeaseLost(f"run {lease.run_id} is another's")
        await connection.fetch(LOCK_SESSIONS, [lease.session_id])
        rows = await connection.fetch(_READ, lease.session_id)
        told = [(row["run_id"], Message(role=row["role"], parts=PARTS.validate_json(row["parts"]))) for row in rows]
        good = repaired_by_run(told, working=working)
        if good != told:
            await _rewrite(connection, lease.session_id, rows, told, good)
        return good

    return await db.transact(work, idempotent=True, agent=lease.agent_id)


async def _rewrite(
    connection: Connection,
    session_id: str,
    rows: Sequence[Row],
    told: Sequence[tuple[int, Message]],
    good: Sequence[tuple[int, Message]],
) -> None:
    kept = next(
        (n for n, (old, new) in enumerate(zip(told, good, strict=False)) if old != new), min(len(told), len(good))
    )
    written = {id(message): row["created_at"] for (_, message), row in zip(told, rows, strict=True)}
    new = good[kept:]
    await connection.execute(_CUT, session_id, kept)
    await connection.execute(
        _WRITE,
        session_id,
        list(range(kept + 1, len(good) + 1)),
        [run_id for run_id, _ in new],
        [message.role for _, message in new],
        [encode(PARTS.dump_python(list(message.parts), mode="json")) for _, message in new],
        [encode(call_ids(message)) for _, message in new],
        [written.get(id(message)) for _, message in new],
    )
    await connection.execute(_COUNT, session_id, len(good))
