"""Notifications: a message of somebody's own accord to a person or a session's chat, once for each key in a day, from any replica."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from stratus.channel.errors import CHAT_REFUSES
from stratus.domain.chain import PlannedOp
from stratus.domain.errors import Conflict, KeyReused, NotFound
from stratus.domain.values import ReplyTo
from stratus.store.database import Connection, Database
from stratus.store.plan import NewOp, Once, addressed, plan

KEPT_HOURS = 24

# A row that another transaction is making is waited for: of two replicas one gets it.
_CLAIM = """
INSERT INTO notification (target, dedup_key, id, body_hash, channel_id, pieces) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (target, dedup_key)
    DO UPDATE SET id = EXCLUDED.id, body_hash = EXCLUDED.body_hash, channel_id = EXCLUDED.channel_id, pieces = EXCLUDED.pieces,
                  created_at = clock_timestamp()
            WHERE notification.created_at < clock_timestamp() - make_interval(hours => $7)
RETURNING id
"""

_FOUND = """
SELECT n.id, n.body_hash, n.channel_id, n.pieces FROM notification n
 WHERE n.target = $1 AND n.dedup_key = $2 AND n.created_at >= clock_timestamp() - make_interval(hours => $3)
"""

_OPS = """
SELECT o.id, o.state, o.sent_message_id, o.error ->> 'code' AS error, c.name AS channel
  FROM generate_series(0, $3::int - 1) AS piece
  JOIN channel_outbox o ON o.channel_id = $1 AND o.delivery_key = 'notification:' || $2 || ':' || piece
  JOIN channel c ON c.id = o.channel_id
 ORDER BY o.id
"""

_PERSON = "SELECT id FROM principal WHERE public_id = $1 AND disabled_at IS NULL"

# Where the person last wrote, to a bot alone rather than in a group.
_LAST_WROTE = """
SELECT r.reply_to, r.enqueued_at FROM agent_run r JOIN channel c ON c.id = (r.reply_to ->> 'channel_id')::bigint
 WHERE r.principal_id = $1 AND r.reply_to IS NOT NULL AND c.deleted_at IS NULL AND c.enabled AND ($2::text IS NULL OR c.name = $2)
 ORDER BY coalesce((r.reply_to ->> 'group')::boolean, false), r.id DESC LIMIT 1
"""

_SESSION = """
SELECT s.id, r.reply_to, r.enqueued_at FROM session s
  LEFT JOIN LATERAL (
       SELECT r.reply_to, r.enqueued_at FROM agent_run r JOIN channel c ON c.id = (r.reply_to ->> 'channel_id')::bigint
        WHERE r.session_id = s.id AND r.reply_to IS NOT NULL AND c.deleted_at IS NULL AND c.enabled AND ($2::text IS NULL OR c.name = $2)
        ORDER BY r.id DESC LIMIT 1) r ON true
 WHERE s.id = $1
"""

# The platform's last word on the chat, unless somebody has written there since.
_REFUSED = """
SELECT state = 'failed' AND error ->> 'code' = ANY($4) AND settled_at > $3
  FROM channel_outbox WHERE channel_id = $1 AND lane = $2 AND state IN ('sent', 'failed')
 ORDER BY lane_seq DESC LIMIT 1
"""

REFUSED = "the chat refuses the bot: it was blocked or removed there"


@dataclass(frozen=True)
class Target:
    """A person by their public id, or a session; on the channel of that name if one is given."""

    user: UUID | None = None
    session: str | None = None
    channel: str | None = None

    def key(self) -> str:
        """Within which keys are told apart."""
        return f"user:{self.user}" if self.user is not None else f"session:{self.session}"


@dataclass(frozen=True)
class Order:
    """A notification to be made: `id` is new, `key` the caller's, `pieces` makes the ops for a platform, given their delivery key."""

    id: UUID
    target: Target
    key: str
    text: str
    pieces: Callable[[str, str], Sequence[PlannedOp]]


@dataclass(frozen=True)
class Notified:
    """What became of it: one op for each piece, with its own state and receipt. `repeated`: an earlier call had made it."""

    id: UUID
    repeated: bool
    channel_id: int
    ops: Sequence[dict[str, Any]]


