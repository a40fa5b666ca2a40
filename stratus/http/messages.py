"""A session's messages: send one and watch its run, attach to what is open, page through the transcript."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse

from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import BadInput, Busy, NotFound
from stratus.domain.event import Cursor, parse_cursor
from stratus.domain.values import Actor, FilePart, Part
from stratus.http.auth import Caller, Me
from stratus.http.errors import AgentNotFound, wants_stream
from stratus.http.event_stream import EventStream
from stratus.http.ids import SessionId, idempotency_key, scoped
from stratus.http.message_body import MessageBody
from stratus.http.services import Here, Services
from stratus.observe.attach import Scope, attach
from stratus.observe.stream import frames
from stratus.store import agent as agents
from stratus.store import event as log
from stratus.store import message as messages
from stratus.store import principal as principals
from stratus.store import session as sessions
from stratus.store import view
from stratus.store.database import Connection
from stratus.store.message import StoredMessage
from stratus.store.session import Enqueued, NewRun
from stratus.store.stop import Halt, halt, lock_leases

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

router = APIRouter(tags=["messages"])


@router.post("/sessions/{session_id:path}/messages", status_code=202)
async def send(
    session_id: SessionId,
    body: MessageBody,
    request: Request,
    here: Here,
    me: Me,
    idempotency_key_: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> Response:
    """Queue a message. The same Idempotency-Key with the same body answers with the same run, live or finished."""
    if me.bearer or idempotency_key_ is not None:
        key = idempotency_key(idempotency_key_)
    else:
        key = str(here.ids.uuid())
    agent_id, agent = await _agent(here, session_id, body)
    new = NewRun(
        session_id=session_id,
        agent_id=agent_id,
        owner_id=me.principal.id,
        principal_id=me.principal.id,
        actor=Actor(principal=str(me.principal.public_id), name=me.principal.name, platform="web"),
        input=body.run_input(),
        title=body.title(),
        request_key=scoped(me.principal.public_id, key),
        request_hash=body.fingerprint(),
        traceparent=_traceparent(request),
        busy=body.busy or ("queue" if agent is None else agent.busy),
    )
    queued = await _enqueue(here, me, new, known=agent is not None)
    if not queued.repeated:
        for topic, about in _changed(new):
            here.hints.send(topic, about)
    if wants_stream(request):
        return _stream(here, me, session_id, Scope(queued.seq - 1, frozenset({queued.run})))
    answer = {
        "run": str(queued.run),
        "session": session_id,
        "cursor": str(Cursor(queued.run, queued.seq)),
        "repeated": queued.repeated,
        "state": "finished" if queued.finished else "live",
    }
    return JSONResponse(answer, 202)


@router.get("/sessions/{session_id:path}/messages")
async def read(
    session_id: SessionId,
    request: Request,
    here: Here,
    me: Me,
    after: str | None = None,
    follow: Literal["session"] | None = None,
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """As server-sent events: attach to the open run, or resume after `Last-Event-ID` or `after`. As JSON: a page of the transcript."""
    if not wants_stream(request):
        return await _transcript(here, me, session_id, before, limit)
    given = last_event_id or after
    cursor = parse_cursor(given) if given else None
    standing = await log.standing(here.db, session_id, None if cursor is None else cursor.run)
    if standing is None:
        raise _absent()
    me.require(standing.owner_id)
    scope = attach(standing, cursor, follow=follow is not None)
    return Response(status_code=204) if scope is None else _stream(here, me, session_id, scope)


async def _agent(here: Services, session_id: str, body: MessageBody) -> tuple[str, AgentDefinition | None]:
    """Whom the message is for; without a definition if that agent is not there, which only a repeat may find."""
    agent_id = body.agent
    known = await sessions.get(here.db, session_id)
    if agent_id is None:
        if known is None:
            raise BadInput("agent: is needed for a new session")
        agent_id = known.agent_id
    found = await agents.get(here.db, agent_id)
    if found is None and known is None:
        raise _no_agent(agent_id)
    return agent_id, None if found is None else found.definition


async def _enqueue(here: Services, me: Caller, new: NewRun, *, known: bool) -> Enqueued:
    """Queue it with what its policy demands, in one transaction: the lease's row first, for an interrupt asks its holder to end."""

    async def work(connection: Connection) -> Enqueued:
        owner = await view.owner_of(connection, new.session_id)
        if owner is not None:
            me.require(owner[0])
        if new.busy == "interrupt":
            await lock_leases(connection, [new.session_id])
        [queued] = await sessions.enqueue(connection, [new])
        if owner is None and (made := await view.owner_of(connection, new.session_id)) is not None:
            me.require(made[0])  # somebody else may have made it in between
        if queued.repeated:
            return queued
        if not known:
            raise _no_agent(new.agent_id)
        if new.busy == "reject" and await view.queued_behind(connection, new.session_id, queued.turn):
            raise Busy("a turn is running in this session; wait for its end or stop it")
        if new.busy == "interrupt":
            by = str(me.principal.public_id)
            await halt(connection, [Halt(new.session_id, by, before=queued.turn)], queued=False)
        return queued

    return await here.db.transact(work, idempotent=True, pool="ingress")


def _changed(new: NewRun) -> list[tuple[str, str]]:
    """Whom to wake, and about what."""
    interrupted = [("cancel", new.session_id), ("family", "")] if new.busy == "interrupt" else []
    return [*interrupted, ("runs", ""), ("session", new.session_id)]


def _no_agent(agent_id: str) -> AgentNotFound:
    return AgentNotFound(f"there is no agent {agent_id}")


def _stream(here: Services, me: Caller, session_id: str, scope: Scope) -> EventStream:
    async def allowed() -> bool:
        return await principals.authenticate(here.db, me.secret) is not None

    async def pieces() -> AsyncGenerator[bytes, None]:
        with here.tailer.watch(session_id, scope.after) as watch:
            async for piece in frames(watch, scope, allowed, here.clock, here.chance):
                yield piece

    return EventStream(pieces)


async def _transcript(here: Services, me: Caller, session_id: str, before: int | None, limit: int) -> Response:
    page = await messages.page(here.db, session_id, before, limit)
    if page is None:
        raise _absent()
    me.require(page.owner_id)
    return JSONResponse(
        {
            "session": session_id,
            "messages": [_message(one) for one in page.messages],
            "before": page.before,
            "cursor": None if page.cursor is None else str(page.cursor),
            "open": None if page.open_run is None else {"run": str(page.open_run), "state": page.open_state},
        }
    )


def _message(one: StoredMessage) -> dict[str, Any]:
    return {
        "position": one.position,
        "run": str(one.run),
        "state": one.state,
        "error": None if one.error is None else {"code": one.error.code, "message": one.error.message},
        "role": one.role,
        "parts": [_part(part) for part in one.parts],
        "created_at": one.created_at.isoformat(),
    }


def _part(part: Part) -> dict[str, Any]:
    """A part for people: without the provider's opaque state, a file without its octets."""
    shown = part.model_dump(mode="json", exclude={"provider", "data"})
    if isinstance(part, FilePart):
        shown["size"] = part.octets()
    return shown


def _traceparent(request: Request) -> str | None:
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _absent() -> NotFound:
    return NotFound("there is no such thing, or it is not yours")
