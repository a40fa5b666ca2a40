"""Who calls: a bearer token, or the console's HttpOnly cookie together with an Origin of our own; sign-in and sign-out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from stratus.domain.errors import Forbidden, NotFound, Unauthenticated
from stratus.http.errors import wants_stream
from stratus.http.services import Here, Services
from stratus.store import principal as principals
from stratus.store.principal import SESSION_SECONDS, Principal

COOKIE = "stratus_session"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

router = APIRouter(prefix="/auth", tags=["auth"])


@dataclass(frozen=True)
class Caller:
    """Who calls, and whether as an API client (`bearer`) or as the console. `secret` is what proved it."""

    principal: Principal
    bearer: bool
    secret: str = field(repr=False)

    def require(self, owner_id: int | None) -> None:
        """Raises NotFound for what is another's, exactly as for what is not there."""
        if not self.principal.may_see_all and owner_id != self.principal.id:
            raise NotFound("there is no such thing, or it is not yours")


async def _caller(request: Request, here: Here) -> Caller:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = bool(scheme)
    secret = token.strip() if scheme.lower() == "bearer" else ""
    if not bearer:
        secret = request.cookies.get(COOKIE, "")
        if secret and (request.method not in _SAFE or wants_stream(request)):
            _own_origin(request, here)
    found = await principals.authenticate(here.db, secret) if secret else None
    if found is None:
        raise Unauthenticated("a valid bearer token or a signed-in browser session is needed")
    return Caller(found, bearer, secret)


async def _admin(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    if not caller.principal.may_see_all:
        raise Forbidden("only the owner and admins may do this")
    return caller


Me = Annotated[Caller, Depends(_caller)]
Admin = Annotated[Caller, Depends(_admin)]


class _Signin(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    code: str = Field(min_length=1, max_length=200)


@router.post("/signin")
async def signin(body: _Signin, request: Request, response: Response, here: Here) -> dict[str, Any]:
    """Redeem the code of a sign-in link, once, for the console's cookie."""
    if "origin" in request.headers:
        _own_origin(request, here)
    secret = await principals.redeem_signin(here.db, body.code, ids=here.ids)
    found = await principals.authenticate(here.db, secret) if secret else None
    if secret is None or found is None:
        raise Unauthenticated("this sign-in link was used or has expired; `stratus up` prints a new one")
    secure = urlsplit(here.settings.public_url).scheme == "https"
    response.set_cookie(COOKIE, secret, max_age=int(SESSION_SECONDS), httponly=True, samesite="lax", secure=secure)
    return _shown(found)


@router.post("/signout", status_code=204)
async def signout(response: Response, here: Here, me: Me) -> None:
    """End the browser session, here and on every replica."""
    await principals.revoke_secret(here.db, me.secret)
    response.delete_cookie(COOKIE, httponly=True, samesite="lax")


@router.get("/me")
async def me(me: Me) -> dict[str, Any]:
    """Who the caller is."""
    return _shown(me.principal)


def _shown(one: Principal) -> dict[str, Any]:
    return {"principal": str(one.public_id), "name": one.name, "role": one.role}


def _own_origin(request: Request, services: Services) -> None:
    """Raises Forbidden unless the request comes from our own pages.

    Browsers send `Origin` with every request that changes state, and with cross-origin reads, but not with reads from the same origin
    (Fetch §3.2); those are told by `Sec-Fetch-Site`, or, over plain HTTP, by the `Referer` that our pages' policy allows.
    """
    origin = request.headers.get("origin")
    if origin is not None:
        ours = _is_ours(origin, request, services)
    elif request.method not in _SAFE:
        ours = False
    elif (site := request.headers.get("sec-fetch-site")) is not None:
        ours = site == "same-origin"
    else:
        ours = _is_ours(request.headers.get("referer", ""), request, services)
    if not ours:
        raise Forbidden("this browser session may be used from Stratus' own pages only")


def _is_ours(url: str, request: Request, services: Services) -> bool:
    try:
        given, public = urlsplit(url), urlsplit(services.settings.public_url)
    except ValueError:
        return False
    if given.scheme not in ("http", "https"):
        return False
    return given.netloc == request.headers.get("host") or (given.scheme, given.netloc) == (public.scheme, public.netloc)
