"""How attempts end: what the platform answered, what an earlier owner left behind, and what depends on an op that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.store import chat_move
from stratus.store.attempt import SAME_KEY
from stratus.store.database import Connection, Database
from stratus.store.inbox import ChannelLease
from stratus.store.log import encode

log = structlog.get_logger(__name__)

# By the attempt's token, not by the lease: what a stale owner knows of its own attempt is evidence and is taken.
_COMPLETE = """
WITH result AS (
    SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::jsonb[], $5::float8[], $6::boolean[], $7::jsonb[], $9::text[])
           AS r(op_id, token, outcome, detail, delay, costs, address, holds)
), op AS (
    SELECT o.id, o.channel_id, o.state, o.attempts, r.* FROM channel_outbox o JOIN result r ON r.op_id = o.id AND r.token = o.attempt_token
     WHERE o.state = 'sending' OR (o.state = 'unknown' AND r.outcome = 'sent')
     ORDER BY o.id
       FOR UPDATE OF o
), verdict AS (
    SELECT op.*, CASE
             WHEN outcome = 'sent' THEN 'sent'
             WHEN outcome = 'permanent' THEN 'failed'
             WHEN outcome = 'unknown' THEN 'unknown'
             WHEN costs AND attempts >= $8 THEN 'failed'
             ELSE 'pending' END AS next
      FROM op
), moved AS (
    UPDATE channel_outbox o
       SET state = v.next,
           attempts = o.attempts - (v.next = 'pending' AND NOT v.costs)::int,
           not_before = CASE WHEN v.next = 'pending' THEN clock_timestamp() + make_interval(secs => v.delay) ELSE o.not_before END,
           attempt_token = CASE WHEN v.next = 'unknown' THEN o.attempt_token END,
           attempt_deadline = CASE WHEN v.next = 'unknown' THEN o.attempt_deadline END,
           settled_at = CASE WHEN v.next IN ('sent', 'failed') THEN clock_timestamp() END,
           sent_message_id = CASE WHEN v.next = 'sent' THEN v.detail ->> 'message_id' END,
           receipt = CASE WHEN v.next = 'sent' THEN v.detail END,
           error = CASE WHEN v.next = 'sent' THEN NULL ELSE v.detail END,
           address = coalesce(v.address, o.address)
      FROM verdict v WHERE o.id = v.id
    RETURNING o.id, o.state
), logged AS (
    UPDATE outbox_attempt a SET outcome = v.outcome, ended_at = clock_timestamp(), detail = v.detail
      FROM verdict v WHERE a.token = v.token
), held AS (
    INSERT INTO channel_rate (channel_id, scope, next_at)
    SELECT v.channel_id, v.holds, clock_timestamp() + make_interval(secs => max(v.delay))
      FROM verdict v WHERE v.holds IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (channel_id, scope) DO UPDATE SET next_at = greatest(channel_rate.next_at, EXCLUDED.next_at)
)
SELECT id, state FROM moved ORDER BY id
"""

_CANCEL_DEPENDENTS = """
WITH RECURSIVE chain AS (
    SELECT o.id FROM channel_outbox o WHERE o.depends_on = ANY($1) AND o.state = 'pending'
    UNION
    SELECT o.id FROM channel_outbox o JOIN chain c ON o.depends_on = c.id WHERE o.state = 'pending'
), locked AS (
    SELECT o.id FROM channel_outbox o WHERE o.id IN (SELECT id FROM chain) AND o.state = 'pending' ORDER BY o.id FOR UPDATE
)
UPDATE channel_outbox o
   SET state = 'canceled', settled_at = clock_timestamp(), error = jsonb_build_object('code', 'dependency_failed')
  FROM locked l WHERE o.id = l.id AND o.state = 'pending'
"""

_NOTE = """
UPDATE outbox_attempt a SET outcome = 'sent', ended_at = clock_timestamp(), detail = r.detail
  FROM unnest($1::uuid[], $2::jsonb[]) AS r(token, detail) WHERE a.token = r.token AND a.outcome = 'unknown'
