"""Replicas as people see them: who is there, since when, and seen how long ago. No safety rests on these rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from stratus.store.database import Connection, Database
from stratus.store.log import encode

_REGISTER = """
INSERT INTO replica (id, host, pid, version, roles, capabilities) VALUES ($1, $2, $3, $4, $5::jsonb, $6)
    ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp()
"""

_SEEN = "UPDATE replica SET seen_at = clock_timestamp(), draining = $2 WHERE id = $1 RETURNING id"

_LIST = """
SELECT id, host, pid, version, roles, capabilities, started_at, seen_at, draining,
       greatest(extract(epoch FROM stratus_now() - seen_at), 0)::float8 AS unseen_seconds
  FROM replica ORDER BY started_at, id
"""

_PRUNE = "DELETE FROM replica WHERE seen_at < stratus_now() - interval '1 day'"


@dataclass(frozen=True)
class ReplicaRow:
    """One process. `id` is its boot identity, `capabilities` what it has of what agents need; `unseen_seconds` the time since it was seen."""

    id: UUID
    host: str
    pid: int
    version: str
    roles: Mapping[str, Any]
    capabilities: Sequence[str]
    started_at: datetime
    seen_at: datetime
    draining: bool
    unseen_seconds: float


async def register(
    db: Database,
    id: UUID,
    *,
    host: str,
    pid: int,
    version: str,
    roles: Mapping[str, Any],
    capabilities: Sequence[str] = (),
) -> None:
    """Enter this process, and drop those that were not seen for a day."""

    async def work(connection: Connection) -> None:
        await connection.execute(_REGISTER, id, host, pid, version, encode(roles), list(capabilities))
        await connection.execute(_PRUNE)

    await db.transact(work, idempotent=True)


async def seen(db: Database, id: UUID, draining: bool) -> bool:
    """A sign of life. False when the row is gone (unseen for a day, as after a suspended machine): register again."""

    async def work(connection: Connection) -> bool:
        return await connection.fetchval(_SEEN, id, draining) is not None

    return await db.transact(work, idempotent=True, autocommit=True)


async def listing(db: Database) -> list[ReplicaRow]:
    """All of the last day, oldest first."""
    rows = await db.read(lambda c: c.fetch(_LIST))
    return [ReplicaRow(**{**row, "roles": orjson.loads(row["roles"])}) for row in rows]
