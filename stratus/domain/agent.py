"""What an agent is: its model, tools and habits, with its soul in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from stratus.domain.values import Value

BusyPolicy = Literal["queue", "steer", "interrupt", "reject"]
AGENT_ID_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"


class AgentDefinition(Value):
    """A parsed agent file. `model` is `provider:name`; `base_url` and `api_key_env` point an OpenAI- or Anthropic-compatible provider elsewhere.

    `idle_limit_seconds` bounds the time without any progress of a turn, `first_token_limit_seconds` that until a model begins to answer (then the
    request is tried again); `max_steps` the model requests of one turn, `max_concurrent` those in flight at a time in one replica.
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

    def needs(self) -> list[str]:
        """What a replica must have to execute a turn of this agent."""
        return [f"provider:{self.model.partition(':')[0]}"]
