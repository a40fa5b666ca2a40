"""Approvals: what turns ask people, and their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from stratus.domain.approval import ApprovalState
from stratus.http.auth import Caller, Me
from stratus.http.ids import public_id
from stratus.http.services import Here
from stratus.store import decision
from stratus.store.decision import Decider, Listed

router = APIRouter(prefix="/approvals", tags=["approvals"])


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    decision: Literal["approve", "deny"]
    note: str | None = Field(default=None, max_length=1000)
    args_hash: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")


@router.get("")
async def listing(
    here: Here,
    me: Me,
    state: ApprovalState = ApprovalState.PENDING,
    session: Annotated[str | None, Query(max_length=256)] = None,
) -> list[dict[str, Any]]:
    """Approvals in a state, newest first: of the caller's sessions, and those that they may decide; an admin sees all."""
    mine = None if me.principal.may_see_all else me.principal.id
    found = await decision.listing(here.db, state=str(state), session_id=session, principal_id=mine)
    return [_shown(one, me) for one in found]


@router.post("/{approval}")
async def answer(approval: str, body: _Answer, here: Here, me: Me) -> dict[str, Any]:
    """Approve or deny. With `args_hash` only if the arguments are still those."""
    by = Decider(me.principal.id, me.principal.role, me.principal.name, knows=me.principal.may_see_all)
    decided = await decision.decide(
        here.db, public_id(approval), body.decision, by, note=body.note, args_hash=body.args_hash
    )
    here.hints.send("session", decided.session_id)
    here.hints.send("runs")
    here.hints.send("outbox")
    return {"id": str(decided.public_id), "state": str(decided.state), "by": decided.by, "repeated": decided.repeated}


def _shown(one: Listed, me: Caller) -> dict[str, Any]:
    return {**one.shown(), "may_decide": one.approvers.may(me.principal.id, me.principal.role)}
