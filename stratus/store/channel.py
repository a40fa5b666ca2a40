"""Channels as operators configure them, and as they see how each does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.errors import Conflict, NotFound
from stratus.store.database import Connection, Database
from stratus.store.log import encode

# Lock order: channel rows by id, then their outbox rows by id (state-machines.md §10).

_CREATE = """
INSERT INTO channel (public_id, platform, name, agent_id, config, credentials) VALUES ($1, $2, $3, $4, $5::jsonb, $6)
    ON CONFLICT (name) WHERE deleted_at IS NULL DO NOTHING
"""

_LIST = """
SELECT id, public_id, platform, name, agent_id, config, credentials, enabled, config_revision, account_key, running_revision, health,
       last_error, created_at, CASE WHEN lease_until > stratus_now() THEN runtime_replica END AS replica
  FROM channel WHERE deleted_at IS NULL ORDER BY name
"""

_GET = """
SELECT id, public_id, platform, name, agent_id, config, credentials, enabled, config_revision, account_key, running_revision, health,
       last_error, created_at, CASE WHEN lease_until > stratus_now() THEN runtime_replica END AS replica
  FROM channel
 WHERE deleted_at IS NULL AND (public_id::text = $1 OR name = $1)
 ORDER BY (public_id::text = $1) DESC LIMIT 1
"""

# What is new may lead to another account: until the owner has asked, nothing pushed can be told whose it is.
_CONFIGURE = """
UPDATE channel
   SET agent_id = coalesce($2::text, agent_id), config = coalesce($3::jsonb, config), credentials = coalesce($4::bytea, credentials),
       config_revision = config_revision + 1,
       health = CASE WHEN $3 IS NULL AND $4 IS NULL THEN health ELSE health || '{"account_unproven": true}' END
 WHERE id = $1 AND deleted_at IS NULL
RETURNING config_revision
"""

_SET_ENABLED = "UPDATE channel SET enabled = $2 WHERE id = $1 AND deleted_at IS NULL RETURNING id"

_DELETE = """
UPDATE channel SET deleted_at = coalesce(deleted_at, clock_timestamp()), enabled = false, credentials = NULL WHERE id = $1 RETURNING id
"""

_CANCEL_OPS = """
WITH open AS (
    SELECT id FROM channel_outbox WHERE channel_id = $1 AND state = 'pending' ORDER BY id FOR UPDATE
)
UPDATE channel_outbox o
   SET state = 'canceled', settled_at = clock_timestamp(), error = jsonb_build_object('code', 'channel_deleted')
  FROM open p WHERE o.id = p.id AND o.state = 'pending'
"""


@dataclass(frozen=True)
class ChannelRow:
    """A channel as configured, and how it does. `replica` owns its runtime now; `credentials` are sealed."""

    id: int
    public_id: UUID
    platform: str
    name: str
    agent_id: str
    config: Mapping[str, Any]
    credentials: bytes | None = field(repr=False)
    enabled: bool
    config_revision: int
    account_key: str | None
    running_revision: int | None
    health: Mapping[str, Any]
    last_error: str | None
    created_at: datetime
    replica: str | None

    def account_proven(self) -> bool:
        """Whether `account_key` is known to be the account of this very configuration."""
        connected = self.running_revision == self.config_revision and self.health.get("state") == "connected"
        return connected or "account_unproven" not in self.health


async def create(
    db: Database,
    public_id: UUID,
    platform: str,
    name: str,
    agent_id: str,
    config: Mapping[str, Any],
    credentials: bytes | None,
) -> ChannelRow:
    """Add a channel. `public_id` comes from the caller, who has sealed `credentials` for it. Raises Conflict for a name in use."""

    async def work(connection: Connection) -> ChannelRow:
        await connection.execute(_CREATE, public_id, platform, name, agent_id, encode(config), credentials)
        row = await connection.fetchrow(_GET, str(public_id))
        if row is None:
            raise Conflict(f"there is a channel named {name!r} already")
        return channel_row(row)

    return await db.transact(work, idempotent=True)


async def listing(db: Database) -> list[ChannelRow]:
    """All channels that are not deleted, by name."""
    return [channel_row(row) for row in await db.read(lambda c: c.fetch(_LIST))]


async def get(db: Database, key: str) -> ChannelRow:
    """One channel by its public id or its name. Raises NotFound."""
    row = await db.read(lambda c: c.fetchrow(_GET, key))
    if row is None:
        raise NotFound(f"there is no channel {key!r}")
    return channel_row(row)


async def configure(
    db: Database,
    channel_id: int,
    *,
    agent_id: str | None = None,
    config: Mapping[str, Any] | None = None,
    credentials: bytes | None = None,
) -> int:
    """Change what is not None; the owner re-applies it. Returns the new revision. Raises NotFound."""
    options = None if config is None else encode(config)

    async def work(connection: Connection) -> int:
        revision: int | None = await connection.fetchval(_CONFIGURE, channel_id, agent_id, options, credentials)
        if revision is None:
            raise NotFound("there is no such channel")
        return revision

    return await db.transact(work, idempotent=True)  # a repeat only makes the owner apply the same again


async def set_enabled(db: Database, channel_id: int, enabled: bool) -> None:
    """Start or stop a channel. Raises NotFound."""

    async def work(connection: Connection) -> None:
        if await connection.fetchval(_SET_ENABLED, channel_id, enabled) is None:
            raise NotFound("there is no such channel")

    await db.transact(work, idempotent=True)


async def delete(db: Database, channel_id: int) -> None:
    """End a channel: its credentials are gone, what waits to be sent is canceled, its name is free. Raises NotFound."""

    async def work(connection: Connection) -> None:
        if await connection.fetchval(_DELETE, channel_id) is None:
            raise NotFound("there is no such channel")
        await connection.execute(_CANCEL_OPS, channel_id)

    await db.transact(work, idempotent=True)


def channel_row(row: Mapping[str, Any]) -> ChannelRow:
    """The row of a statement that selected all of its columns."""
    names = set(ChannelRow.__dataclass_fields__) - {"config", "health"}
    return ChannelRow(
        **{name: row[name] for name in names}, config=orjson.loads(row["config"]), health=orjson.loads(row["health"])
    )
