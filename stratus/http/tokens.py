"""API tokens: made, listed and revoked by whom they are for. A secret is shown once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from stratus.domain.errors import NotFound
from stratus.http.auth import Me
from stratus.http.ids import public_id
from stratus.http.services import Here
from stratus.store import principal as principals

_DAY_SECONDS = 86_400.0

router = APIRouter(prefix="/tokens", tags=["tokens"])


class _New(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")]
    days: Annotated[int | None, Field(ge=1, le=3650)] = None


@router.get("")
async def listing(here: Here, me: Me) -> dict[str, Any]:
    """The caller's valid tokens and browser sessions; everybody's for the owner and admins."""
    whose = None if me.principal.may_see_all else me.principal.id
    return {"tokens": await principals.listing(here.db, whose)}


@router.post("", status_code=201)
async def create(body: _New, here: Here, me: Me) -> dict[str, Any]:
    """Make a token for the caller, for ever unless `days` is given."""
    ttl = None if body.days is None else body.days * _DAY_SECONDS
    made = await principals.create_token(here.db, me.principal.id, "api", name=body.name, ttl=ttl, ids=here.ids)
    return {"id": str(made.public_id), "name": body.name, "secret": made.secret, "expires_at": made.expires_at}


@router.delete("/{token}", status_code=204)
async def revoke(token: str, here: Here, me: Me) -> None:
    """End a token; streams that it opened end within a minute."""
    whose = None if me.principal.may_see_all else me.principal.id
    if not await principals.revoke(here.db, public_id(token), whose):
        raise NotFound("there is no such thing, or it is not yours")
