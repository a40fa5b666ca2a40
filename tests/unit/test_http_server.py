"""The HTTP server's sockets."""

from __future__ import annotations

import asyncio
import socket

import httpx
from starlette.responses import PlainTextResponse

from stratus.http.server import HttpServer


async def test_answers_do_not_wait_for_the_readers_ack() -> None:
    server = HttpServer(PlainTextResponse("hello"), "127.0.0.1", 0)
    port = server.listen()
    serving = asyncio.create_task(server.run())
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "hello"
        [connection] = server._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    server.stop()
    await serving
