"""Tool servers over HTTP: real ones, also gone, back, and giving too much."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from stratus.agents.mcp_http import ANSWER_LIMIT_BYTES
from stratus.agents.mcp_server import McpServer, ServerDown
from stratus.domain.mcp import mcp_servers
from testbed.eventually import eventually
from tests.contract.mcp_rig import ROOT, Rig, mcp_rig

_UNKNOWN = {"code": -32601, "message": "Method not found"}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with mcp_rig(tmp_path, environment={"WEB_TOKEN": "t0ken"}) as made:
        yield made


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@asynccontextmanager
async def serving(port: int, rig: Rig) -> AsyncIterator[None]:
    environment = {"PYTHONPATH": ROOT, "MCP_LEDGER": str(rig.ledger), "PATH": "/usr/bin:/bin"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "testbed.mcp_server", "--port", str(port)), env=environment, cwd=ROOT
    )

    async def up() -> bool:
        try:
            async with httpx.AsyncClient() as client:
                await client.get(f"http://127.0.0.1:{port}/mcp")
        except httpx.TransportError:
            return False
        return True

    try:
        await eventually(up, 30, "the server is up")
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def at(rig: Rig, port: int, **fields: Any) -> McpServer:
    entry = {"url": f"http://127.0.0.1:{port}/mcp", **fields}
    return rig.pool.get("blair", "web", mcp_servers({"web": entry})["web"])


async def test_tools_are_called(rig: Rig, port: int) -> None:
    async with serving(port, rig):
        outcome = await rig.run(at(rig, port), "add", '{"a": 2, "b": 3}')
        assert (outcome.content, outcome.failed) == ("5", False)
        outcome = await rig.run(at(rig, port, time_limit_seconds=1.0), "hang")
        assert outcome.content == "mcp__web__hang did not end within 1 seconds and was abandoned."
        assert rig.told == ["one of three"]


async def test_a_server_that_goes_and_comes_back_is_used_again(rig: Rig, port: int) -> None:
    server = at(rig, port)
    async with serving(port, rig):
        add = await rig.tool(server, "add")
        assert (await rig.run(server, "die")).failed
    outcome = await add.run('{"a": 1, "b": 1}', rig.context())
    assert outcome.failed
    assert outcome.content.startswith("The tool server web cannot be reached")
    async with serving(port, rig):

        async def back() -> bool:
            return (await add.run('{"a": 1, "b": 1}', rig.context())).content == "2"

        await eventually(back, 20, "it is used again")


def sessions(current: list[str]) -> type[BaseHTTPRequestHandler]:
    """A server of an earlier protocol, with sessions; it knows only the one that is `current`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(405)

        def do_DELETE(self) -> None:
            self.send_error(405)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers: dict[str, Any] = {
                "initialize": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "old", "version": "1"},
                },
                "tools/list": {"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]},
                "tools/call": {"content": [{"type": "text", "text": "hello"}]},
            }
            known = asked["method"] == "initialize" or self.headers["Mcp-Session-Id"] == current[0]
            if "id" not in asked or (asked["method"] in answers and not known):
                self.send_response(202 if known else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            said = {"result": answers[asked["method"]]} if asked["method"] in answers else {"error": _UNKNOWN}
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Mcp-Session-Id", current[0])
            self.end_headers()
            self.wfile.write(body)

    return Handler


async def test_a_server_that_has_forgotten_the_session_is_asked_for_a_new_one(rig: Rig) -> None:
    current = ["first"]
    async with answering(sessions(current)) as port:
        server = at(rig, port)
        greet = await rig.tool(server, "greet")
        assert (await greet.run("{}", rig.context())).content == "hello"
        current[0] = "second"
        assert (await greet.run("{}", rig.context())).failed
        assert (await greet.run("{}", rig.context())).content == "hello"


async def test_one_that_is_not_there_is_said(rig: Rig, port: int) -> None:
    with pytest.raises(ServerDown, match=r"The tool server web cannot be reached \(.*Connect"):
        await at(rig, port).tools()


@asynccontextmanager
async def answering(handler: type[BaseHTTPRequestHandler]) -> AsyncIterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        Thread(target=listener.serve_forever, daemon=True).start()
        yield listener.server_port
        listener.shutdown()


async def test_headers_carry_the_secret_that_is_named_and_no_redirect_takes_them_elsewhere(rig: Rig) -> None:
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.path)
            self.send_error(404)

    async with answering(Other) as other:

        class Redirect(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                seen.append(self.headers["Authorization"])
                self.send_response(307)
                self.send_header("Location", f"http://127.0.0.1:{other}/stolen")
                self.end_headers()

        async with answering(Redirect) as port:
            with pytest.raises(ServerDown):
                await at(rig, port, headers={"Authorization": "Bearer ${WEB_TOKEN}"}).tools()
    assert set(seen) == {"Bearer t0ken"}


async def test_an_answer_without_end_is_cut_off(rig: Rig) -> None:
    sent = [0]

    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            try:
                while sent[0] < 20 * ANSWER_LIMIT_BYTES:
                    sent[0] += self.wfile.write(b"[" * 65_536)
            except OSError:
                pass

    async with answering(Endless) as port:
        with pytest.raises(ServerDown):
            await at(rig, port).tools()
    assert sent[0] < 3 * ANSWER_LIMIT_BYTES


async def test_a_secret_that_is_no_header_is_not_repeated_in_the_error(tmp_path: Path) -> None:
    async with mcp_rig(tmp_path, environment={"WEB_TOKEN": "t0ken\n"}) as rig:
        with pytest.raises(ValueError, match="^what its header Authorization refers to is not printable ASCII$"):
            at(rig, 9, headers={"Authorization": "Bearer ${WEB_TOKEN}"})
