"""The inbox: batched intake with dedup and cursor, batches for the router, and what became of each row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from pydantic import ValidationError

from stratus.channel.values import Event, Sender
from stratus.domain.errors import LeaseLost
from stratus.domain.inbox import INBOX, MAX_ROUTE_ATTEMPTS, ROUTE_WINDOW_SECONDS, InboxEvent, InboxState
from stratus.domain.media import ALBUM_SECONDS, lifted, waits
from stratus.store import blob
from stratus.store.database import Connection, Database

# A namespace for the routers' advisory transaction locks, beside which the channel's id is the key.
ROUTE_LOCK = 7305

# Keys are unique for one account. A channel that has had several, kept apart from its first on, puts the others' names before them.
_INTAKE = """
INSERT INTO channel_inbox
       (channel_id, event_key, kind, version, chat_key, thread_key, sender, payload, account_key, state, not_before)
SELECT c.id, CASE WHEN by.account <> c.health ->> 'first_account' THEN by.account || '@' ELSE '' END || e.event_key,
       e.kind, e.version, e.chat_key, e.thread_key, e.sender, e.payload, by.account, e.state,
       clock_timestamp() + make_interval(secs => e.wait)
  FROM unnest($1::bigint[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::jsonb[], $8::jsonb[], $9::text[], $10::text[],
              $11::float8[])
       WITH ORDINALITY
       AS e(channel_id, event_key, kind, version, chat_key, thread_key, sender, payload, state, account, wait, ordinal)
  JOIN channel c ON c.id = e.channel_id AND c.deleted_at IS NULL
 CROSS JOIN LATERAL (SELECT coalesce(e.account, c.account_key) AS account) AS by
 ORDER BY e.ordinal
    ON CONFLICT (channel_id, event_key) DO NOTHING
RETURNING id, channel_id
"""

# A part that has come later starts the wait for the next anew, for all that are there.
_NEXT_PART = """
WITH part AS (
    SELECT i.id FROM channel_inbox i
      JOIN unnest($1::bigint[], $2::text[], $3::text[], $4::text[]) AS a(channel_id, chat_key, thread_key, album)
        ON i.channel_id = a.channel_id AND i.chat_key = a.chat_key AND i.thread_key = a.thread_key AND i.payload ->> 'album' = a.album
     WHERE i.state = 'received'
     ORDER BY i.id
       FOR NO KEY UPDATE OF i
)
UPDATE channel_inbox i SET not_before = greatest(i.not_before, clock_timestamp() + make_interval(secs => $5))
  FROM part p WHERE i.id = p.id AND i.state = 'received'
"""

_ADVANCE = """
UPDATE channel SET cursor = $4::jsonb
 WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp()
RETURNING id
"""

_CHANNELS = """
SELECT c.id FROM channel c
 WHERE EXISTS (SELECT 1 FROM channel_inbox i WHERE i.channel_id = c.id AND i.state = 'ready' AND i.not_before <= stratus_now())
 ORDER BY c.id
"""

_FACTS = (
    "SELECT id, public_id, platform, agent_id, config, account_key FROM channel WHERE id = $1 AND deleted_at IS NULL"
)

_LOCK = "SELECT pg_try_advisory_xact_lock($1, $2::int)"

_BATCH = """
WITH held AS MATERIALIZED (
    SELECT chat_key, thread_key, min(id) AS id FROM channel_inbox
     WHERE channel_id = $1 AND (state = 'received' OR (state = 'ready' AND attempts > 0))
       AND (state = 'received' OR not_before > stratus_now())
     GROUP BY chat_key, thread_key
)
SELECT i.id, i.event_key, i.chat_key, i.thread_key, i.sender, i.payload, i.account_key, i.received_at
  FROM channel_inbox i
 WHERE i.channel_id = $1 AND i.state = 'ready' AND i.not_before <= stratus_now()
   AND NOT EXISTS (SELECT 1 FROM held h WHERE h.chat_key = i.chat_key AND h.thread_key = i.thread_key AND h.id < i.id)
 ORDER BY i.id
 LIMIT $2
"""

_SETTLE = """
UPDATE channel_inbox i
   SET state = s.state, routed_at = clock_timestamp(), run_id = s.run_id, outcome = s.outcome
  FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::jsonb[]) AS s(id, state, run_id, outcome)
 WHERE i.id = s.id AND i.state = ANY($5)
