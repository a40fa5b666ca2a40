"""When the PostgreSQL proxy acts, shown with a server that says each message on command."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from testbed.eventually import eventually
from testbed.pgproxy import Hit, PgProxy, rerouted, upstream_of
from testbed.pgwire import Frontend

STARTUP = struct.pack("!II", 8, 196608)
SSL_REQUEST = struct.pack("!II", 8, 80877103)
DONE = b"C" + struct.pack("!I", 11) + b"COMMIT\0"
READY = b"Z" + struct.pack("!I", 5) + b"I"


def query(sql: str) -> bytes:
    return b"Q" + struct.pack("!I", len(sql) + 5) + sql.encode() + b"\0"


class Server:
    """Takes one connection, keeps the statements it was sent, and answers what the test lets it."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.ended = False
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        frontend = Frontend()
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                self.statements += [request.executes for request in frontend.feed(data) if request.executes]
        self.ended = True
        writer.close()

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Server, PgProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with PgProxy(f"postgresql://u@127.0.0.1:{listener.sockets[0].getsockname()[1]}/d") as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(STARTUP)
        try:
            yield server, proxy, reader, writer
        finally:
            writer.transport.abort()
            listener.close()


async def test_encryption_is_declined_by_the_proxy_itself() -> None:
    async with proxied() as (_, proxy, *_rest):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(SSL_REQUEST)
        assert await reader.readexactly(1) == b"N"
        writer.transport.abort()


@pytest.mark.parametrize("action", ["lose_ack_rst", "lose_ack_silent"])
async def test_an_answer_is_lost_only_when_the_server_is_done_with_the_statement(action: str) -> None:
    async with proxied() as (server, proxy, reader, writer):
        await proxy.arm("COMMIT", "lose_ack_rst" if action == "lose_ack_rst" else "lose_ack_silent")
        writer.write(query("COMMIT"))
        await eventually(lambda: server.statements == ["COMMIT"])
        server.say(DONE)
        with pytest.raises(AssertionError):
            await eventually(lambda: proxy.log or server.ended, timeout=0.1)
        server.say(READY)
        await proxy.wait_hit(1)
        if action == "lose_ack_rst":
            with pytest.raises(ConnectionResetError):
                await reader.read(1)


async def test_who_lost_an_answer_does_not_hear_the_server_leave() -> None:
    async with proxied() as (server, proxy, reader, writer):
        await proxy.arm("COMMIT", "lose_ack_silent")
        writer.write(query("COMMIT"))
        await eventually(lambda: server.statements)
        server.say(DONE + READY)
        await proxy.wait_hit(1)
        assert server.writer is not None
        server.writer.close()
        listening = asyncio.create_task(reader.read(1))
        done, _ = await asyncio.wait([listening], timeout=0.1)
        assert not done
        await proxy.heal()
        with pytest.raises(ConnectionResetError):
            await listening


async def test_a_dropped_statement_is_not_seen_by_the_server_and_later_ones_are() -> None:
    async with proxied() as (server, proxy, _, writer):
        await proxy.arm("b", "drop_before")
        writer.write(query("a"))
        await eventually(lambda: server.statements == ["a"])
        writer.write(query("b"))
        await eventually(lambda: server.ended)
        assert server.statements == ["a"]
        assert proxy.log == [Hit("b", "drop_before")]


async def test_heal_disarms() -> None:
    async with proxied() as (server, proxy, _, writer):
        await proxy.arm(None, "drop_before")
        await proxy.heal()
        writer.write(query("a"))
        await eventually(lambda: server.statements == ["a"])


def test_addresses_of_dsns() -> None:
    assert upstream_of("postgresql://u:p@db:6000/d") == ("db", 6000)
    assert upstream_of("postgresql://u:p@/d?host=/run/pg&port=6000") == "/run/pg/.s.PGSQL.6000"
    assert rerouted("postgresql://u:p@/d?host=/run/pg&port=6000&x=y", 7) == "postgresql://u:p@127.0.0.1:7/d?x=y"
