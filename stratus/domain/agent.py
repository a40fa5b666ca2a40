"""What an agent is: its model, tools and habits, with its soul in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import ConfigDict, Field

from stratus.domain.values import Value

ToolEffect = Literal["read", "idempotent", "once"]
_CAUTIOUS_FIRST: tuple[ToolEffect, ...] = ("once", "idempotent", "read")
BusyPolicy = Literal["queue", "steer", "interrupt", "reject"]
AGENT_ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
DEFINITION_VERSIONS = (1,)
# What every provider takes as a tool's name.
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Tools that the turn itself does: no replica lacks them.
_OWN_TOOLS = frozenset({"delegate"})


class AgentDefinition(Value):
    """A parsed agent file. `model` is `provider:name`; `base_url` and `api_key_env` point an OpenAI- or Anthropic-compatible provider elsewhere.

    `idle_limit_seconds` bounds the time without any progress of a turn, `first_token_limit_seconds` that until a model begins to answer (then the
    request is tried again); `max_steps` the model requests of one turn, `max_concurrent` those in flight at a time in one replica.
    `approval_window_seconds` is how long a person has to answer what `approve` makes it ask. `effects` overrules what tools say of themselves;
    `mcp` is read by `domain/mcp.py`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = 1
    id: str = Field(pattern=AGENT_ID_PATTERN)
    model: str = Field(pattern=r"^[a-z-]+:.+|^demo$")
    name: str = ""
    soul: str = ""
    tools: Sequence[str] = ()
    approve: Sequence[str] = ()
    delegates: Sequence[str] = ()
    busy: BusyPolicy = "queue"
    idle_limit_seconds: float = Field(default=120.0, gt=0)
    first_token_limit_seconds: float = Field(default=60.0, gt=0)
    max_steps: int = Field(default=50, gt=0)
    max_concurrent: int | None = Field(default=None, gt=0)
    approval_window_seconds: float = Field(default=86_400.0, gt=0)
    base_url: str | None = None
    api_key_env: str | None = None
    settings: Mapping[str, Any] = Field(default_factory=dict)
    mcp: Mapping[str, Any] = Field(default_factory=dict)
    effects: Mapping[str, ToolEffect] = Field(default_factory=dict)

    def effect_of(self, policy_name: str) -> ToolEffect | None:
        """What the agent declares of that tool: its exact name counts before wildcards, of several the most cautious (jsonb keeps
        no order). None when it declares nothing.
        """
        if policy_name in self.effects:
            return self.effects[policy_name]
        declared = {effect for pattern, effect in self.effects.items() if fnmatchcase(policy_name, pattern)}
        return next((effect for effect in _CAUTIOUS_FIRST if effect in declared), None)

    def needs(self) -> list[str]:
        """What a replica must have to execute a turn of this agent: a provider's library, the tools that are named exactly,
        an MCP client for each transport, and a reader of this version. No entry contains white space.
        """
        tools = {name for name in self.tools if TOOL_NAME.fullmatch(name)} - _OWN_TOOLS
        entries = [entry for entry in self.mcp.values() if isinstance(entry, Mapping)]
        transports = {
            transport for entry in entries for key, transport in (("command", "stdio"), ("url", "http")) if key in entry
        }
        return [
            f"agent:v{self.v}",
            f"provider:{self.model.partition(':')[0]}",
            *(f"tool:{name}" for name in sorted(tools)),
            *(f"mcp:{transport}" for transport in sorted(transports)),
        ]
