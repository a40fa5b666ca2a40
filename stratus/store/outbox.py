"""The outbox: ops planned into lanes, claimed by the channel's owner as intents, guarded, and settled by what the platform answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.chain import PREVIEW
from stratus.domain.errors import LeaseLost
from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.store import chat_move, preview
from stratus.store.database import Connection, Database, Resolved
from stratus.store.inbox import ChannelLease
from stratus.store.log import encode

# Under a share lock on the channel's row: a takeover waits for this commit, or this finds the lease gone. A draft that has not left holds nobody
# up: it goes only when nothing else of its lane waits, is passed over by whatever goes before it, and has nothing to say once its run does not
# run. An edit on its way holds its lane like any op, so what comes next knows what became of it.
_INTEND = """
WITH owner AS (
    SELECT id, account_key FROM channel
     WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp()
       AND enabled AND deleted_at IS NULL
       FOR SHARE
), due AS (
    SELECT o.id, CASE WHEN o.kind = 'draft_update' AND NOT EXISTS (SELECT 1 FROM agent_run r WHERE r.id = o.run_id AND r.state = 'running')
                      THEN 'canceled'
                      WHEN o.account_key IS NULL OR o.account_key IS NOT DISTINCT FROM w.account_key THEN 'sending'
                      ELSE 'failed' END AS next
      FROM channel_outbox o CROSS JOIN owner w
     WHERE o.channel_id = $1 AND o.state = 'pending' AND o.not_before <= stratus_now()
       AND NOT EXISTS (SELECT 1 FROM channel_outbox p
                        WHERE p.channel_id = o.channel_id AND p.lane = o.lane AND p.lane_seq < o.lane_seq
                          AND p.state IN ('pending', 'sending')
                          AND (p.state = 'sending' OR p.kind <> 'draft_update' OR o.kind = 'draft_update'))
       AND NOT (o.kind = 'draft_update'
                AND EXISTS (SELECT 1 FROM channel_outbox p
                             WHERE p.channel_id = o.channel_id AND p.lane = o.lane AND p.lane_seq > o.lane_seq
                               AND p.state IN ('pending', 'sending') AND p.kind <> 'draft_update'))
     ORDER BY o.id
     LIMIT $5
       FOR NO KEY UPDATE OF o SKIP LOCKED
), intent AS (
    UPDATE channel_outbox o
       SET state = d.next,
           attempt_token = CASE WHEN d.next = 'sending' THEN gen_random_uuid() END,
           attempt_seq = o.attempt_seq + (d.next = 'sending')::int, attempts = o.attempts + (d.next = 'sending')::int,
           settled_at = CASE WHEN d.next <> 'sending' THEN clock_timestamp() END,
           error = CASE d.next WHEN 'sending' THEN o.error WHEN 'failed' THEN jsonb_build_object('code', 'account_mismatch')
                               ELSE coalesce(o.error, '{}') || jsonb_build_object('code', 'overtaken') END
      FROM due d WHERE o.id = d.id AND o.state = 'pending'
    RETURNING o.id, o.state, o.lane, o.lane_seq, o.kind, o.address, o.payload, o.delivery_key, o.depends_on, o.attempt_token,
              o.attempt_seq, o.attempts
), overtaken AS (
    UPDATE channel_outbox o
       SET state = 'canceled', settled_at = clock_timestamp(), error = coalesce(o.error, '{}') || jsonb_build_object('code', 'overtaken')
      FROM intent i
     WHERE i.state = 'sending' AND o.channel_id = $1 AND o.lane = i.lane AND o.lane_seq < i.lane_seq AND o.state = 'pending'
       AND o.kind = 'draft_update'
), logged AS (
    INSERT INTO outbox_attempt (op_id, attempt, token, runtime_token, holder, replica)
    SELECT i.id, i.attempt_seq, i.attempt_token, $2, $3, $4 FROM intent i WHERE i.state = 'sending'
)
SELECT i.*, p.sent_message_id AS edits
  FROM intent i LEFT JOIN channel_outbox p ON i.kind = 'edit_prompt' AND p.id = i.depends_on
 ORDER BY i.id
"""

_OWNED = """
SELECT 1 FROM channel
 WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp() AND enabled AND deleted_at IS NULL
"""

_LOCK_OPS = "SELECT id FROM channel_outbox WHERE id = ANY($1) ORDER BY id FOR UPDATE"

_INTENTS = """
SELECT o.id, o.state, o.lane, o.kind, o.address, o.payload, o.delivery_key, o.attempt_token, o.attempt_seq, o.attempts,
       p.sent_message_id AS edits
  FROM channel_outbox o LEFT JOIN channel_outbox p ON o.kind = 'edit_prompt' AND p.id = o.depends_on
 WHERE o.state = 'sending' AND o.attempt_token = ANY($2) AND o.id = ANY($1) ORDER BY o.id
