"""Intents: what the channel's owner may send now, claimed before a byte of it leaves, and the guard before each of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.chain import PREVIEW
from stratus.domain.errors import LeaseLost
from stratus.store import preview
from stratus.store.database import Connection, Database, Resolved
from stratus.store.inbox import ChannelLease
from stratus.store.rate import UNLIMITED, Rates
from stratus.store.settle import cancel_dependents

# The scope of an op's rate: its lane, or its chat where all threads of a chat count together. No lane ends like the latter.
_SCOPE = "CASE WHEN $12::boolean THEN split_part(o.lane, chr(31), 1) || chr(31) ELSE o.lane END"
_HEAD = """
       o.id, o.kind IN ('draft_update', 'reaction') AS low, {scope} AS scope,
       CASE WHEN o.kind = 'draft_update' AND NOT EXISTS (SELECT 1 FROM agent_run r WHERE r.id = o.run_id AND r.state = 'running')
            THEN 'canceled'
            WHEN o.account_key IS NULL OR o.account_key IS NOT DISTINCT FROM w.account_key THEN 'sending'
            ELSE 'failed' END AS next
  FROM channel_outbox o CROSS JOIN owner w
 WHERE o.channel_id = $1 AND o.state = 'pending' AND o.not_before <= stratus_now()
   AND NOT EXISTS (SELECT 1 FROM channel_rate r WHERE r.channel_id = $1 AND r.scope IN ('', {scope}) AND r.next_at > stratus_now())
   AND NOT EXISTS (SELECT 1 FROM channel_outbox p
                    WHERE p.channel_id = o.channel_id AND p.lane = o.lane AND p.lane_seq < o.lane_seq
                      AND p.state IN ('pending', 'sending')
                      AND (p.state = 'sending' OR p.kind <> 'draft_update' OR o.kind = 'draft_update'))
""".replace("{scope}", _SCOPE)

# Under a share lock on the channel's row: a takeover waits for this commit, or this finds the lease gone.
#
# A draft that has not left holds nobody up: it goes only when nothing else of its lane waits, is passed over by whatever goes before it, and has
# nothing to say once its run does not run. An edit on its way holds its lane like any op, so what comes next knows what became of it.
#
# `next_at` of a rate is from when one more may go; so many may go at once as intervals have passed since then, up to the burst. Drafts and
# reactions leave half of it to what people wait for.
_INTEND = """
WITH owner AS (
    SELECT id, account_key FROM channel
     WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp()
       AND enabled AND deleted_at IS NULL
       FOR SHARE
), finals AS (
    SELECT {head} AND o.kind NOT IN ('draft_update', 'reaction') ORDER BY o.id LIMIT $5
), extras AS (
    SELECT {head} AND o.kind IN ('draft_update', 'reaction')
       AND NOT (o.kind = 'draft_update'
                AND EXISTS (SELECT 1 FROM channel_outbox p
                             WHERE p.channel_id = o.channel_id AND p.lane = o.lane AND p.lane_seq > o.lane_seq
                               AND p.state IN ('pending', 'sending') AND p.kind <> 'draft_update'))
     ORDER BY o.id LIMIT greatest($5 - (SELECT count(*) FROM finals), 0)
), ranked AS (
    SELECT h.*, row_number() OVER (PARTITION BY h.scope ORDER BY h.low, h.id) AS in_chat, row_number() OVER (ORDER BY h.low, h.id) AS of_bot,
           least($9::int, floor(extract(epoch FROM stratus_now() - chat.next_at) / chat_every.seconds) + 1) AS chat_room,
           least($10::int, floor(extract(epoch FROM stratus_now() - bot.next_at) / $8::float8) + 1) AS bot_room,
           coalesce(chat.next_at, '-infinity') + make_interval(secs => chat_every.seconds * CASE WHEN h.low THEN $9::int / 2 ELSE 1 END) AS chat_at,
           coalesce(bot.next_at, '-infinity') + make_interval(secs => $8::float8 * CASE WHEN h.low THEN $10::int / 2 ELSE 1 END) AS bot_at
      FROM (SELECT * FROM finals UNION ALL SELECT * FROM extras) h
     CROSS JOIN LATERAL (
           SELECT CASE WHEN $11::text <> '' AND starts_with(h.scope, $11::text) THEN $7::float8 ELSE $6::float8 END AS seconds) chat_every
      LEFT JOIN channel_rate chat ON chat.channel_id = $1 AND chat.scope = h.scope
      LEFT JOIN channel_rate bot ON bot.channel_id = $1 AND bot.scope = ''
), picked AS (
    SELECT *, in_chat + CASE WHEN low THEN $9::int / 2 ELSE 0 END <= coalesce(chat_room, $9::int)
              AND of_bot + CASE WHEN low THEN $10::int / 2 ELSE 0 END <= coalesce(bot_room, $10::int) AS goes
      FROM ranked
), due AS (
    SELECT o.id, d.next, d.scope FROM channel_outbox o JOIN picked d ON d.id = o.id
     WHERE o.state = 'pending' AND d.goes
     ORDER BY o.id
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
    RETURNING o.id, o.state, d.scope, o.lane, o.lane_seq, o.kind, o.address, o.payload, o.delivery_key, o.depends_on, o.attempt_token,
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
), used AS (
    SELECT i.scope, count(*) AS n, $9::int - 1 AS ahead,
           CASE WHEN $11::text <> '' AND starts_with(i.scope, $11::text) THEN $7::float8 ELSE $6::float8 END AS seconds
      FROM intent i WHERE i.state = 'sending' GROUP BY i.scope
     UNION ALL
    SELECT '', count(*), $10::int - 1, $8::float8 FROM intent i WHERE i.state = 'sending' HAVING count(*) > 0
), spent AS (
    INSERT INTO channel_rate (channel_id, scope, next_at)
    SELECT $1, u.scope, greatest(r.next_at, stratus_now() - make_interval(secs => u.ahead * u.seconds)) + make_interval(secs => u.n * u.seconds)
      FROM used u LEFT JOIN channel_rate r ON r.channel_id = $1 AND r.scope = u.scope
     ORDER BY u.scope
        ON CONFLICT (channel_id, scope) DO UPDATE SET next_at = greatest(channel_rate.next_at, EXCLUDED.next_at)
)
SELECT i.*, p.sent_message_id AS edits, extract(epoch FROM w.at - stratus_now())::float8 AS wait
  FROM (SELECT least((SELECT min(greatest(chat_at, bot_at)) FROM picked WHERE NOT goes),
                     (SELECT min(r.next_at) FROM channel_rate r WHERE r.channel_id = $1 AND r.next_at > stratus_now())) AS at) w
  LEFT JOIN intent i ON true
  LEFT JOIN channel_outbox p ON i.kind = 'edit_prompt' AND p.id = i.depends_on
 ORDER BY i.id
