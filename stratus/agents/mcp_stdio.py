"""Messages with a tool server over its standard input and output. Its processes end with this context, and with the replica."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from stratus.agents import mcp_guard
from stratus.effects import finished

# One message; a result with a file of 10 MB in base64 fits.
MESSAGE_LIMIT_BYTES = 16 * 1024 * 1024
_SHOWN_CHARACTERS = 300
# The guard needs less than 3 s to end a group: see mcp_guard.
_REAP_SECONDS = 5.0

log = structlog.get_logger(__name__)

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@dataclass
class Ending:
    """That the server's side is over, and, where it ended by itself, how: the rest of a sentence about it."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    said: str = ""


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None, ending: Ending
) -> AsyncIterator[Streams]:
    """Start the command behind its guard, with `env` as its whole environment. `ending` is told when it ends by itself.

    Raises OSError when there is no such folder.
    """
    async with _guarded(command, env, cwd) as process, anyio.create_task_group() as group:
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        group.start_soon(_receive, process, incoming, ending)
        group.start_soon(_send, process, outgoing)
        group.start_soon(_overhear, process, command[0])
        try:
            yield read, write
        finally:
            group.cancel_scope.cancel()
            for stream in (incoming, read, write, outgoing):
                stream.close()


@asynccontextmanager
async def _guarded(command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> AsyncIterator[Process]:
    end, lifeline = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(Path(mcp_guard.__file__)), str(end), *command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=MESSAGE_LIMIT_BYTES,
            env=env,
            cwd=cwd,
            pass_fds=[end],
            start_new_session=True,
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(end)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        os.close(lifeline)
        await finished(_reaped(process))


async def _reaped(process: Process) -> None:
    try:
        async with asyncio.timeout(_REAP_SECONDS):
            await process.wait()
    except TimeoutError:
        log.warning("mcp.still_running", guard=process.pid)


async def _receive(process: Process, incoming: Incoming, ending: Ending) -> None:
    assert process.stdout is not None
    with incoming, suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            while line := await process.stdout.readuntil(b"\n"):
                await incoming.send(_message(line))
        except asyncio.LimitOverrunError:
            ending.said = f"sent a message of more than {MESSAGE_LIMIT_BYTES} bytes"
        except (asyncio.IncompleteReadError, ConnectionError):
            ending.said = await _fate(process)
        ending.over.set()


async def _fate(process: Process) -> str:
    try:
        async with asyncio.timeout(1.0):
            code = await process.wait()
    except TimeoutError:
        return "has closed its output"
    if code == mcp_guard.NOT_STARTED:
        return "cannot be started: its command was not found, or may not be executed"
    return f"was ended by signal {-code & 0xFF}" if code < 0 or code > 128 else f"ended with exit code {code}"


def _message(line: bytes) -> SessionMessage | Exception:
    """One message; what cannot be read is passed on as an error, for which nobody waits: some servers also print."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _send(process: Process, outgoing: Outgoing) -> None:
    assert process.stdin is not None
    with outgoing, suppress(ConnectionError):
        async for message in outgoing:
            process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()


async def _overhear(process: Process, name: str) -> None:
    """What it says on its standard error: it must be read, lest the server blocks, and may contain anything."""
    assert process.stderr is not None
    with suppress(ConnectionError):
        while octets := await process.stderr.read(65_536):
            log.debug("mcp.stderr", server=name, text=octets[-_SHOWN_CHARACTERS:].decode("utf-8", "replace"))
