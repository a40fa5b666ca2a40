"""The HTTP server under every fake: one ASGI app on a loopback port, inside the running event loop.

It exists apart from uvicorn's own runner because a fake must close at once with requests still hanging, and be able
to reset a connection.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from testbed.sockets import listen, reset

_ABORT = "testbed.abort"


class Reset(Response):
    """A response that is none: the client's connection is reset (TCP RST), whatever was sent before."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reset_client(scope)
        while (await receive())["type"] != "http.disconnect":
            pass


def reset_client(scope: Scope) -> None:
    """Resets the connection of the request with this scope, also in the middle of its response."""
    scope[_ABORT]()


class FakeServer:
    """Serves `app` at `.url` while its `async with` block runs; `port=0` takes a free port, which `.port` then names.

    Leaving the block resets open connections and cancels their handlers. Raises OSError when the port is taken.
    """

    def __init__(self, app: ASGIApp, *, port: int = 0) -> None:
        self.port = port
        self._app = app
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        listener = listen(self.port)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            proxy_headers=False,
            log_config=None,
            log_level="error",
            access_log=False,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            ready.cancel()
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None and self._task is not None:
            self._server.stop.set()
            await self._task

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope[_ABORT] = partial(self._abort, tuple(scope["client"] or ()))
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:  # a replica that was killed in the midst of its request
            pass
        except asyncio.CancelledError:
            if self._server is None or not self._server.stop.is_set():
                raise

    def _abort(self, client: tuple[str, int]) -> None:
        if self._server is not None:
            for connection in list(self._server.server_state.connections):
                if getattr(connection, "client", None) == client:
                    reset(connection.transport)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers, without a polling main loop, and without grace on shutdown."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.ready.set()
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            reset(connection.transport)
        while self.server_state.connections:  # uvicorn logs an unfinished handler unless it saw the disconnect
            await asyncio.sleep(0)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.lifespan.shutdown()


def run_alone(app_factory: Callable[[], ASGIApp]) -> None:
    """The body of `python -m testbed.fakes.X --port N`: prints the address, serves until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    arguments = parser.parse_args()
    asyncio.run(_alone(app_factory(), arguments.port))


async def _alone(app: ASGIApp, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with FakeServer(app, port=port) as server:
        print(server.url, flush=True)
        await stop.wait()