"""

_OTHERS = """
SELECT o.id, o.sent_message_id AS kept, r.detail ->> 'message_id' AS other
  FROM unnest($1::bigint[], $2::jsonb[]) AS r(op_id, detail) JOIN channel_outbox o ON o.id = r.op_id
 WHERE o.state = 'sent' AND o.sent_message_id <> r.detail ->> 'message_id'
"""

# Ends the attempts of `open`, each with its outcome and detail; an op that is not unknown waits again.
_END_OPEN = """
), moved AS (
    UPDATE channel_outbox o
       SET state = CASE WHEN p.outcome = 'unknown' THEN 'unknown' ELSE 'pending' END,
           attempts = o.attempts - (p.outcome = 'not_sent')::int,
           attempt_token = CASE WHEN p.outcome = 'unknown' THEN o.attempt_token END,
           attempt_deadline = CASE WHEN p.outcome = 'unknown' THEN o.attempt_deadline END,
           error = CASE WHEN p.outcome = 'not_sent' THEN o.error ELSE jsonb_build_object('code', p.detail -> 'code') END
      FROM open p WHERE o.id = p.id
    RETURNING o.id, o.state
), logged AS (
    UPDATE outbox_attempt a SET outcome = p.outcome, ended_at = clock_timestamp(), detail = p.detail FROM open p WHERE a.token = p.token
)
SELECT id, state FROM moved
"""

# An attempt that never began left no byte: a former owner's goes back at once, a forgotten one of ours after the grace. One that began is unknown
# once it cannot be under way any more, or goes again where the platform still takes its key for the same.
_ADOPT = (
    """
