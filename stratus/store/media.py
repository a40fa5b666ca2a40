"""Received events whose files are still to be fetched, or whose albums are still to be completed, until they are ready for the router."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stratus.channel.values import Event
from stratus.domain.chain import PlannedOp
from stratus.domain.errors import LeaseLost
from stratus.domain.inbox import INBOX, InboxEvent, InboxState
from stratus.domain.media import ALBUM_SECONDS_MAX, album_of
from stratus.domain.values import ReplyTo
from stratus.store import blob
from stratus.store.database import Connection, Database
from stratus.store.inbox import ChannelLease
from stratus.store.plan import addressed, plan

_RECEIVED = """
SELECT i.id, i.payload, i.account_key, i.attempts,
       greatest(extract(epoch FROM i.not_before - stratus_now()), 0)::float8 AS wait
  FROM channel_inbox i
 WHERE i.channel_id = $1 AND i.state = 'received' AND i.id <> ALL($2)
 ORDER BY i.not_before, i.id LIMIT $3
"""

_PARTS = """
SELECT i.id, i.payload, i.not_before > clock_timestamp() AS waiting,
       i.received_at + make_interval(secs => $3) < clock_timestamp() AS late
  FROM channel_inbox i
  JOIN channel_inbox one ON one.id = $2 AND one.channel_id = $1 AND one.state = 'received'
 WHERE i.channel_id = $1 AND i.state = 'received' AND i.chat_key = one.chat_key AND i.thread_key = one.thread_key
   AND i.payload ->> 'album' = one.payload ->> 'album'
 ORDER BY i.id
   FOR NO KEY UPDATE OF i
"""

_FETCHED = """
UPDATE channel_inbox SET state = $4, payload = coalesce($3, payload), attempts = 0, not_before = clock_timestamp()
 WHERE id = ANY($2) AND channel_id = $1 AND state = ANY($5)
RETURNING id
"""

_ABSORBED = """
UPDATE channel_inbox
   SET state = $3, routed_at = clock_timestamp(), outcome = jsonb_build_object('reason', 'part of an album', 'event', $4::bigint)
 WHERE id = ANY($2) AND channel_id = $1 AND state = ANY($5)
"""

_PROGRESS = """
UPDATE channel_inbox
   SET payload = coalesce($3, payload), attempts = attempts + $4, not_before = clock_timestamp() + make_interval(secs => $5)
 WHERE id = ANY($2) AND channel_id = $1 AND state = 'received'
"""

# Lock order: rows of the inbox by id, then the channel, as intake does.
_FENCE = """
SELECT 1 FROM channel
 WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp() AND deleted_at IS NULL
   FOR SHARE
"""


@dataclass(frozen=True)
class Received:
    """An event that is not ready. `wait` is seconds until it is its turn, `attempts` how often its files were asked for.

    `event` is None for one that this version cannot read: the router says what becomes of it.
    """

    id: int
    event: Event | None
    account_key: str | None
    attempts: int
    wait: float


async def received(db: Database, channel_id: int, but: Collection[int], limit: int) -> list[Received]:
    """Events of the channel that are not ready, those whose turn comes first in front, without those in `but`."""
    rows = await db.read(lambda c: c.fetch(_RECEIVED, channel_id, list(but), limit))
    return [
        Received(row["id"], _event(row["payload"]), row["account_key"], row["attempts"], row["wait"]) for row in rows
    ]


async def gather(db: Database, lease: ChannelLease, inbox_id: int) -> Event | None:
    """Make the album of which this event is a part one message, in its first part's row; the other rows end.

    None while more parts may come. Raises LeaseLost.
    """

    async def work(connection: Connection) -> Event | None:
        rows = await connection.fetch(_PARTS, lease.channel_id, inbox_id, ALBUM_SECONDS_MAX)
        if not rows or (any(row["waiting"] for row in rows) and not any(row["late"] for row in rows)):
            return None
        # A part that this version cannot read is the router's to judge, by itself.
        parts = {row["id"]: event for row in rows if (event := _event(row["payload"])) is not None}
        first, *others = parts
        whole = album_of(list(parts.values()))
        await connection.execute(_PROGRESS, lease.channel_id, [first], whole.model_dump_json(), 0, 0.0)
        await _fetched(connection, lease.channel_id, others, None)
        await connection.execute(
            _ABSORBED,
            lease.channel_id,
            others,
            str(InboxState.IGNORED),
            first,
            list(INBOX.sources(InboxEvent.IGNORE)),
        )
        await _fence(connection, lease)
        return whole if first == inbox_id else None

    return await db.transact(work, idempotent=True)


async def put_off(db: Database, lease: ChannelLease, inbox_id: int, *, seconds: float = 0.0, tries: int = 0) -> None:
    """Put an event aside for so long, and count tries: before they are made, so that one that ends the process counts. Raises LeaseLost."""

    async def work(connection: Connection) -> None:
        await connection.execute(_PROGRESS, lease.channel_id, [inbox_id], None, tries, seconds)
        await _fence(connection, lease)

    await db.transact(work, idempotent=True)


async def keep(db: Database, lease: ChannelLease, inbox_id: int, event: Event, data: bytes) -> None:
    """Store a file's bytes with the event that names them. Raises LeaseLost."""

    async def work(connection: Connection) -> None:
        await blob.put(connection, data)
        await connection.execute(_PROGRESS, lease.channel_id, [inbox_id], event.model_dump_json(), 0, 0.0)
        await _fence(connection, lease)

    await db.transact(work, idempotent=True)


async def ready(
    db: Database,
    lease: ChannelLease,
    inbox_id: int,
    event: Event | None,
    told: Sequence[PlannedOp] = (),
    to: ReplyTo | None = None,
) -> bool:
    """Hand the event to the router (None: as it is stored), and tell its sender what is missing, in one transaction.

    False when it was ready before. Raises LeaseLost.
    """

    async def work(connection: Connection) -> bool:
        payload = None if event is None else event.model_dump_json()
        moved = await _fetched(connection, lease.channel_id, [inbox_id], payload)
        await _fence(connection, lease)
        if moved and to is not None:
            await plan(connection, addressed(told, to))
        return moved

    return await db.transact(work, idempotent=True)


async def _fetched(connection: Connection, channel_id: int, ids: Sequence[int], payload: str | None) -> bool:
    sources = list(INBOX.sources(InboxEvent.FETCHED))
    rows = await connection.fetch(_FETCHED, channel_id, list(ids), payload, str(InboxState.READY), sources)
    return bool(rows)


async def _fence(connection: Connection, lease: ChannelLease) -> None:
    if not await connection.fetchval(_FENCE, lease.channel_id, lease.token, lease.holder):
        raise LeaseLost(f"channel {lease.channel_id} is another's")


def _event(payload: Any) -> Event | None:
    try:
        return Event.model_validate_json(payload)
    except ValidationError:
        return None
