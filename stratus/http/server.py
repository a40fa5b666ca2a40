"""uvicorn inside our own event loop: our signals, our drain, and connections that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from stratus.domain.errors import BadSetting
from stratus.http.event_stream import ABORT

# uvicorn refreshes its Date header in this tick, whose count is a multiple of ten.
_TICK_SECONDS = 1.0
_BACKLOG = 2_048
_KEEP_ALIVE_SECONDS = 75


class HttpServer:
    """`listen()`, then `run()` in a task; `stop()` lets requests in hand finish, for `grace` seconds at the most.

    Streams have to be told to end before `stop` (Tailer.close), or they take all of the grace.
    """

    def __init__(self, app: ASGIApp, host: str, port: int, *, grace: float = 10.0) -> None:
        self._app = app
        self._address = (host, port)
        self._listener: socket.socket | None = None
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(grace)),
        )
        self._server = _Server(config)

    def listen(self) -> int:
        """Bind, so that a port in use is found before anything else starts. Answers the port. Raises BadSetting."""
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio turns Nagle's algorithm off only where the protocol is named (base_events._set_nodelay); with it on, an event in two writes
        # waits 40 ms for the reader's delayed ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise BadSetting(
                f"STRATUS_BIND: {host}:{port} cannot be used ({error.strerror}); choose another"
            ) from error
        listener.setblocking(False)
        self._listener = listener
        return int(listener.getsockname()[1])

    async def run(self) -> None:
        """Serve until `stop()`; returns when the last connection is done or cut."""
        assert self._listener is not None, "listen() comes first"
        await self._server.serve(sockets=[self._listener])

    def stop(self) -> None:
        """Ask for the end: no new connections, then those in hand."""
        self._server.ending.set()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.setdefault("extensions", {})[ABORT] = partial(self._server.abort, scope.get("client"))
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers and without polling for its end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not self.ending.is_set():
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await self.ending.wait()

    def abort(self, client: tuple[str, int] | None) -> None:
        """Cut the connection from this address."""
        for connection in list(self.server_state.connections):
            if client is not None and getattr(connection, "client", None) == tuple(client):
                transport: asyncio.Transport = connection.transport
                transport.abort()
