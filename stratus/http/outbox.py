"""The outbox for operators: what was sent, the evidence on what cannot be known, and the verdict on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from stratus.domain.outbox import OpState
from stratus.http.auth import Admin
from stratus.http.services import Here
from stratus.store import outbox_view
from stratus.store.outbox_view import Filter
from stratus.store.verdict import Verdict, settle

_OpId = Annotated[int, Path(ge=1, lt=2**63)]

router = APIRouter(prefix="/outbox", tags=["outbox"])


class _Query(BaseModel):
    """`older` in seconds; `before` is the `next` of the page before."""

    model_config = ConfigDict(extra="forbid")
    state: OpState | None = None
    channel: str | None = Field(default=None, max_length=200)
    run: UUID | None = None
    older: float | None = Field(default=None, ge=0, le=10**9)
    before: int | None = Field(default=None, ge=1, lt=2**63)
    limit: int = Field(default=100, ge=1, le=500)


class _Verdict(BaseModel):
    """`message_id` is the message's id on the platform, for `sent`, where it is known."""

    model_config = ConfigDict(extra="forbid")
    action: Literal["sent", "resend", "cancel"]
    note: str = Field(default="", max_length=500)
    message_id: str | None = Field(default=None, min_length=1, max_length=200)

    @model_validator(mode="after")
    def _id_goes_with_sent(self) -> _Verdict:
        if self.message_id is not None and self.action != "sent":
            raise ValueError("message_id goes with the action sent")
        return self


@router.get("")
async def listing(here: Here, me: Admin, which: Annotated[_Query, Query()]) -> dict[str, Any]:
    """The newest ops that fit; `next` continues the page, null at the end."""
    found = await outbox_view.listing(here.db, Filter(**which.model_dump(mode="json")))
    return {"ops": found, "next": found[-1]["id"] if len(found) == which.limit else None}


@router.get("/{op_id}")
async def show(op_id: _OpId, here: Here, me: Admin) -> dict[str, Any]:
    """One op with its attempts, the verdicts on it and its neighbours in the lane."""
    return await outbox_view.evidence(here.db, op_id)


@router.post("/{op_id}")
async def pass_verdict(op_id: _OpId, body: _Verdict, here: Here, me: Admin) -> dict[str, Any]:
    """Say that an unknown op was sent, send it again (people may then see it twice), or cancel it.

    One that still waits can be canceled as well. The verdict is recorded with who passed it.
    """
    verdict = Verdict(
        op_id=op_id,
        action=body.action,
        by=str(me.principal.public_id),
        key=here.ids.uuid(),
        note=body.note,
        message_id=body.message_id,
    )
    settled = await settle(here.db, verdict)
    here.hints.send("outbox", str(settled.channel_id))
    return {"id": op_id, "state": settled.state}