def fingerprint(text: str) -> bytes:
    """What a repeat of a notification must have in common."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


async def notify(db: Database, order: Order) -> Notified:
    """Plan the ops, once a key and day. Raises NotFound, Conflict (nowhere to send it, or the chat refuses us), KeyReused."""

    async def work(connection: Connection) -> Notified:
        if (before := await _before(connection, order)) is not None:
            return before
        to = await _address(connection, order.target)
        planned = order.pieces(to.platform, f"notification:{order.id}")
        once = Once(order.target.key(), order.key, order.id, fingerprint(order.text), len(planned))
        if not await _claim(connection, once, to.channel_id):  # another was faster
            before = await _before(connection, order)
            assert before is not None
            return before
        await plan(connection, addressed(planned, to))
        ops = await _ops(connection, to.channel_id, order.id, len(planned))
        return Notified(order.id, False, to.channel_id, ops)

    # A lost answer finds the row: then it says `repeated`, which the caller's own id tells apart.
    made = await db.transact(work, idempotent=True)
    return Notified(made.id, made.id != order.id, made.channel_id, made.ops)


async def _before(connection: Connection, order: Order) -> Notified | None:
    row = await connection.fetchrow(_FOUND, order.target.key(), order.key, KEPT_HOURS)
    if row is None:
        return None
    if row["body_hash"] != fingerprint(order.text):
        raise KeyReused("this key was used for another text in the last day")
    ops = await _ops(connection, row["channel_id"], row["id"], row["pieces"])
    return Notified(row["id"], True, row["channel_id"], ops)


async def _ops(connection: Connection, channel_id: int, notification: UUID, pieces: int) -> list[dict[str, Any]]:
    return [dict(row) for row in await connection.fetch(_OPS, channel_id, str(notification), pieces)]


async def _address(connection: Connection, target: Target) -> ReplyTo:
    if target.user is not None:
        who = "this person"
        principal_id = await connection.fetchval(_PERSON, target.user)
        if principal_id is None:
            raise NotFound(f"{who} is not there")
        row = await connection.fetchrow(_LAST_WROTE, principal_id, target.channel)
    else:
        who = "this session"
        row = await connection.fetchrow(_SESSION, target.session, target.channel)
        if row is None:
            raise NotFound(f"{who} is not there")
    where = f"on the channel {target.channel}" if target.channel else "on any channel that is enabled"
    if row is None or row["reply_to"] is None:
        raise Conflict(f"{who} cannot be reached {where}: nobody has written there")
    to = ReplyTo.model_validate({**orjson.loads(row["reply_to"]), "message_id": None})
    if await _refuses(connection, to, row["enqueued_at"]):
        raise Conflict(REFUSED)
    return to


async def _refuses(connection: Connection, to: ReplyTo, since: datetime) -> bool:
    return bool(await connection.fetchval(_REFUSED, to.channel_id, to.lane(), since, CHAT_REFUSES))


async def reached_at(db: Database, principal_id: int, channel: str | None) -> tuple[ReplyTo | None, bool]:
    """The chat where a person last wrote, on the channel of that name if one is given, and whether it refuses us; None: they never did."""

    async def look(connection: Connection) -> tuple[ReplyTo | None, bool]:
        row = await connection.fetchrow(_LAST_WROTE, principal_id, channel)
        if row is None:
            return None, False
        to = ReplyTo.model_validate_json(row["reply_to"])
        return to, await _refuses(connection, to, row["enqueued_at"])

    return await db.read(look)


async def made_before(db: Database, once: Once) -> bool:
    """Whether another call has used the key in the last day."""
    row = await db.read(lambda c: c.fetchrow(_FOUND, once.target, once.key, KEPT_HOURS))
    return row is not None and row["id"] != once.id


async def claimed(connection: Connection, ops: Sequence[NewOp]) -> list[NewOp]:
    """These ops but for those whose key another call has used meanwhile; the others have it now."""
    kept = []
    granted: dict[UUID, bool] = {}
    for op in ops:  # rarely more than one key
        if op.once is not None and op.once.id not in granted:
            granted[op.once.id] = await _claim(connection, op.once, op.channel_id)
        if op.once is None or granted[op.once.id]:
            kept.append(op)
    return kept


async def _claim(connection: Connection, once: Once, channel_id: int) -> bool:
    given = (once.target, once.key, once.id, once.body_hash, channel_id, once.pieces, KEPT_HOURS)
    if await connection.fetchval(_CLAIM, *given) is not None:
        return True
    row = await connection.fetchrow(_FOUND, once.target, once.key, KEPT_HOURS)
    return row is not None and row["id"] == once.id
