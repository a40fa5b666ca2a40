"""The server under the fakes: it closes at once whatever hangs, and can reset a client."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from testbed.fakes.server import FakeServer, Reset, reset_client
from testbed.replicas import ROOT


class Hanging:
    """An app with an answer, two endpoints that never end, and two that reset."""

    def __init__(self) -> None:
        self.entered = asyncio.Semaphore(0)
        routes = [Route(f"/{call.__name__}", call) for call in (self.ok, self.hang, self.stream, self.reset, self.cut)]
        self.app = Starlette(routes=routes)

    async def ok(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    async def hang(self, _request: Request) -> Response:
        self.entered.release()
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def stream(self, _request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"part"
            await self.hang(_request)

        return StreamingResponse(parts())

    async def reset(self, _request: Request) -> Response:
        return Reset()

    async def cut(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"part"
            reset_client(request.scope)

        return StreamingResponse(parts())


async def test_it_closes_at_once_with_requests_hanging_and_its_port_can_be_taken_again() -> None:
    hanging = Hanging()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        async with asyncio.timeout(5):
            async with FakeServer(hanging.app) as server:
                requests = [asyncio.create_task(client.get(f"{server.url}/{path}")) for path in ("hang", "stream")]
                for _ in requests:
                    await hanging.entered.acquire()
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [httpx.ReadError, httpx.ReadError]
        async with FakeServer(Hanging().app, port=server.port) as again:
            assert (await client.get(f"{again.url}/ok")).text == "ok"


@pytest.mark.parametrize("path", ["reset", "cut"])
async def test_it_resets_a_client_before_or_in_its_response(path: str) -> None:
    async with FakeServer(Hanging().app) as server, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ReadError):
            await client.get(f"{server.url}/{path}")
        assert (await client.get(f"{server.url}/ok")).text == "ok"


async def test_a_taken_port_is_an_error() -> None:
    async with FakeServer(Hanging().app) as server:
        with pytest.raises(OSError, match="in use"):
            await FakeServer(Hanging().app, port=server.port).__aenter__()


def test_a_fake_runs_alone_until_it_is_told_to_stop() -> None:
    command = [sys.executable, "-m", "testbed.fakes.model", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/log", trust_env=False).json() == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