"""

_BEGIN = """
WITH owner AS (
    SELECT id, account_key FROM channel
     WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp()
       AND enabled AND deleted_at IS NULL
       FOR SHARE
), given AS (
    SELECT o.id, o.attempt_token FROM channel_outbox o CROSS JOIN owner w
     WHERE o.id = ANY($4) AND o.attempt_token = ANY($5) AND o.state = 'sending'
       AND (o.account_key IS NULL OR o.account_key = w.account_key)
       AND (o.attempt_deadline IS NULL OR o.attempt_deadline > clock_timestamp())
     ORDER BY o.id
       FOR NO KEY UPDATE OF o
), op AS (
    UPDATE channel_outbox o
       SET attempt_deadline = coalesce(o.attempt_deadline, clock_timestamp()
                                       + make_interval(secs => CASE o.kind WHEN 'draft_update' THEN $7::float8 ELSE $6::float8 END))
      FROM given g WHERE o.id = g.id
    RETURNING o.attempt_token, o.attempt_deadline
), attempt AS (
    UPDATE outbox_attempt a
       SET started_at = coalesce(a.started_at, clock_timestamp()), deadline = op.attempt_deadline
      FROM op WHERE a.token = op.attempt_token AND a.outcome IS NULL
    RETURNING a.token
)
SELECT token FROM attempt
"""

# By the attempt's token, not by the lease: what a stale owner knows of its own attempt is evidence and is taken.
_COMPLETE = """
WITH result AS (
    SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::jsonb[], $5::float8[], $6::boolean[], $7::jsonb[])
           AS r(op_id, token, outcome, detail, delay, costs, address)
), op AS (
    SELECT o.id, o.state, o.attempts, r.* FROM channel_outbox o JOIN result r ON r.op_id = o.id AND r.token = o.attempt_token
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

# An attempt that never began left no byte: a former owner's goes back at once, a forgotten one of ours after the grace. One that began is unknown
# once it cannot be under way any more.
_ADOPT = """
WITH open AS (
    SELECT o.id, a.token, a.started_at IS NULL AS unbegun
      FROM channel c
      JOIN channel_outbox o ON o.channel_id = c.id AND o.state = 'sending'
      JOIN outbox_attempt a ON a.token = o.attempt_token
     WHERE c.id = $1 AND c.runtime_token = $2 AND c.runtime_holder = $3 AND c.lease_until > clock_timestamp()
       AND ((a.started_at IS NULL AND (a.holder <> $3 OR a.created_at + make_interval(secs => $4) < clock_timestamp()))
            OR o.attempt_deadline + make_interval(secs => $4) < clock_timestamp())
     ORDER BY o.id
       FOR UPDATE OF o
), moved AS (
    UPDATE channel_outbox o
       SET state = CASE WHEN p.unbegun THEN 'pending' ELSE 'unknown' END,
           attempts = o.attempts - p.unbegun::int,
           attempt_token = CASE WHEN p.unbegun THEN NULL ELSE o.attempt_token END,
           error = CASE WHEN p.unbegun THEN o.error ELSE jsonb_build_object('code', 'owner_lost') END
      FROM open p WHERE o.id = p.id
    RETURNING o.id, o.state
), logged AS (
    UPDATE outbox_attempt a
       SET outcome = CASE WHEN p.unbegun THEN 'not_sent' ELSE 'unknown' END, ended_at = clock_timestamp(),
           detail = jsonb_build_object('code', 'owner_lost')
      FROM open p WHERE a.token = p.token
)
SELECT id, state FROM moved
"""

_DUE = """
SELECT c.id FROM unnest($1::bigint[]) AS c(id)
 WHERE EXISTS (SELECT 1 FROM channel_outbox o
                WHERE o.channel_id = c.id AND o.state IN ('pending', 'sending') AND o.not_before <= stratus_now())
"""


@dataclass(frozen=True)
class Intent:
    """An op that this replica may now send, once: `token` names the attempt."""

    op_id: int
    lane: str
    kind: str
    address: Mapping[str, Any]
    payload: Mapping[str, Any]
    delivery_key: str
    token: UUID
    attempt: int
    attempts: int


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt: `sent`, `not_sent`, `retryable`, `permanent` or `unknown`.

    `detail` is the receipt or the error; `delay` in seconds is when a retry may start; `costs` is False for what uses no attempt; `address`
    replaces the op's (a chat that moved).
    """

    op_id: int
    token: UUID
    outcome: str
    detail: Mapping[str, Any]
    delay: float = 0.0
    costs: bool = True
    address: Mapping[str, Any] | None = None


async def intend(db: Database, lease: ChannelLease, replica: str, limit: int) -> list[Intent]:
    """Commit intents for up to `limit` due ops, one for each lane.

    Raises LeaseLost when the channel is another's, disabled or deleted.
    """
    made: list[Intent] = []

    async def work(connection: Connection) -> list[Intent]:
        rows = await connection.fetch(_INTEND, lease.channel_id, lease.token, lease.holder, replica, limit)
        failed = [row["id"] for row in rows if row["state"] == "failed"]
        if failed:
            await cancel_dependents(connection, failed)
        if not rows and not await connection.fetchval(_OWNED, lease.channel_id, lease.token, lease.holder):
            raise LeaseLost(f"channel {lease.channel_id} is another's")
        made[:] = await _with_previews(connection, [_intent(row) for row in rows if row["state"] == "sending"])
        return list(made)

    async def resolve(connection: Connection) -> Resolved[list[Intent]] | None:
        # Waits on the rows that the doubtful commit wrote for its end, then reads its tokens.
        ids = [intent.op_id for intent in made]
        await connection.fetch(_LOCK_OPS, ids)
        rows = await connection.fetch(_INTENTS, ids, [intent.token for intent in made])
        return Resolved(await _with_previews(connection, [_intent(row) for row in rows])) if rows else None

    return await db.transact(work, resolve=resolve)


async def begin(
    db: Database, lease: ChannelLease, intents: Sequence[Intent], budget: float, draft_budget: float | None = None
) -> set[UUID]:
    """The guard before bytes leave: starts each attempt's deadline, `budget` seconds from now (a draft's `draft_budget`), at its first call.

    Returns the tokens that may go on; any other attempt must not call the platform.
    """

    async def work(connection: Connection) -> set[UUID]:
        rows = await connection.fetch(
            _BEGIN,
            lease.channel_id,
            lease.token,
            lease.holder,
            [intent.op_id for intent in intents],
            [intent.token for intent in intents],
            budget,
            budget if draft_budget is None else draft_budget,
        )
        return {row["token"] for row in rows}

    return await db.transact(work, idempotent=True, autocommit=True)


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
        )
        states = {row["id"]: row["state"] for row in rows}
        failed = [op_id for op_id, state in states.items() if state == "failed"]
        if failed:
            await cancel_dependents(connection, failed)
        return states

    return await db.transact(work, idempotent=True)


async def adopt(db: Database, lease: ChannelLease, grace: float) -> dict[int, str]:
    """Settle attempts that an earlier owner left behind, `grace` seconds past their deadline. Returns their new states."""

    async def work(connection: Connection) -> dict[int, str]:
        rows = await connection.fetch(_ADOPT, lease.channel_id, lease.token, lease.holder, grace)
        return {row["id"]: row["state"] for row in rows}

    return await db.transact(work, idempotent=True)


async def cancel_dependents(connection: Connection, failed: Sequence[int]) -> None:
    """Give up what can no longer be sent because an op before it in its chain was not."""
    await connection.execute(_CANCEL_DEPENDENTS, list(failed))


def _intent(row: Mapping[str, Any]) -> Intent:
    payload = orjson.loads(row["payload"])
    if (
        row["edits"] is not None
    ):  # what the platform calls a prompt is known once that is sent, and that was before this in its lane
        payload["message_id"] = row["edits"]
    return Intent(
        op_id=row["id"],
        lane=row["lane"],
        kind=row["kind"],
        address=orjson.loads(row["address"]),
        payload=payload,
        delivery_key=row["delivery_key"],
        token=row["attempt_token"],
        attempt=row["attempt_seq"],
        attempts=row["attempts"],
    )


async def _with_previews(connection: Connection, intents: Sequence[Intent]) -> list[Intent]:
    """The intents; those that take over their run's preview learn here which message that is."""
    takers = {intent.op_id: intent.payload[PREVIEW] for intent in intents if PREVIEW in intent.payload}
    if not takers:
        return list(intents)
    found = await preview.clean(connection, takers)
    return [replace(one, payload={**one.payload, **found.get(one.op_id, {})}) for one in intents]


async def due_channels(db: Database, leases: Sequence[ChannelLease]) -> list[int]:
    """Those of these channels that have an op to send now, or one under way; one statement for all of them."""
    rows = await db.read(lambda c: c.fetch(_DUE, [lease.channel_id for lease in leases]))
    return [row["id"] for row in rows]
