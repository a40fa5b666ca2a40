"""What the fake model answers: scripted turns, and which of them belongs to a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """One request of a model, the same for all wires. `problem` is why a real provider would refuse its messages."""

    wire: str
    model: str
    stream: bool
    system: str
    user_texts: tuple[str, ...]
    messages: int
    tools: tuple[str, ...]
    problem: str | None
    body: Mapping[str, Any] = field(repr=False)

    @property
    def text(self) -> str:
        """The last text of the user; what scripts, gates and faults match."""
        return self.user_texts[-1] if self.user_texts else ""

    @property
    def position(self) -> tuple[object, ...]:
        """Where in a conversation the call is: the same for a repetition of it, another one for the next step."""
        return (self.user_texts, self.messages)


@dataclass(frozen=True)
class ToolUse:
    """A tool call in a turn. `args` is JSON text, sent as it is, also when it is no JSON."""

    name: str
    args: str
    id: str | None = None


@dataclass(frozen=True)
class Turn:
    """One response of the model: thinking, then text, then tool calls; each may be missing.

    `cached` input tokens are reported as read from the provider's cache; with `counted` off, no usage is reported at all.
    """

    thinking: str = ""
    text: str = ""
    tools: tuple[ToolUse, ...] = ()
    cached: int = 0
    counted: bool = True

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Turn:
        """From `{"thinking"?, "text"?, "tool"? or "tools"?: [...], "cached"?, "counted"?}`; a tool is `{"name", "args"?, "id"?}`."""
        tools = [*([value["tool"]] if "tool" in value else []), *value.get("tools", ())]
        called = tuple(_tool(tool) for tool in tools)
        counts = {name: value[name] for name in ("cached", "counted") if name in value}
        return cls(value.get("thinking", ""), value.get("text", ""), called, **counts)


@dataclass
class Script:
    """Turns for the calls whose last user text contains `match`, each given once and in order.

    A call that is repeated (same conversation, same step) gets the same turn again, as after a replica's death.
    """

    match: str
    turns: list[Turn]
    chunk: int
    delay: float
    _given: dict[tuple[object, ...], Turn] = field(default_factory=dict)

    def take(self, call: Call) -> Turn | None:
        """The turn for `call`, or None when this script is not about it or has no turn left."""
        if self.match not in call.text:
            return None
        if call.position not in self._given and len(self._given) < len(self.turns):
            self._given[call.position] = self.turns[len(self._given)]
        return self._given.get(call.position)


def _tool(value: Mapping[str, Any]) -> ToolUse:
    args = value.get("args", {})
    return ToolUse(value["name"], args if isinstance(args, str) else json.dumps(args), value.get("id"))
