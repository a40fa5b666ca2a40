"""One tool server of one agent on this replica: started when first needed, shared by turns, restarted with growing pauses
when it dies, ended when nobody has needed it for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import structlog
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolResult,
    Implementation,
    ServerNotification,
    Tool,
    ToolListChangedNotification,
)

from stratus.agents.mcp_http import http_transport
from stratus.agents.mcp_stdio import Ending, stdio_transport
from stratus.domain.mcp import CommandServer, UrlServer
from stratus.domain.retry import delay_seconds
from stratus.effects import Clock

# The first start of a command may have to download it; a turn waits for less and goes on without.
START_SECONDS, WAIT_SECONDS = 120.0, 10.0
LIST_SECONDS, LIST_PAGES, LIST_TOOLS = 10.0, 20, 500
# A listing is asked for again after this, should nobody tell of a change.
LISTING_AGE_SECONDS = 60.0
IDLE_SECONDS = 600.0
# For how long a server with an abandoned call is spared for the calls of others.
RETIRE_SECONDS = 60.0
# After a life of this length a server is not thought to be one that dies at once.
_SOUND_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
_SAID_CHARACTERS = 300

log = structlog.get_logger(__name__)


class ServerDown(Exception):
    """The server cannot be used now. The message is a sentence for the model."""


@dataclass
class Moments:
    """The time limits, so that a test need not wait."""

    start: float = START_SECONDS
    wait: float = WAIT_SECONDS
    idle: float = IDLE_SECONDS
    retire: float = RETIRE_SECONDS
    listing_age: float = LISTING_AGE_SECONDS


@dataclass
class _Connection:
    ending: Ending = field(default_factory=Ending)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    client: Client | None = None
    calls: int = 0
    used_at: float = 0.0
    listed_at: float | None = None
    retired: bool = False


class McpServer:
    """Keeps at most one connection that is used; `config` holds resolved values. `spawn` starts a task that outlives turns."""

    def __init__(
        self,
        name: str,
        config: CommandServer | UrlServer,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        clock: Clock,
        *,
        moments: Moments | None = None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.config = config
        # What it offered when it was last asked, for as long as it cannot be asked.
        self.known: Sequence[Tool] = ()
        self._spawn = spawn
        self._clock = clock
        self._moments = moments or Moments()
        self._forget = forget
        self._connection: _Connection | None = None
        self._listing = asyncio.Lock()
        self._held = 0
        self._failures = 0
        self._retry_at = 0.0
        self._problem = ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """A turn may still need it: it is not ended for being idle."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if self._connection is not None:
                self._connection.used_at = self._clock.monotonic()

    async def tools(self) -> Sequence[Tool]:
        """What it offers. Asks when there is no listing, when it has changed, and now and then. Raises ServerDown."""
        connection, client = await self._connected()
        async with self._listing:
            now = self._clock.monotonic()
            if connection.listed_at is None or now - connection.listed_at > self._moments.listing_age:
                connection.listed_at = now
                try:
                    self.known = await self._list(client)
                except BaseException:
                    connection.listed_at = None
                    raise
        return self.known

    async def call(self, tool: str, arguments: Mapping[str, Any], progress: Callable[[str], None]) -> CallToolResult:
        """Let it act. Raises ServerDown, and MCPError for its refusals.

        A caller that is cancelled leaves it unknown whether the server still works: MCP has no answer to a cancellation. So a process
        that was left alone with a call is used for no other call, and is ended, with all that it has started.
        """
        connection, client = await self._connected()
        connection.calls += 1
        connection.idle.clear()
        try:
            return await client.call_tool(tool, dict(arguments), progress_callback=_Progress(progress))
        except asyncio.CancelledError:
            if isinstance(self.config, CommandServer):
                self._retire(connection)
            raise
        except MCPError as error:
            if isinstance(self.config, UrlServer) and error.code not in (INVALID_PARAMS, METHOD_NOT_FOUND):
                self._retire(connection)  # perhaps it has forgotten the session
            # The code alone says nothing: servers use it for errors of their own.
            if error.code == CONNECTION_CLOSED and (connection.ending.over.is_set() or _gone(error)):
                raise ServerDown(
                    f"{self._lost(connection)} while it worked on the call; whether that took effect is not known."
                ) from error
            raise
        finally:
            connection.calls -= 1
            connection.used_at = self._clock.monotonic()
            if not connection.calls:
                connection.idle.set()

    def _lost(self, connection: _Connection) -> str:
        return f"The tool server {self.name} {connection.ending.said or 'closed the connection'}"

    def _retire(self, connection: _Connection) -> None:
        if not connection.retired:
            log.info("mcp.retired", server=self.name)
            connection.retired = True
            if self._connection is connection:
                self._connection = None
            connection.ending.over.set()

    async def _connected(self) -> tuple[_Connection, Client]:
        connection = self._connection
        if connection is not None and connection.ending.over.is_set():
            await connection.gone.wait()  # two at once might be in each other's way
        connection = self._connection or self._begin()
        try:
            async with asyncio.timeout(self._moments.wait):
                await connection.settled.wait()
        except TimeoutError:
            raise ServerDown(f"The tool server {self.name} is still starting; try again in a moment.") from None
        if connection.client is None:
            raise ServerDown(self._problem)
        return connection, connection.client

    def _begin(self) -> _Connection:
        pause = self._retry_at - self._clock.monotonic()
        if pause > _PATIENCE_SECONDS:
            raise ServerDown(f"{self._problem} It is tried again in {pause:.0f} seconds.")
        self._connection = connection = _Connection()
        connection.idle.set()
        self._spawn(self._live(connection, max(pause, 0.0)))
        return connection

    async def _live(self, connection: _Connection, pause: float) -> None:
        """One connection from its start to its end; its own task, because a client must be left where it was entered."""
        began, problem = self._clock.monotonic(), ""
        try:
            await self._clock.sleep(pause)
            began = self._clock.monotonic()
            async with asyncio.timeout(self._moments.start) as starting, self._client(connection) as client:
                starting.reschedule(None)
                connection.client, connection.used_at = client, self._clock.monotonic()
                connection.settled.set()
                log.info("mcp.started", server=self.name, protocol=client.protocol_version)
                await self._until_over(connection)
            problem = connection.ending.said
        except TimeoutError:
            problem = f"did not answer within {self._moments.start:g} seconds of its start"
        except Exception as error:  # a library's and a stranger's: whatever it is, the server cannot be used
            problem = connection.ending.said or f"cannot be reached ({_root(error)})"
        finally:
            self._over(connection, problem, self._clock.monotonic() - began)

    def _over(self, connection: _Connection, problem: str, seconds: float) -> None:
        if problem and not connection.retired:
            self._failures = 1 if seconds > _SOUND_SECONDS else self._failures + 1
            self._problem = f"The tool server {self.name} {problem}."
            self._retry_at = self._clock.monotonic() + delay_seconds(self._failures, 0.0)
            log.warning("mcp.failed", server=self.name, failures=self._failures, seconds=round(seconds, 1))
        if self._connection is connection:
            self._connection = None
        connection.ending.over.set()
        connection.settled.set()
        connection.gone.set()
        if not problem and not connection.retired and not self._held:
            self._forget()

    async def _until_over(self, connection: _Connection) -> None:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow(connection))
            while not connection.ending.over.is_set():
                quiet = self._clock.monotonic() - connection.used_at
                if quiet >= self._moments.idle and not self._held and not connection.calls:
                    log.info("mcp.idle", server=self.name)
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(self._moments.idle - quiet, self._moments.idle / 10)):
                        await connection.ending.over.wait()
            connection.ending.over.set()  # no call must find it while it is being left
            if connection.retired:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._moments.retire):
                        await connection.idle.wait()
            following.cancel()

    async def _follow(self, connection: _Connection) -> None:
        """Servers of 2026-07-28 tell of changes only to those who listen; older ones tell everybody."""
        assert connection.client is not None
        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
            async with connection.client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    connection.listed_at = None

    @asynccontextmanager
    async def _client(self, connection: _Connection) -> AsyncIterator[Client]:
        async def heard(message: ServerNotification | Exception) -> None:
            if isinstance(message, ToolListChangedNotification):
                connection.listed_at = None

        client = Client(
            self._transport(connection),
            message_handler=heard,
            client_info=Implementation(name="stratus", version=version("stratus")),
            cache=None,
        )
        async with client:
            yield client

    def _transport(self, connection: _Connection) -> AbstractAsyncContextManager[Any]:
        if isinstance(self.config, CommandServer):
            return stdio_transport(self.config.command, self.config.env, self.config.cwd, connection.ending)
        return http_transport(self.config.url, self.config.headers)

    async def _list(self, client: Client) -> list[Tool]:
        found: list[Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(LIST_SECONDS):
                for _ in range(LIST_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None or len(found) > LIST_TOOLS:
                        break
        except TimeoutError:
            raise ServerDown(f"The tool server {self.name} did not list its tools in time.") from None
        except Exception as error:  # a listing that is no listing raises whatever the library makes of it
            raise ServerDown(f"The tool server {self.name} did not list its tools ({_root(error)}).") from error
        if cursor is not None or len(found) > LIST_TOOLS:
            log.warning("mcp.listing_cut", server=self.name, kept=LIST_TOOLS)
        return found[:LIST_TOOLS]


def _gone(error: MCPError) -> bool:
    return error.message == "Connection closed"


class _Progress:
    """Tells of progress in words."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self._tell(message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}"))


def _root(error: Exception) -> str:
    """The first error of nested groups, in short: its text may hold anything of the server's."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SAID_CHARACTERS]
