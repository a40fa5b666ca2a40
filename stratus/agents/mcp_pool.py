"""The tool servers of a replica, one for each agent and resolved configuration, and their tools as an agent may call them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from stratus.agents.mcp_server import McpServer, Moments
from stratus.agents.mcp_tools import McpTool, described, effect_hinted, offered
from stratus.agents.model import ToolSpec
from stratus.agents.naming import mcp_policy_name, mcp_tool_name
from stratus.domain.mcp import CommandServer, McpServerConfig, resolved
from stratus.effects import Clock

# All that a command gets of the replica's environment. The rest may be secret.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


class McpPool:
    """Starts nothing by itself: a server starts when its tools are asked for. `spawn` starts a task that outlives turns."""

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        environment: Mapping[str, str],
        clock: Clock,
        moments: Moments | None = None,
    ) -> None:
        self._spawn = spawn
        self._environment = environment
        self._clock = clock
        self._moments = moments
        self._servers: dict[tuple[str, str, str], McpServer] = {}

    def get(self, agent_id: str, name: str, config: McpServerConfig) -> McpServer:
        """The agent's server of that name, never another agent's: it may remember what it was told. Raises ValueError that names
        a variable which is not set, or a header that cannot be sent.
        """
        made = self._resolve(config)
        # The configuration is part of the key, so that an edited agent gets a new server; the old one ends for being idle.
        key = (agent_id, name, made.model_dump_json())
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = McpServer(
                name,
                made,
                self._spawn,
                self._clock,
                moments=self._moments,
                forget=lambda: self._forget(key),
            )
        return server

    def _resolve(self, config: McpServerConfig) -> McpServerConfig:
        if isinstance(config, CommandServer):
            inherited = {name: self._environment[name] for name in INHERITED if name in self._environment}
            return config.model_copy(update={"env": {**inherited, **resolved(config.env, self._environment)}})
        headers = resolved(config.headers, self._environment)
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):  # an HTTP library would name the value in its error
                raise ValueError(f"what its header {name} refers to is not printable ASCII")
        return config.model_copy(update={"headers": headers})

    def _forget(self, key: tuple[str, str, str]) -> None:
        self._servers.pop(key, None)


def tools_of(server: McpServer) -> list[McpTool]:
    """The tools that the server was last known to offer."""
    return [
        McpTool(
            ToolSpec(
                mcp_tool_name(server.name, offer.name),
                described(offer),
                offer.input_schema,
                effect_hinted(offer),
                mcp_policy_name(server.name, offer.name),
            ),
            server,
            offer.name,
            server.config.time_limit_seconds,
        )
        for offer in offered(server.known, server.name)
    ]
