"""The outbox for operators: what was sent, and the verdict on what cannot be known."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict

from stratus.domain.errors import Conflict
from stratus.domain.outbox import OUTBOX, OpEvent, OpState
from stratus.http.auth import Admin
from stratus.http.services import Here
from stratus.store import outbox

_VERDICTS = {
    "sent": (OpEvent.EVIDENCE, OpState.SENT),
    "resend": (OpEvent.RESEND, OpState.PENDING),
    "cancel": (OpEvent.CANCEL, OpState.CANCELED),
}

router = APIRouter(prefix="/outbox", tags=["outbox"])


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    action: Literal["sent", "resend", "cancel"]


@router.get("")
async def listing(
    here: Here, me: Admin, state: OpState | None = None, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> dict[str, Any]:
    """The newest ops, of one state if given."""
    return {"ops": await outbox.listing(here.db, None if state is None else str(state), limit)}


@router.post("/{op_id}")
async def settle(op_id: Annotated[int, Path(ge=1, lt=2**63)], body: _Verdict, here: Here, me: Admin) -> dict[str, Any]:
    """Say that an unknown op was sent, send it again, or cancel it; an op that still waits can be canceled as well."""
    event, to = _VERDICTS[body.action]
    by = str(me.principal.public_id)
    channel = await outbox.settle_by_operator(here.db, op_id, str(to), OUTBOX.sources(event), by)
    if channel is None:
        raise Conflict(f"op {op_id} is not there, or is in no state from which it could be {to}")
    here.hints.send("outbox", str(channel))
    return {"id": op_id, "state": str(to)}
