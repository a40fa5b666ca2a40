"""Agents: who there is to talk to; stored, changed and taken away as agent files."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from stratus.agents.souls import parse, render
from stratus.domain.errors import BadInput
from stratus.http.auth import Admin, Me
from stratus.http.errors import AgentNotFound
from stratus.http.services import Here, Services
from stratus.store import agent as agents
from stratus.store.agent import AgentRow

router = APIRouter(prefix="/agents", tags=["agents"])


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid")
    source: str = Field(max_length=200_000)


@router.get("")
async def listing(here: Here, me: Me) -> dict[str, Any]:
    """Agents by id, and the model providers that work here."""
    return {"agents": [_shown(row) for row in await agents.listing(here.db)], "providers": list(here.providers())}


@router.get("/{agent_id}")
async def read(agent_id: str, here: Here, me: Admin) -> dict[str, Any]:
    """One agent with its file."""
    row = await required(here, agent_id)
    return {**_shown(row), "source": render(row.definition)}


@router.put("/{agent_id}")
async def write(agent_id: str, body: _Source, here: Here, me: Admin) -> dict[str, Any]:
    """Store an agent file; existing sessions have it on their next turn."""
    definition = parse(body.source, source=f"agent {agent_id}")
    if definition.id != agent_id:
        raise BadInput(f"the file says `id: {definition.id}`, the address {agent_id}")
    revision = await agents.upsert(here.db, definition)
    here.hints.send("agents", agent_id)
    here.hints.send("runs")
    return {"id": agent_id, "revision": revision}


@router.delete("/{agent_id}", status_code=204)
async def delete(agent_id: str, here: Here, me: Admin) -> None:
    """Take an agent away. Its sessions stay readable."""
    if not await agents.delete(here.db, agent_id):
        raise AgentNotFound(f"there is no agent {agent_id}")
    here.hints.send("agents", agent_id)


async def required(here: Services, agent_id: str) -> AgentRow:
    """The agent. Raises AgentNotFound."""
    row = await agents.get(here.db, agent_id)
    if row is None:
        raise AgentNotFound(f"there is no agent {agent_id}")
    return row


def _shown(row: AgentRow) -> dict[str, Any]:
    definition = row.definition
    return {
        "id": row.id,
        "name": definition.name or row.id,
        "model": definition.model,
        "tools": definition.tools,
        "busy": definition.busy,
        "revision": row.revision,
        "updated_at": row.updated_at,
    }
