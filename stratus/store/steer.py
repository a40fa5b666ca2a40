"""Steering: messages that the running turn takes up between two model requests, instead of leaving each to a turn of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratus.domain.errors import LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.run import RUN, TERMINAL_EVENT, RunEvent, RunState
from stratus.domain.values import Message, RunInput
from stratus.store.database import Connection, Database, Resolved
from stratus.store.execution import ExecutionLease
from stratus.store.log import LOCK_SESSIONS, LogWrite, write_log

_FENCE = """
SELECT x.cancel_requested, r.public_id FROM session_execution x JOIN agent_run r ON r.id = x.run_id
 WHERE x.session_id = $1 AND x.token = $2 AND x.holder = $3 AND x.run_seq = $4 AND x.lease_until > clock_timestamp()
   FOR UPDATE OF x
"""

# A message from elsewhere keeps its place in the queue: this turn's answer does not go to where it was asked.
_WAITS = """
SELECT q.id FROM agent_run q JOIN agent_run t ON t.id = $2
 WHERE q.session_id = $1 AND q.state = 'queued' AND q.busy = 'steer'
   AND (q.reply_to IS NULL OR (q.reply_to -> 'channel_id' = t.reply_to -> 'channel_id' AND q.reply_to -> 'chat' = t.reply_to -> 'chat'
                               AND coalesce(q.reply_to ->> 'thread', '') = coalesce(t.reply_to ->> 'thread', '')))
"""

_LOCK_STEERING = _WAITS + " ORDER BY q.id FOR NO KEY UPDATE OF q"

_ANY_WAITS = f"SELECT EXISTS ({_WAITS})"

_MERGE = """
UPDATE agent_run r SET state = 'merged', merged_into = $2, runnable_at = NULL, finished_at = clock_timestamp()
 WHERE r.id = ANY($1) AND r.state = ANY($3)
RETURNING r.id, r.public_id, r.turn, r.claims, r.input,
          (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq
"""

_COUNT = "UPDATE session_execution SET run_seq = run_seq + $2, progress_at = clock_timestamp() WHERE session_id = $1"

_RUN_SEQ = "SELECT run_seq FROM session_execution WHERE session_id = $1 AND token = $2 AND holder = $3 FOR UPDATE"


@dataclass(frozen=True)
class _Taken:
    """A steering message with the run that brought it."""

    message: Message
    text: str
    run: str
    write: LogWrite


async def waiting_to_steer(db: Database, lease: ExecutionLease) -> bool:
    """Whether `take_up` would find a message. One read of a partial index that holds queued steering runs only."""
    return bool(await db.read(lambda c: c.fetchval(_ANY_WAITS, lease.session_id, lease.run_id)))


async def take_up(db: Database, lease: ExecutionLease, run_seq: int, attempt: int) -> list[Message]:
    """Merge the session's steering runs into the turn that holds `lease`, in one transaction; returns their messages, in order.

    Each message is one more event of the turn's run, so `run_seq` goes on by as many. None is taken by a turn that is asked to end: then they
    come after it. Raises LeaseLost, with nothing written.
    """
    taken: list[Message] = []

    async def work(connection: Connection) -> list[Message]:
        taken[:] = await _merge(connection, lease, run_seq, attempt)
        return list(taken)

    async def resolve(connection: Connection) -> Resolved[list[Message]] | None:
        at = await connection.fetchval(_RUN_SEQ, lease.session_id, lease.token, lease.holder)
        if at is None:
            raise LeaseLost(f"run {lease.run_id} is another's")
        return Resolved(list(taken)) if taken and at == run_seq + len(taken) else None

    return await db.transact(work, resolve=resolve)


async def _merge(connection: Connection, lease: ExecutionLease, run_seq: int, attempt: int) -> list[Message]:
    held = await connection.fetchrow(_FENCE, lease.session_id, lease.token, lease.holder, run_seq)
    if held is None:
        raise LeaseLost(f"run {lease.run_id} is another's")
    if held["cancel_requested"]:
        return []
    await connection.fetch(LOCK_SESSIONS, [lease.session_id])
    found = await _move(connection, lease, into=str(held["public_id"]))
    if not found:
        return []
    await connection.execute(_COUNT, lease.session_id, len(found))
    asked = [NewEvent("message.user", {"text": one.text, "merged": one.run}) for one in found]
    messages = [one.message for one in found]
    turn = LogWrite(lease.session_id, lease.run_id, run_seq, attempt, asked, messages)
    await write_log(connection, [turn, *(one.write for one in found)])
    return messages


async def _move(connection: Connection, lease: ExecutionLease, *, into: str) -> Sequence[_Taken]:
    waiting = await connection.fetch(_LOCK_STEERING, lease.session_id, lease.run_id)
    if not waiting:
        return []
    ids = [row["id"] for row in waiting]
    rows = await connection.fetch(_MERGE, ids, lease.run_id, list(RUN.sources(RunEvent.MERGE)))
    end = NewEvent(TERMINAL_EVENT[RunState.MERGED], {"into": into})
    taken = []
    for row in sorted(rows, key=lambda row: row["turn"]):
        asked = RunInput.model_validate_json(row["input"])
        write = LogWrite(lease.session_id, row["id"], row["run_seq"], row["claims"], [end])
        taken.append(_Taken(asked.message(), asked.text, str(row["public_id"]), write))
    return taken
