"""Prompts: the ops that ask about approvals. Asked again when they did not get through, closed when there is nothing left to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from stratus.domain.approval import MAX_OFFERS, ApprovalState, answered, buttons, code_of, question
from stratus.domain.chain import PlannedOp
from stratus.domain.outbox import OUTBOX, OpEvent, OpState
from stratus.store.approval import offered
from stratus.store.database import Connection, Database
from stratus.store.log import LOCK_SESSIONS
from stratus.store.plan import NewOp, plan

_AGAIN_SECONDS = 60.0

# Every offer of an approval went through the channel of its last one.
_STANDING = """
SELECT a.public_id, a.state AS approval, a.decided_by, a.note, c.name, c.args, o.id, o.state, o.channel_id, o.lane, o.address,
       o.account_key, o.delivery_key, o.run_id
  FROM approval a
  JOIN tool_call c ON c.run_id = a.run_id AND c.call_id = a.call_id
  JOIN channel_outbox last ON last.id = a.prompt_op_id
  JOIN channel_outbox o ON o.channel_id = last.channel_id AND o.delivery_key = ANY (ARRAY(
           SELECT 'approval:' || replace(a.public_id::text, '-', '') || ':' || n FROM generate_series(1, a.offers) n))
 WHERE a.id = ANY($1) AND a.state <> 'pending'
 ORDER BY o.id FOR NO KEY UPDATE OF o
"""

_CANCEL = """
UPDATE channel_outbox SET state = $2, settled_at = clock_timestamp(), error = jsonb_build_object('code', 'answered')
 WHERE id = ANY($1) AND state = 'pending'
"""

# The wait doubles with each offer: a platform that refuses now may take it later. Reads the pending approvals' own ops only.
_LOST = """
SELECT a.id, a.offers, r.session_id
  FROM approval a
 CROSS JOIN LATERAL (SELECT p.state, p.created_at, p.channel_id FROM channel_outbox p WHERE p.id = a.prompt_op_id OFFSET 0) o
  JOIN channel c ON c.id = o.channel_id AND c.deleted_at IS NULL
  JOIN agent_run r ON r.id = a.run_id
 WHERE a.state = 'pending' AND a.expires_at > stratus_now() AND a.offers < $1 AND o.state IN ('failed', 'unknown', 'canceled')
   AND o.created_at + make_interval(secs => $2 * 2 ^ (a.offers - 1)) <= stratus_now()
 ORDER BY a.id LIMIT $3
"""

# What is not sent yet will be, with no help.
_UNHEARD = """
SELECT a.id, a.offers, r.session_id
  FROM approval a
 CROSS JOIN LATERAL (SELECT p.state, p.channel_id FROM channel_outbox p WHERE p.id = a.prompt_op_id OFFSET 0) o
  JOIN agent_run r ON r.id = a.run_id
 WHERE a.state = 'pending' AND a.expires_at > stratus_now() AND a.offers < $1 AND o.channel_id = $2 AND o.state = 'sent'
 ORDER BY a.id LIMIT $3
"""

_AGAIN = """
SELECT a.id, a.public_id, a.offers, c.name, c.args, o.channel_id, o.lane, o.address, o.account_key, o.run_id
  FROM approval a
  JOIN unnest($1::bigint[], $2::int[]) AS seen(id, offers) ON seen.id = a.id AND seen.offers = a.offers
  JOIN tool_call c ON c.run_id = a.run_id AND c.call_id = a.call_id
  JOIN channel_outbox o ON o.id = a.prompt_op_id
 WHERE a.state = 'pending' AND a.expires_at > clock_timestamp()
 ORDER BY a.id FOR UPDATE OF a
"""


def prompt(public_id: str, name: str, args: str, *, offer: int) -> PlannedOp:
    """The op that asks for the `offer`-th time. `public_id` is the approval's, 32 hexadecimal digits."""
    text = question(name, args, code_of(public_id))
    payload = {"text": text, "markdown": False, "buttons": buttons(public_id)}
    return PlannedOp("approval_prompt", payload, f"approval:{public_id}:{offer}")


async def close_prompts(connection: Connection, approvals: Sequence[int]) -> None:
    """Close every prompt of approvals (row ids) that have just been resolved, for a caller that holds their sessions.

    One that has not left is canceled; one that has, or may be leaving, is edited to say what was decided, and loses its buttons.
    """
    if not approvals:
        return
    rows = await connection.fetch(_STANDING, list(approvals))
    waiting = [row["id"] for row in rows if row["state"] == OpState.PENDING]
    if waiting:
        canceled = OUTBOX.after(OpState.PENDING, OpEvent.CANCEL)
        await connection.execute(_CANCEL, waiting, str(canceled))
    await plan(connection, [_closing(row) for row in rows if row["state"] in (OpState.SENDING, OpState.SENT)])


async def offer_lost(db: Database, limit: int) -> int:
    """Ask again about up to `limit` pending approvals whose prompt did not get through. Returns how many.

    After the n-th offer it waits 2^(n-1) minutes, and after `MAX_OFFERS` no more: the code and the web still answer it.
    """
    return await _offer(db, _LOST, _AGAIN_SECONDS, limit)


async def offer_unheard(db: Database, channel_id: int, limit: int = 100) -> int:
    """Ask again about up to `limit` pending approvals of a channel to which nobody has listened for a while. Returns how many."""
    return await _offer(db, _UNHEARD, channel_id, limit)


async def _offer(db: Database, look: str, which: float | int, limit: int) -> int:
    async def work(connection: Connection) -> int:
        found = await connection.fetch(look, MAX_OFFERS, which, limit)
        if not found:
            return 0
        await connection.fetch(LOCK_SESSIONS, sorted({row["session_id"] for row in found}))
        rows = await connection.fetch(_AGAIN, [row["id"] for row in found], [row["offers"] for row in found])
        ops = [_offering(row) for row in rows]
        await plan(connection, ops)
        await offered(
            connection, [(row["id"], op.channel_id, op.delivery_key) for row, op in zip(rows, ops, strict=True)]
        )
        return len(rows)

    return await db.transact(work, idempotent=True)


def _offering(row: Mapping[str, Any]) -> NewOp:
    planned = prompt(row["public_id"].hex, row["name"], row["args"], offer=row["offers"] + 1)
    return _like(row, planned.kind, planned.payload, planned.delivery_key)


def _closing(row: Mapping[str, Any]) -> NewOp:
    text = answered(row["name"], row["args"], ApprovalState(row["approval"]), row["decided_by"], row["note"])
    payload = {"text": text, "markdown": False}
    return _like(row, "edit_prompt", payload, f"{row['delivery_key']}:closed", edits=row["id"])


def _like(
    row: Mapping[str, Any], kind: str, payload: Mapping[str, Any], delivery_key: str, edits: int | None = None
) -> NewOp:
    """An op for the place of the prompt in `row`."""
    return NewOp(
        channel_id=row["channel_id"],
        lane=row["lane"],
        kind=kind,
        address=orjson.loads(row["address"]),
        payload=payload,
        delivery_key=delivery_key,
        run_id=row["run_id"],
        account_key=row["account_key"],
        edits=edits,
    )