"""

# Not put aside: it has cost no attempt, and those behind it go on.
_DEFER = """
UPDATE channel_inbox SET not_before = clock_timestamp() + make_interval(secs => $2) WHERE id = ANY($1) AND state = 'ready'
"""

_BACK_OFF = """
UPDATE channel_inbox
   SET attempts = attempts + 1,
       not_before = clock_timestamp() + make_interval(secs => least(60, power(2, attempts))),
       state = CASE WHEN gone THEN 'dead' ELSE state END,
       routed_at = CASE WHEN gone THEN clock_timestamp() END,
       outcome = jsonb_build_object('code', 'route_failed', 'error', $2::text)
  FROM (SELECT id AS key, attempts + 1 >= $3 OR received_at < clock_timestamp() - make_interval(secs => $4) AS gone
          FROM channel_inbox WHERE id = $1 AND state = 'ready') AS verdict
 WHERE id = verdict.key
RETURNING state
"""


@dataclass(frozen=True)
class ChannelLease:
    """Proof of owning a channel's runtime: compared for equality in every write."""

    channel_id: int
    token: int
    holder: UUID


@dataclass(frozen=True)
class Arrival:
    """An event for a channel, to be stored. `account` received it; None: whichever the channel has now."""

    channel_id: int
    event: Event
    account: str | None = None


@dataclass(frozen=True)
class ReadyEvent:
    """A stored event that waits for the router; `account_key` is the bot that received it.

    Of one that this version cannot read (`readable` False) `event` has only its key, its place and its sender.
    """

    id: int
    event: Event
    account_key: str | None
    received_at: datetime
    readable: bool = True


@dataclass(frozen=True)
class ChannelFacts:
    """What routing needs of a channel."""

    id: int
    public_id: UUID
    platform: str
    agent_id: str
    config: Mapping[str, Any]
    account_key: str | None = None


@dataclass(frozen=True)
class Settled:
    """What became of an inbox row."""

    inbox_id: int
    state: InboxState
    run_id: int | None
    outcome: Mapping[str, Any]


async def intake(
    db: Database,
    arrivals: Sequence[Arrival],
    *,
    lease: ChannelLease | None = None,
    cursor: Mapping[str, Any] | None = None,
) -> int:
    """Store events, and with them the cursor that covers them. Returns how many were new.

    A repeat is a no-op by the unique key, so a lost commit answer is answered by doing it again. Raises LeaseLost when `cursor` comes
    from a replica that no longer owns the channel: nothing is stored then, the new owner reads it again.
    """

    async def work(connection: Connection) -> int:
        new = await _insert(connection, arrivals) if arrivals else 0
        if lease is not None and cursor is not None:
            moved = await connection.fetchval(
                _ADVANCE, lease.channel_id, lease.token, lease.holder, orjson.dumps(cursor).decode()
            )
            if moved is None:
                raise LeaseLost(f"channel {lease.channel_id} is another's")
        return new

    return await db.transact(work, idempotent=True, pool="ingress")


