"""Runs: what became of one, by its id or by the idempotency key that made it; its files; and cancelling it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from stratus.domain.errors import NotFound
from stratus.http.auth import Caller, Me
from stratus.http.ids import SessionId, public_id, scoped
from stratus.http.services import Here, Services
from stratus.store import blob, view
from stratus.store.stop import stop
from stratus.store.view import RunView

_MIME = re.compile(r"[\w.+-]+/[\w.+-]+")

router = APIRouter(tags=["runs"])


@router.get("/runs/{run}")
async def read(run: str, here: Here, me: Me) -> dict[str, Any]:
    """State, reply, files, error, usage, and the delivery of its ops; of a run that a turn took up, those of that turn."""
    return _shown(_own(me, await view.run_view(here.db, public_id(run))))


@router.get("/sessions/{session_id:path}/turns/{key:path}")
async def read_by_key(session_id: SessionId, key: str, here: Here, me: Me) -> dict[str, Any]:
    """The run that the caller's idempotency key made, whatever has happened in the session since."""
    return _shown(_own(me, await view.run_by_key(here.db, session_id, scoped(me.principal.public_id, key))))


@router.get("/runs/{run}/files/{sha256}")
async def read_file(run: str, sha256: str, here: Here, me: Me) -> Response:
    """The bytes of a file that the run's tools produced, always as a download: what a tool made is shown by no page of ours."""
    found = _own(me, await view.run_view(here.db, public_id(run)))
    file = next((one for one in found.files if one["sha256"] == sha256), None)
    first = None if file is None else await blob.chunk(here.db, bytes.fromhex(sha256), 0)
    if file is None or first is None:
        raise NotFound("there is no such thing, or it is not yours")
    headers = {
        "Content-Length": str(file["size"]),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file['name'], safe='')}",
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    mime = file["mime"] if _MIME.fullmatch(file["mime"]) else "application/octet-stream"
    return StreamingResponse(_pieces(here, bytes.fromhex(sha256), first), headers=headers, media_type=mime)


async def _pieces(here: Services, digest: bytes, first: bytes) -> AsyncGenerator[bytes, None]:
    piece: bytes | None = first
    number = 0
    while piece is not None:
        yield piece
        number += 1
        piece = await blob.chunk(here.db, digest, number)


@router.post("/runs/{run}/cancel")
async def cancel(run: str, here: Here, me: Me) -> dict[str, Any]:
    """Cancel this run only: at once while it waits, else by asking its worker. An ended run stays as it is."""
    found = _own(me, await view.run_view(here.db, public_id(run)))
    stopped = await stop(here.db, found.session_id, str(me.principal.public_id), queued=True, run=found.run)
    here.hints.send("cancel", found.session_id)
    here.hints.send("session", found.session_id)
    here.hints.send("runs")
    here.hints.send("family")
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
