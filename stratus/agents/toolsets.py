"""An agent's tools, resolved anew for each turn: function tools, and those of its tool servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import structlog

from stratus.agents.model import ToolSpec
from stratus.agents.naming import exact_mcp_tool, may_name_tool_of, mcp_policy_name, mcp_tool_name
from stratus.agents.tools import Tool, ToolContext, ToolOutcome, ToolRegistry
from stratus.domain.agent import DEFINITION_VERSIONS, AgentDefinition
from stratus.domain.mcp import McpServerConfig, mcp_servers
from stratus.effects import Clock

if TYPE_CHECKING:
    from stratus.agents.mcp_pool import McpPool
    from stratus.agents.mcp_server import McpServer

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Declared:
    """A tool of which the agent says something else than it does itself."""

    spec: ToolSpec
    tool: Tool

    async def run(self, args: str, context: ToolContext) -> ToolOutcome:
        """See Tool.run."""
        return await self.tool.run(args, context)


@dataclass(frozen=True)
class _Unusable:
    """Stands where a tool would be if its server could be used, so that the model can say why it is not."""

    spec: ToolSpec
    why: str

    async def run(self, args: str, context: ToolContext) -> ToolOutcome:
        """See Tool.run."""
        return ToolOutcome(self.why, failed=True)


class Toolsets:
    """Opens the tools that an agent's `tools` patterns name. Tool servers live while `run` runs; `environment` is where the
    variables of their configuration are looked up.
    """

    def __init__(
        self, functions: ToolRegistry, environment: Mapping[str, str] | None = None, clock: Clock | None = None
    ) -> None:
        self._functions = functions
        self._environment = environment or {}
        self._clock = clock or Clock()
        self._spawn: Callable[[Coroutine[Any, Any, None]], object] | None = None
        self._made: McpPool | None = None

    async def run(self) -> None:
        """Keep the tool servers until cancelled; then end them."""
        try:
            async with asyncio.TaskGroup() as group:
                self._spawn = group.create_task
                await asyncio.Event().wait()
        finally:
            self._spawn = self._made = None

    def capabilities(self) -> list[str]:
        """What this installation has, as AgentDefinition.needs names it. Imports nothing."""
        transports = ["http"] if find_spec("mcp") is not None else []
        if transports and sys.platform != "win32":  # the guard of a command needs process groups
            transports.append("stdio")
        return [
            *(f"agent:v{version}" for version in DEFINITION_VERSIONS),
            *(f"tool:{name}" for name in self._functions.names()),
            *(f"mcp:{transport}" for transport in transports),
        ]

    @asynccontextmanager
    async def open(self, agent: AgentDefinition) -> AsyncIterator[Sequence[Tool]]:
        """The tools, for as long as the turn works; the model may call no other. A server that cannot be used leaves tools that
        say so.
        """
        with ExitStack() as held:
            offered = [*self._functions.select(agent.tools), *await self._of_servers(agent, held)]
            tools: dict[str, Tool] = {}
            for tool in offered:
                if tool.spec.name in tools:
                    log.warning("tool.name_taken", agent=agent.id, tool=tool.spec.policy_name)
                else:
                    tools[tool.spec.name] = _declared(tool, agent)
            yield list(tools.values())

    async def _of_servers(self, agent: AgentDefinition, held: ExitStack) -> list[Tool]:
        wanted = [name for name in agent.mcp if any(may_name_tool_of(pattern, name) for pattern in agent.tools)]
        if not wanted:
            return []
        try:
            configs = mcp_servers(agent.mcp)
            pool = await self._pool()
        except (ValueError, ImportError) as error:
            return [tool for name in wanted for tool in _stand_ins(agent, name, str(error))]
        # At the same time, so that a slow server costs no more than its own wait.
        found = await asyncio.gather(*(self._of_server(pool, agent, name, configs[name], held) for name in wanted))
        return [tool for tools in found for tool in tools]

    async def _of_server(
        self, pool: McpPool, agent: AgentDefinition, name: str, config: McpServerConfig, held: ExitStack
    ) -> list[Tool]:
        from stratus.agents.mcp_pool import tools_of
        from stratus.agents.mcp_server import ServerDown

        try:
            server: McpServer = pool.get(agent.id, name, config)
        except ValueError as error:
            return _stand_ins(agent, name, f"The tool server {name} cannot be used: {error}.")
        held.enter_context(server.held())
        why = ""
        try:
            await server.tools()
        except ServerDown as error:
            why = str(error)
            log.warning("mcp.unusable", agent=agent.id, server=name)
        allowed: list[Tool] = [tool for tool in tools_of(server) if _allowed(agent, tool.spec.policy_name)]
        return allowed if allowed or not why else _stand_ins(agent, name, why)

    async def _pool(self) -> McpPool:
        try:
            await asyncio.to_thread(import_module, "stratus.agents.mcp_pool")
        except ImportError as error:
            raise ImportError(
                "Tool servers need an extra that is not installed: `pip install stratus[mcp]`."
            ) from error
        if self._spawn is None:
            raise ValueError("Tool servers cannot be used: this replica is ending.")
        if self._made is None:
            from stratus.agents.mcp_pool import McpPool

            self._made = McpPool(self._spawn, self._environment, self._clock)
        return self._made


def _allowed(agent: AgentDefinition, policy_name: str) -> bool:
    return any(fnmatchcase(policy_name, pattern) for pattern in agent.tools)


def _declared(tool: Tool, agent: AgentDefinition) -> Tool:
    effect = agent.effect_of(tool.spec.policy_name)
    return tool if effect is None else _Declared(replace(tool.spec, effect=effect), tool)


def _stand_ins(agent: AgentDefinition, server: str, why: str) -> list[Tool]:
    """One for each tool that is allowed by its exact name, and one for all that wildcards would have allowed."""
    exact = [tool for pattern in agent.tools if (tool := exact_mcp_tool(pattern, server)) is not None]
    patterns = [pattern for pattern in agent.tools if may_name_tool_of(pattern, server)]
    names = [*dict.fromkeys(exact), *(["unavailable"] if len(patterns) > len(exact) else [])]
    anything = {"type": "object"}
    said = f"Cannot be used now. {why}"
    return [
        _Unusable(ToolSpec(mcp_tool_name(server, name), said, anything, "once", mcp_policy_name(server, name)), why)
        for name in names
    ]
