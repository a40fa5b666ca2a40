"""A TCP proxy that can cut, reset, or lose answers: the network between a replica and a platform."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from testbed.sockets import bind, listen, reset

_CHUNK = 65536

Upstream = tuple[str, int] | str


@dataclass(eq=False)
class Wire:
    """The two halves of one proxied connection."""

    client_reader: asyncio.StreamReader
    client: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server: asyncio.StreamWriter


class Link:
    """One proxied connection. A subclass decides what becomes of the bytes of either direction."""

    def __init__(self, proxy: TcpProxy, wire: Wire) -> None:
        self.wire = wire
        self.lost = False  # part of an answer is gone: what follows would be read as nonsense
        self._proxy = proxy

    async def from_client(self, data: bytes) -> None:
        """Forwards `data` to the server. Called with one chunk at a time."""
        self.wire.server.write(data)
        await self.wire.server.drain()

    async def from_server(self, data: bytes) -> None:
        """Forwards `data` to the client, unless answers are being lost. Called with one chunk at a time."""
        if self._proxy.losing is not None:
            self.lost = True
            self._proxy.lost += 1
            if self._proxy.losing == "rst":
                self.reset()
        if not self.lost:
            self.wire.client.write(data)
            await self.wire.client.drain()

    def reset(self) -> None:
        """Ends both halves at once, the client's with RST."""
        reset(self.wire.client.transport)
        reset(self.wire.server.transport)


class TcpProxy:
    """Listens on `127.0.0.1:port` (0 = free) and forwards to `upstream`: (host, port), or the path of a unix socket.

    An async context manager. `lost` counts the chunks of answers that `lose_responses` swallowed.
    """

    def __init__(self, upstream: Upstream, *, port: int = 0) -> None:
        self.port = port
        self.upstream = upstream
        self.lost = 0
        self.losing: str | None = None
        self._links: dict[asyncio.Task[None], Link | None] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._holder: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The proxy as the base URL of an HTTP upstream."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._holder = bind(self.port, shared=True)
        self.port = self._holder.getsockname()[1]
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close_listener()
        await self._end(list(self._links))
        if self._holder is not None:
            self._holder.close()

    @property
    def connections(self) -> int:
        """How many clients are connected, as far as the proxy lets itself know."""
        return len(self._links)

    async def cut(self, *, rst: bool = False) -> None:
        """Stops all traffic until `heal`.

        Silent: nothing passes, nothing closes, a new connection gets no answer; what was sent meanwhile passes later.
        With `rst`: every connection is reset, and new ones are refused.
        """
        if not rst:
            self._open.clear()
            return
        self._refusing = True
        await self._close_listener()
        await self._end(list(self._links))

    async def heal(self) -> None:
        """Ends every cut and loss. Connections that lost part of an answer are reset: they cannot be continued."""
        self.losing = None
        await self._end([task for task, link in self._links.items() if link is not None and link.lost])
        self._open.set()
        if self._refusing:
            self._refusing = False
            await self._listen()

    async def lose_responses(self, *, rst: bool = False) -> None:
        """From now until `heal`, requests reach the upstream but its answers are swallowed.

        With `rst`, the connection is reset when the answer comes.
        """
        self.losing = "rst" if rst else "silent"

    def make_link(self, wire: Wire) -> Link:
        """The link that handles a new connection."""
        return Link(self, wire)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listen(self.port, shared=True))

    async def _close_listener(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            link = self._links[task]
            if link is not None:
                link.reset()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = None
        try:
            await self._open.wait()
            link = self.make_link(Wire(reader, writer, *await self._connect()))
            self._links[task] = link
            await self._relay(link)
        except (OSError, asyncio.CancelledError):
            reset(writer.transport)
        finally:
            del self._links[task]

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.upstream, str):
            return await asyncio.open_unix_connection(self.upstream)
        return await asyncio.open_connection(*self.upstream)

    async def _relay(self, link: Link) -> None:
        pumps = [asyncio.create_task(self._requests(link)), asyncio.create_task(self._answers(link))]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            link.wire.client.close()
            link.wire.server.close()

    async def _requests(self, link: Link) -> None:
        await self._pump(link.wire.client_reader, link.from_client)

    async def _answers(self, link: Link) -> None:
        await self._pump(link.wire.server_reader, link.from_server)
        if link.lost:  # the network that lost the answer also loses the server's goodbye
            await asyncio.Event().wait()

    async def _pump(self, reader: asyncio.StreamReader, forward: Callable[[bytes], Awaitable[None]]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                await forward(data)
        await self._open.wait()
