"""An agent's tools, resolved anew for each turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from stratus.agents.tools import Tool, ToolRegistry
from stratus.domain.agent import AgentDefinition


class Toolsets:
    """Opens the tools that an agent's `tools` patterns name."""

    def __init__(self, functions: ToolRegistry) -> None:
        self._functions = functions

    @asynccontextmanager
    async def open(self, agent: AgentDefinition) -> AsyncIterator[Sequence[Tool]]:
        """The tools, for as long as the turn works."""
        yield self._functions.select(agent.tools)
