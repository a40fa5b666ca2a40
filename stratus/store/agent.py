"""Agents: their definitions as they are now, counted in revisions; runs read them when they are claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stratus.domain.agent import AgentDefinition, BusyPolicy
from stratus.domain.errors import Conflict
from stratus.store.database import Connection, Database
from stratus.store.log import encode

# In order of their ids, so that two replicas that apply the same folder never wait for each other in a circle.
_WRITE = """
INSERT INTO agent (id, revision, definition, needs)
SELECT g.id, 1, g.definition, string_to_array(g.needs, ' ')
  FROM unnest($1::text[], $2::jsonb[], $3::text[]) AS g(id, definition, needs) ORDER BY g.id
    ON CONFLICT (id) DO UPDATE
   SET revision = agent.revision + 1, definition = excluded.definition, needs = excluded.needs, enabled = true,
       updated_at = clock_timestamp()
 WHERE agent.definition IS DISTINCT FROM excluded.definition OR agent.needs <> excluded.needs OR NOT agent.enabled
RETURNING id
"""

# A statement of its own: what another replica has just written is not in the snapshot of the one above.
_REVISIONS = "SELECT id, revision FROM agent WHERE id = ANY($1::text[])"

_LIST = "SELECT id, revision, definition, created_at, updated_at FROM agent WHERE enabled ORDER BY id"

_GET = "SELECT id, revision, definition, created_at, updated_at FROM agent WHERE id = $1 AND enabled"

_BUSY = "SELECT id, definition ->> 'busy' AS busy FROM agent WHERE id = ANY($1::text[]) AND enabled"

_USED_BY = "SELECT name FROM channel WHERE agent_id = $1 AND deleted_at IS NULL ORDER BY name"

# The row stays: its revision goes on counting when the agent comes back.
_DELETE = "UPDATE agent SET enabled = false, updated_at = clock_timestamp() WHERE id = $1 AND enabled RETURNING id"


@dataclass(frozen=True)
class AgentRow:
    """An agent as it is stored."""

    id: str
    revision: int
    definition: AgentDefinition
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class Applied:
    """What became of a definition: its revision now, and whether this call made that revision."""

    id: str
    revision: int
    changed: bool


async def apply(db: Database, definitions: Sequence[AgentDefinition]) -> list[Applied]:
    """Store definitions, answering in the given order. One that is equal to what is stored makes no new revision."""

    async def work(connection: Connection) -> list[Applied]:
        ids = [definition.id for definition in definitions]
        bodies = [encode(definition.model_dump(mode="json")) for definition in definitions]
        needs = [" ".join(definition.needs()) for definition in definitions]
        written = {row["id"] for row in await connection.fetch(_WRITE, ids, bodies, needs)}
        revisions = {row["id"]: row["revision"] for row in await connection.fetch(_REVISIONS, ids)}
        return [Applied(one, revisions[one], one in written) for one in ids]

    return await db.transact(work, idempotent=True)


async def upsert(db: Database, definition: AgentDefinition) -> int:
    """Store one definition; returns its revision."""
    [applied] = await apply(db, [definition])
    return applied.revision


async def listing(db: Database) -> list[AgentRow]:
    """All agents, by id."""
    return [_row(dict(row)) for row in await db.read(lambda c: c.fetch(_LIST))]


async def get(db: Database, agent_id: str) -> AgentRow | None:
    """One agent, or None."""
    row = await db.read(lambda c: c.fetchrow(_GET, agent_id), pool="ingress")
    return None if row is None else _row(dict(row))


async def exists(connection: Connection, agent_id: str) -> bool:
    """Whether there is such an agent now."""
    return await connection.fetchrow(_GET, agent_id) is not None


async def busy_policies(connection: Connection, agent_ids: Sequence[str]) -> dict[str, BusyPolicy]:
    """What each of the agents wants done with messages that come while it works; an agent that is not there has none."""
    rows = await connection.fetch(_BUSY, sorted(set(agent_ids)))
    return {row["id"]: row["busy"] for row in rows if row["busy"] is not None}


async def ids(connection: Connection) -> list[str]:
    """The ids of all agents there are now, in order."""
    return [row["id"] for row in await connection.fetch(_LIST)]


async def delete(db: Database, agent_id: str) -> bool:
    """Take an agent away; False when there is none. Its sessions stay readable, and answer again once it is applied anew.

    Raises Conflict while a channel answers with it.
    """

    async def work(connection: Connection) -> bool:
        used = [row["name"] for row in await connection.fetch(_USED_BY, agent_id)]
        if used:
            raise Conflict(f"agent {agent_id} answers on channel {', '.join(used)}; remove or re-point that first")
        return await connection.fetchval(_DELETE, agent_id) is not None

    return await db.transact(work, idempotent=True)


def _row(row: Mapping[str, Any]) -> AgentRow:
    return AgentRow(**{**row, "definition": AgentDefinition.model_validate_json(row["definition"])})
