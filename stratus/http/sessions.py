"""Sessions: the list by attention, their title and archive, and the stop that works from any replica."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from stratus.domain.errors import NotFound
from stratus.http.auth import Caller, Me
from stratus.http.ids import SessionId
from stratus.http.services import Here, Services
from stratus.store import session as sessions
from stratus.store.session import SessionRow
from stratus.store.stop import stop as stop_runs

router = APIRouter(tags=["sessions"])


class _Description(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str | None = Field(default=None, max_length=200, pattern=r"^[^\x00-\x1f]*$")
    archived: bool | None = None


class _Stop(BaseModel):
    model_config = ConfigDict(extra="forbid")
    queued: bool = True


@router.get("/sessions")
async def listing(
    here: Here,
    me: Me,
    query: Annotated[str | None, Query(max_length=200)] = None,
    agent: Annotated[str | None, Query(max_length=64)] = None,
    archived: bool = False,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Those that wait for somebody first, then by activity."""
    rows = await sessions.listing(
        here.db,
        owner_id=None if me.principal.may_see_all else me.principal.id,
        agent_id=agent,
        archived=archived,
        query=query,
        limit=limit,
    )
    shown = [
        {
            "id": row.id,
            "agent": row.agent_id,
            "title": row.title,
            "state": row.open_state or "idle",
            "messages": row.message_seq,
            "created_at": row.created_at,
            "active_at": row.active_at,
            "archived_at": row.archived_at,
        }
        for row in rows
    ]
    return {"sessions": shown}


@router.patch("/sessions/{session_id:path}")
async def describe(session_id: SessionId, body: _Description, here: Here, me: Me) -> dict[str, Any]:
    """Rename, archive or take out of the archive."""
    await _own(here, me, session_id)
    await sessions.describe(here.db, session_id, title=body.title, archived=body.archived)
    here.hints.send("session", session_id)
    row = await _own(here, me, session_id)
    return {"id": row.id, "agent": row.agent_id, "title": row.title, "archived_at": row.archived_at}


@router.post("/sessions/{session_id:path}/stop")
async def stop(session_id: SessionId, here: Here, me: Me, body: _Stop | None = None) -> dict[str, Any]:
    """End the running or waiting turn, on whichever replica it is, with all that it delegated; and what is queued unless `queued` is false."""
    await _own(here, me, session_id)
    queued = body.queued if body is not None else True
    stopped = await stop_runs(here.db, session_id, str(me.principal.public_id), queued=queued)
    here.hints.send("cancel", session_id)
    here.hints.send("session", session_id)
    here.hints.send("runs")
    here.hints.send("family")
    return {"running": stopped.running, "canceled": stopped.canceled}


async def _own(here: Services, me: Caller, session_id: str) -> SessionRow:
    row = await sessions.get(here.db, session_id)
    if row is None:
        raise NotFound("there is no such thing, or it is not yours")
    me.require(row.owner_id)
    return row