WITH open AS (
    SELECT o.id, a.token, t.outcome,
           jsonb_build_object('code', 'owner_lost') || CASE WHEN t.outcome = 'retryable' THEN jsonb_build_object($8::text, true) ELSE '{}' END
             AS detail
      FROM channel c
      JOIN channel_outbox o ON o.channel_id = c.id AND o.state = 'sending'
      JOIN outbox_attempt a ON a.token = o.attempt_token
      LEFT JOIN unnest($5::text[], $6::float8[]) AS w(kind, seconds) ON w.kind = o.kind
     CROSS JOIN LATERAL (
           SELECT CASE
             WHEN a.started_at IS NULL THEN 'not_sent'
             WHEN o.attempts < $7 AND a.started_at + make_interval(secs => w.seconds) > clock_timestamp() THEN 'retryable'
             ELSE 'unknown' END AS outcome) t
     WHERE c.id = $1 AND c.runtime_token = $2 AND c.runtime_holder = $3 AND c.lease_until > clock_timestamp()
       AND ((a.started_at IS NULL AND (a.holder <> $3 OR a.created_at + make_interval(secs => $4) < clock_timestamp()))
            OR o.attempt_deadline + make_interval(secs => $4) < clock_timestamp())
     ORDER BY o.id
       FOR UPDATE OF o"""  # noqa: S608 - both halves are constants of this module
    + _END_OPEN
)

# The same where no owner will come: the channel is off, and nobody holds its lease.
_ABANDON = (
    """
WITH open AS (
    SELECT o.id, a.token, CASE WHEN a.started_at IS NULL THEN 'not_sent' ELSE 'unknown' END AS outcome,
           jsonb_build_object('code', 'channel_off') AS detail
      FROM channel c
      JOIN channel_outbox o ON o.channel_id = c.id AND o.state = 'sending'
      JOIN outbox_attempt a ON a.token = o.attempt_token
     WHERE (NOT c.enabled OR c.deleted_at IS NOT NULL) AND coalesce(c.lease_until, '-infinity') < clock_timestamp()
       AND coalesce(o.attempt_deadline, a.created_at) + make_interval(secs => $1) < clock_timestamp()
     ORDER BY o.id LIMIT $2
       FOR UPDATE OF o SKIP LOCKED"""  # noqa: S608 - as above
    + _END_OPEN
)

# What was under way, or was planned, when the channel was deleted.
_CANCEL_DELETED = """
WITH open AS (
    SELECT o.id FROM channel c JOIN channel_outbox o ON o.channel_id = c.id AND o.state = 'pending'
     WHERE c.deleted_at IS NOT NULL AND coalesce(c.lease_until, '-infinity') < clock_timestamp()
     ORDER BY o.id LIMIT $1
       FOR UPDATE OF o SKIP LOCKED
)
UPDATE channel_outbox o
   SET state = 'canceled', settled_at = clock_timestamp(), error = jsonb_build_object('code', 'channel_deleted')
  FROM open p WHERE o.id = p.id
RETURNING o.id, o.state
"""


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt: `sent`, `not_sent`, `retryable`, `permanent` or `unknown`.

    `detail` is the receipt or the error; `delay` in seconds is when a retry may start; `costs` is False for what uses no attempt; `address`
    replaces the op's (a chat that moved). `holds` is the scope of a rate that the platform has stopped for `delay` seconds.
    """

    op_id: int
    token: UUID
    outcome: str
    detail: Mapping[str, Any]
    delay: float = 0.0
    costs: bool = True
    address: Mapping[str, Any] | None = None
    holds: str | None = None


async def complete(db: Database, outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Record what became of attempts, by their tokens; a repeat is a no-op. Returns the new state of each op that moved."""

    async def work(connection: Connection) -> dict[int, str]:
        moved = [(one.op_id, str(one.address["chat"])) for one in outcomes if one.address is not None]
        if moved:
            await chat_move.follow(connection, moved)
        rows = await connection.fetch(
            _COMPLETE,
            [one.op_id for one in outcomes],
            [one.token for one in outcomes],
            [one.outcome for one in outcomes],
            [encode(one.detail) for one in outcomes],
            [one.delay for one in outcomes],
            [one.costs for one in outcomes],
            [None if one.address is None else encode(one.address) for one in outcomes],
            MAX_SEND_ATTEMPTS,
            [one.holds for one in outcomes],
        )
        states = {row["id"]: row["state"] for row in rows}
        await _keep_evidence(connection, [one for one in outcomes if one.outcome == "sent" and one.op_id not in states])
        failed = [op_id for op_id, state in states.items() if state == "failed"]
        await cancel_dependents(connection, failed)
        return states

    return await db.transact(work, idempotent=True)


async def _keep_evidence(connection: Connection, late: Sequence[Outcome]) -> None:
    """Receipts that move no op any more. Of an attempt given up as unknown (the op was resent or canceled since) it is kept with the attempt.

    The first receipt of an op stays; another message that claims to be it is an alarm.
    """
    if not late:
        return
    receipts = [encode(one.detail) for one in late]
    await connection.execute(_NOTE, [one.token for one in late], receipts)
    for row in await connection.fetch(_OTHERS, [one.op_id for one in late], receipts):
        log.error("receipt.contradicts", op=row["id"], kept=row["kept"], other=row["other"])


async def adopt(
    db: Database, lease: ChannelLease, grace: float, windows: Mapping[str, float] | None = None
) -> dict[int, str]:
    """Settle attempts that an earlier owner left behind, `grace` seconds past their deadline. Returns their new states.

    `windows` says, for kinds of op, for how many seconds the platform takes the same key again.
    """
    again = windows or {}

    async def work(connection: Connection) -> dict[int, str]:
        rows = await connection.fetch(
            _ADOPT,
            lease.channel_id,
            lease.token,
            lease.holder,
            grace,
            list(again),
            list(again.values()),
            MAX_SEND_ATTEMPTS,
            SAME_KEY,
        )
        return {row["id"]: row["state"] for row in rows}

    return await db.transact(work, idempotent=True)


async def abandon(db: Database, grace: float, limit: int) -> dict[int, str]:
    """Settle what was left on channels that are disabled or deleted and that nobody owns: at most `limit` ops of each kind.

    An attempt that began is `unknown` from `grace` seconds past its deadline on; the ops of a deleted channel that never left are canceled,
    those of a disabled one wait for it. Returns the new states.
    """

    async def work(connection: Connection) -> dict[int, str]:
        ended = await connection.fetch(_ABANDON, grace, limit)
        canceled = await connection.fetch(_CANCEL_DELETED, limit)
        return {row["id"]: row["state"] for row in [*ended, *canceled]}

    return await db.transact(work, idempotent=True)


async def cancel_dependents(connection: Connection, failed: Sequence[int]) -> None:
    """Cancel what waits behind these ops of its chain, in the transaction that ended them."""
    if failed:
        await connection.execute(_CANCEL_DEPENDENTS, list(failed))
