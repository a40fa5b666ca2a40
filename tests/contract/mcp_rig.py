"""What the tests of tool servers share: real servers as real processes, and a pool with short moments."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from stratus.agents.mcp_pool import McpPool, tools_of
from stratus.agents.mcp_server import McpServer, Moments
from stratus.agents.mcp_tools import McpTool
from stratus.agents.tools import ToolContext, ToolOutcome
from stratus.domain.mcp import mcp_servers
from stratus.effects import Clock
from testbed.eventually import eventually
from testbed.processes import alive
from tests.unit.agents.rows import NO_ROWS

COMMAND = [sys.executable, "-m", "testbed.mcp_server"]
ROOT = str(Path(__file__).parents[2])


@dataclass
class Rig:
    """Servers of the agent `blair`; `told` is the progress that calls have reported."""

    pool: McpPool
    ledger: Path
    told: list[str] = field(default_factory=list)

    def server(self, name: str = "box", agent: str = "blair", **fields: Any) -> McpServer:
        env = {"PYTHONPATH": ROOT, "MCP_LEDGER": str(self.ledger), **fields.pop("env", {})}
        entry = {"command": COMMAND, "env": env, "cwd": ROOT, **fields}
        return self.pool.get(agent, name, mcp_servers({name: entry})[name])

    async def tool(self, server: McpServer, name: str) -> McpTool:
        await server.tools()
        return next(tool for tool in tools_of(server) if tool.own_name == name)

    async def run(self, server: McpServer, name: str, args: str = "{}") -> ToolOutcome:
        return await (await self.tool(server, name)).run(args, self.context())

    def context(self) -> ToolContext:
        return ToolContext("s", UUID(int=7), "c1", "blair", NO_ROWS, self.told.append)

    def noted(self, what: str) -> list[int]:
        """Ids of the processes that have noted this, in order."""
        lines = self.ledger.read_text().split("\n") if self.ledger.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ")]

    async def has_noted(self, what: str, times: int = 1) -> None:
        await eventually(lambda: len(self.noted(what)) >= times, 20, f"{what} was noted")

    async def all_gone(self) -> None:
        """Wait until none of the processes that have noted anything is left."""
        pids = [pid for what in ("server", "child") for pid in self.noted(what)]
        await eventually(lambda: not any(map(alive, pids)), 10, f"processes {pids} have ended")


@asynccontextmanager
async def mcp_rig(
    folder: Path, moments: Moments | None = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Rig]:
    """A pool whose servers end with this context."""
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        pool = McpPool(
            lambda work: tasks.append(group.create_task(work)),
            os.environ if environment is None else environment,
            Clock(),
            moments or Moments(),
        )
        try:
            yield Rig(pool, folder / "ledger")
        finally:
            for task in tasks:
                task.cancel()