""".replace("{head}", _HEAD)

_OWNED = """
SELECT 1 FROM channel
 WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp() AND enabled AND deleted_at IS NULL
"""

_LOCK_OPS = "SELECT id FROM channel_outbox WHERE id = ANY($1) ORDER BY id FOR UPDATE"

_INTENTS = """
SELECT o.id, o.state, {scope} AS scope, o.lane, o.kind, o.address,
       o.payload, o.delivery_key, o.attempt_token, o.attempt_seq, o.attempts, p.sent_message_id AS edits
  FROM channel_outbox o LEFT JOIN channel_outbox p ON o.kind = 'edit_prompt' AND p.id = o.depends_on
 WHERE o.state = 'sending' AND o.attempt_token = ANY($2) AND o.id = ANY($1) ORDER BY o.id
""".replace("{scope}", _SCOPE.replace("$12", "$3"))

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


@dataclass(frozen=True)
class Intent:
    """An op that this replica may now send, once: `token` names the attempt, `scope` whose rate it counts for."""

    op_id: int
    lane: str
    scope: str
    kind: str
    address: Mapping[str, Any]
    payload: Mapping[str, Any]
    delivery_key: str
    token: UUID
    attempt: int
    attempts: int


@dataclass(frozen=True)
class Claim:
    """What may be sent now. `wait` is seconds until more may, where a rate holds it back; None: nothing is held back."""

    intents: Sequence[Intent]
    wait: float | None = None


async def intend(db: Database, lease: ChannelLease, replica: str, limit: int, rates: Rates = UNLIMITED) -> Claim:
    """Commit intents for up to `limit` due ops, one for each lane, as the rates allow: what people wait for goes before drafts and reactions.

    Raises LeaseLost when the channel is another's, disabled or deleted.
    """
    made: list[Intent] = []

    async def work(connection: Connection) -> Claim:
        found = await connection.fetch(
            _INTEND, lease.channel_id, lease.token, lease.holder, replica, limit, *rates.parameters()
        )
        rows = [row for row in found if row["id"] is not None]
        await cancel_dependents(connection, [row["id"] for row in rows if row["state"] == "failed"])
        if not rows and not await connection.fetchval(_OWNED, lease.channel_id, lease.token, lease.holder):
            raise LeaseLost(f"channel {lease.channel_id} is another's")
        made[:] = await _with_previews(connection, [_intent(row) for row in rows if row["state"] == "sending"])
        return Claim(list(made), found[0]["wait"])

    async def resolve(connection: Connection) -> Resolved[Claim] | None:
        # Waits on the rows that the doubtful commit wrote for its end, then reads its tokens.
        ids = [intent.op_id for intent in made]
        await connection.fetch(_LOCK_OPS, ids)
        rows = await connection.fetch(_INTENTS, ids, [intent.token for intent in made], rates.by_chat)
        return Resolved(Claim(await _with_previews(connection, [_intent(row) for row in rows]))) if rows else None

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


def _intent(row: Mapping[str, Any]) -> Intent:
    payload = orjson.loads(row["payload"])
    if (
        row["edits"] is not None
    ):  # what the platform calls a prompt is known once that is sent, and that was before this in its lane
        payload["message_id"] = row["edits"]
    return Intent(
        op_id=row["id"],
        lane=row["lane"],
        scope=row["scope"],
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