async def _insert(connection: Connection, arrivals: Sequence[Arrival]) -> int:
    light = [lifted(arrival.event.attachments) for arrival in arrivals]
    await blob.put_all(connection, [data for _, blobs in light for data in blobs])
    events = [
        arrival.event.model_copy(update={"attachments": files}) if blobs or files else arrival.event
        for arrival, (files, blobs) in zip(arrivals, light, strict=True)
    ]
    rows = await connection.fetch(
        _INTAKE,
        [arrival.channel_id for arrival in arrivals],
        [event.key for event in events],
        [event.kind for event in events],
        [event.version for event in events],
        [event.chat for event in events],
        [event.thread for event in events],
        [event.sender.model_dump_json() for event in events],
        [event.model_dump_json() for event in events],
        [str(InboxState.RECEIVED if waits(event) else InboxState.READY) for event in events],
        [arrival.account for arrival in arrivals],
        [ALBUM_SECONDS if waits(event) and event.album is not None else 0.0 for event in events],
    )
    await _part_of_an_album(connection, [(arrivals[at].channel_id, one) for at, one in enumerate(events)])
    return len(rows)


async def _part_of_an_album(connection: Connection, events: Sequence[tuple[int, Event]]) -> None:
    albums = {(channel_id, one.chat, one.thread, one.album) for channel_id, one in events if one.album and waits(one)}
    if albums:
        await connection.execute(
            _NEXT_PART, *[list(column) for column in zip(*sorted(albums), strict=True)], ALBUM_SECONDS
        )


async def channels_with_work(db: Database) -> list[int]:
    """Channels that have events due for the router."""
    return [row["id"] for row in await db.read(lambda c: c.fetch(_CHANNELS))]


async def take_batch(connection: Connection, channel_id: int, limit: int) -> list[ReadyEvent] | None:
    """Up to `limit` due events in order, for the one router that holds the channel's lock in this transaction; None when another does."""
    if not await connection.fetchval(_LOCK, ROUTE_LOCK, channel_id):
        return None
    return [_ready(row) for row in await connection.fetch(_BATCH, channel_id, limit)]


def _ready(row: Mapping[str, Any]) -> ReadyEvent:
    try:
        event, readable = Event.model_validate_json(row["payload"]), True
    except ValidationError:
        event, readable = _outline(row), False
    return ReadyEvent(row["id"], event, row["account_key"], row["received_at"], readable)


def _outline(row: Mapping[str, Any]) -> Event:
    try:
        sender = Sender.model_validate_json(row["sender"])
    except ValidationError:
        sender = Sender(id="")
    return Event(key=row["event_key"], kind="other", chat=row["chat_key"], thread=row["thread_key"], sender=sender)


async def facts(connection: Connection, channel_id: int) -> ChannelFacts | None:
    """The channel as it is configured now; None once it is deleted."""
    row = await connection.fetchrow(_FACTS, channel_id)
    if row is None:
        return None
    config = orjson.loads(row["config"])
    return ChannelFacts(row["id"], row["public_id"], row["platform"], row["agent_id"], config, row["account_key"])


async def settle(connection: Connection, settled: Sequence[Settled]) -> None:
    """Move rows to their terminal states, in the transaction that made their runs."""
    if not settled:
        return
    await connection.execute(
        _SETTLE,
        [one.inbox_id for one in settled],
        [str(one.state) for one in settled],
        [one.run_id for one in settled],
        [orjson.dumps(one.outcome).decode() for one in settled],
        list(INBOX.sources(InboxEvent.ROUTE)),
    )


async def defer(connection: Connection, inbox_ids: Sequence[int], seconds: float) -> None:
    """Let ready events come again in so many seconds."""
    if inbox_ids:
        await connection.execute(_DEFER, list(inbox_ids), seconds)


async def back_off(
    db: Database, inbox_id: int, error: str, *, on_death: Callable[[Connection], Awaitable[None]] | None = None
) -> InboxState | None:
    """Put a row that made the router raise aside for 1, 2, 4 … seconds, or bury it after the last try. Returns its state now.

    `on_death` runs in the transaction that buries it.
    """

    async def work(connection: Connection) -> InboxState | None:
        state = await connection.fetchval(
            _BACK_OFF, inbox_id, error[:500], MAX_ROUTE_ATTEMPTS, float(ROUTE_WINDOW_SECONDS)
        )
        if state == InboxState.DEAD and on_death is not None:
            await on_death(connection)
        return None if state is None else InboxState(state)

    return await db.transact(work)
