"""The HTTP side of a stream of server-sent events: headers, the client's going away, and a client that does not read.

Not sse-starlette: that patches uvicorn for the whole process, keeps a polling task of its own, and leaves a stuck reader's connection open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

SEND_SECONDS = 30.0
# The server puts a callable there that cuts the connection; ASGI itself has none.
ABORT = "stratus.abort"

Frames = Callable[[], AsyncGenerator[bytes, None]]


class EventStream(Response):
    """Sends what `frames` yields, each piece at once. A client that takes nothing for SEND_SECONDS is cut off, and may resume."""

    media_type = "text/event-stream"

    def __init__(self, frames: Frames) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self.init_headers({"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ends with the frames or with the connection, whichever is first. The run behind it goes on in any case."""
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(_disconnected(receive))
            sent = group.create_task(self._send(scope, send))
            await asyncio.wait({gone, sent}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            sent.cancel()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._frames()) as frames:
                async for piece in frames:
                    async with asyncio.timeout(SEND_SECONDS):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError:
            abort: Callable[[], Any] | None = scope.get("extensions", {}).get(ABORT)
            if abort is None:
                raise
            abort()
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
