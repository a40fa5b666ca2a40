"""A tool server for tests, by the SDK's server side: `python -m testbed.mcp_server` speaks over stdio, `--port N` over HTTP.

It does what it is told: start processes that outlive it, ignore cancellation, block, die, answer too much or the wrong thing.
MCP_LEDGER names a file to which it and its children write their process ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

_CHILD = "import os, signal, sys, time; {prepare}; open(sys.argv[1], 'a').write(f'child {{os.getpid()}}\\n'); time.sleep(600)"

server = MCPServer("testbed")


def _note(what: str) -> None:
    if path := os.environ.get("MCP_LEDGER"):
        with open(path, "a") as ledger:
            ledger.write(f"{what} {os.getpid()}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(key: str) -> str:
    """Puts a key."""
    return key


@server.tool()
def environment() -> str:
    """Names and values of its environment."""
    return json.dumps(dict(os.environ))


@server.tool(structured_output=False)
def spawn(prepare: str = "pass") -> str:
    """Start a child that sleeps for ten minutes, after some code."""
    subprocess.Popen([sys.executable, "-c", _CHILD.format(prepare=prepare), os.environ["MCP_LEDGER"]])
    return "started"


@server.tool()
async def hang(context: Context) -> str:
    """Never answer; tell of progress once."""
    _note("hang")
    await context.report_progress(1, 3, "one of three")
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            _note("ignored")


@server.tool()
async def hold(seconds: float) -> str:
    """Answer after a while."""
    _note("hold")
    await asyncio.sleep(seconds)
    return "held"


@server.tool()
async def block() -> str:
    """Block the whole process, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note("block")
    time.sleep(600)
    return "never"


@server.tool()
async def die() -> str:
    """End the process in the middle of the call."""
    os._exit(3)


@server.tool(structured_output=False)
def much(size: int) -> str:
    """Answer with that many letters."""
    return "x" * size


@server.tool()
def fail() -> str:
    """Raise an exception."""
    raise ToolError("no such thing")


@server.tool(structured_output=False)
def lie() -> str:
    """Write things that are no message between messages."""
    print("this is no message", flush=True)
    print('{"jsonrpc": "2.0", "id": 9999, "result": {}}', flush=True)
    return "the truth"


@server.tool(structured_output=False)
async def grow(context: Context) -> str:
    """Offer one tool more."""
    server.add_tool(lambda: "new", name="grown", description="New.", structured_output=False)
    await context.notify_tools_changed()
    return "grown"


async def _serve(arguments: list[str]) -> None:
    _note("server")
    if arguments:
        await server.run_streamable_http_async(host="127.0.0.1", port=int(arguments[1]))
    else:
        await server.run_stdio_async()


def main(arguments: list[str]) -> Any:
    """Serve until the end of the input, or, over HTTP, until a signal."""
    asyncio.run(_serve(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
