"""What the TCP proxy does to connections: cut, reset, refuse, lose answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from testbed.eventually import eventually
from testbed.tcpproxy import TcpProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that answers every line with the same line, and keeps what it received."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[tuple[Echo, TcpProxy]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with TcpProxy(("127.0.0.1", server.sockets[0].getsockname()[1])) as proxy:
        try:
            yield echo, proxy
        finally:
            server.close()


@contextlib.asynccontextmanager
async def connected(proxy: TcpProxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ask(streams: Streams, line: bytes) -> bytes:
    streams[1].write(line)
    return await asyncio.wait_for(streams[0].readline(), 5)


async def test_a_silent_cut_holds_bytes_back_and_heal_lets_them_pass() -> None:
    async with echoing() as (echo, proxy), connected(proxy) as old:
        assert await ask(old, b"1\n") == b"1\n"
        await proxy.cut()
        async with connected(proxy) as new:
            old[1].write(b"2\n")
            new[1].write(b"3\n")
            waiting = [asyncio.create_task(streams[0].readline()) for streams in (old, new)]
            done, _ = await asyncio.wait(waiting, timeout=0.1)
            assert not done
            assert echo.lines == [b"1\n"]
            await proxy.heal()
            assert await asyncio.gather(*waiting) == [b"2\n", b"3\n"]


async def test_a_silent_cut_hides_that_the_client_left() -> None:
    async with echoing() as (_, proxy):
        async with connected(proxy) as streams:
            await ask(streams, b"1\n")
            await proxy.cut()
        with pytest.raises(AssertionError):
            await eventually(lambda: proxy.connections == 0, timeout=0.1)
        await proxy.heal()
        await eventually(lambda: proxy.connections == 0)


async def test_a_cut_with_rst_resets_what_is_open_and_refuses_what_is_new() -> None:
    async with echoing() as (_, proxy), connected(proxy) as old:
        await ask(old, b"1\n")
        await proxy.cut(rst=True)
        with pytest.raises(ConnectionResetError):
            await ask(old, b"2\n")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.heal()
        async with connected(proxy) as new:
            assert await ask(new, b"3\n") == b"3\n"


async def test_a_lost_answer_is_never_completed() -> None:
    async with echoing() as (echo, proxy), connected(proxy) as streams:
        await proxy.lose_responses()
        streams[1].write(b"1\n")
        answer = asyncio.create_task(streams[0].readline())
        await eventually(lambda: proxy.lost == 1)
        assert echo.lines == [b"1\n"]
        assert not answer.done()
        await proxy.heal()
        with pytest.raises(ConnectionResetError):
            await answer


async def test_a_lost_answer_may_reset_the_connection() -> None:
    async with echoing() as (echo, proxy), connected(proxy) as streams:
        await proxy.lose_responses(rst=True)
        with pytest.raises(ConnectionResetError):
            await ask(streams, b"1\n")
        assert echo.lines == [b"1\n"]


async def test_an_upstream_that_is_not_there_looks_like_a_reset() -> None:
    async with TcpProxy(("127.0.0.1", 1)) as proxy, connected(proxy) as streams:
        with pytest.raises(ConnectionResetError):
            await ask(streams, b"1\n")
