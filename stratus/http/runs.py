"""Runs: what became of one, by its id or by the idempotency key that made it; and cancelling it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from stratus.domain.errors import NotFound
from stratus.http.auth import Caller, Me
from stratus.http.ids import SessionId, public_id, scoped
from stratus.http.services import Here
from stratus.store import view
from stratus.store.stop import stop
from stratus.store.view import RunView

router = APIRouter(tags=["runs"])


@router.get("/runs/{run}")
async def read(run: str, here: Here, me: Me) -> dict[str, Any]:
    """State, reply, files, error, usage, and the delivery of its ops."""
    return _shown(_own(me, await view.run_view(here.db, public_id(run))))


@router.get("/sessions/{session_id:path}/turns/{key:path}")
async def read_by_key(session_id: SessionId, key: str, here: Here, me: Me) -> dict[str, Any]:
    """The run that the caller's idempotency key made."""
    return _shown(_own(me, await view.run_by_key(here.db, session_id, scoped(me.principal.public_id, key))))


@router.post("/runs/{run}/cancel")
async def cancel(run: str, here: Here, me: Me) -> dict[str, Any]:
    """Cancel this run only: at once while it waits, else by asking its worker. An ended run stays as it is."""
    found = _own(me, await view.run_view(here.db, public_id(run)))
    stopped = await stop(here.db, found.session_id, str(me.principal.public_id), queued=True, run=found.run)
    here.hints.send("cancel", found.session_id)
    here.hints.send("session", found.session_id)
    here.hints.send("runs")
    return {"running": stopped.running, "canceled": stopped.canceled}


def _own(me: Caller, found: RunView | None) -> RunView:
    if found is None:
        raise NotFound("there is no such thing, or it is not yours")
    me.require(found.owner_id)
    return found


def _shown(run: RunView) -> dict[str, Any]:
    values = asdict(run)
    del values["owner_id"]
    values["session"], values["agent"] = values.pop("session_id"), values.pop("agent_id")
    if run.error is not None:
        values["error"] = {"code": run.error.get("code"), "message": run.error.get("message")}
    return values
