"""An HTTP server that gives pushed requests to an adapter, as the gateway's webhook endpoint does."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stratus.channel import Adapter, Event, RawRequest


class Receiver:
    """Keeps the events it took and the statuses it answered; answers the first `refusals` requests 503 instead."""

    def __init__(self, adapter: Adapter, refusals: int = 0) -> None:
        self.events: list[Event] = []
        self.statuses: list[int] = []
        self._adapter = adapter
        self._refusals = refusals
        self._app = Starlette(routes=[Route("/{path:path}", self._take, methods=["POST"])])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @property
    def texts(self) -> list[str]:
        """The texts of the events, in order."""
        return [event.text for event in self.events]

    async def _take(self, request: Request) -> Response:
        if len(self.statuses) < self._refusals:
            self.statuses.append(503)
            return Response(status_code=503)
        raw = RawRequest(method=request.method, headers=dict(request.headers), body=await request.body())
        reply = await self._adapter.webhook(raw)
        self.events.extend(reply.events)
        self.statuses.append(reply.status)
        return Response(reply.body, reply.status, media_type=reply.content_type)
