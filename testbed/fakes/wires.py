"""How a model provider's API reads a request and writes an answer: what the three wires have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from testbed.fakes.turns import Call, ToolUse, Turn

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """A turn on its way out. `number` makes ids unique; `chunk` is the characters in a delta."""

    call: Call
    turn: Turn
    number: int
    chunk: int

    @property
    def input_tokens(self) -> int:
        """About four characters a token, over the whole request."""
        return len(json.dumps(self.call.body)) // 4

    @property
    def cached_tokens(self) -> int:
        """Those of the input that the turn says came from the provider's cache."""
        return min(self.turn.cached, self.input_tokens)

    @property
    def output_tokens(self) -> int:
        """About four characters a token, over the whole turn."""
        spoken = [self.turn.thinking, self.turn.text, *(tool.name + tool.args for tool in self.turn.tools)]
        return max(1, sum(map(len, spoken)) // 4)

    def tools(self, prefix: str) -> list[tuple[str, ToolUse]]:
        """The tool calls with their ids."""
        return [(tool.id or f"{prefix}_{self.number}_{at}", tool) for at, tool in enumerate(self.turn.tools)]

    def pieces(self, text: str) -> Iterator[str]:
        """`text` as deltas; one empty delta for an empty text."""
        for at in range(0, max(len(text), 1), self.chunk):
            yield text[at : at + self.chunk]


@dataclass(frozen=True)
class Frame:
    """One server-sent event. A `delta` carries a piece of the answer, and may be delayed."""

    data: bytes
    delta: bool = False


class Wire(Protocol):
    """One API of one provider."""

    name: str

    def read(self, body: Body) -> Call:
        """The call in a request body."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The response body without streaming."""

    def frames(self, answer: Answer) -> Iterator[Frame]:
        """The response as a stream."""

    def error(self, status: int, context: bool, message: str) -> dict[str, Any]:
        """The body of an error; `context`: the prompt is too long."""

    def failing(self, answer: Answer, status: int, message: str) -> Frame:
        """The same error as an event inside a stream."""


def sse(data: Mapping[str, Any] | str, *, event: str | None = None, delta: bool = False) -> Frame:
    """A server-sent event with JSON (or plain) data."""
    text = data if isinstance(data, str) else json.dumps(data)
    lead = f"event: {event}\n" if event else ""
    return Frame(f"{lead}data: {text}\n\n".encode(), delta)


def text_of(content: Any, kinds: tuple[str, ...] = ("text", "input_text")) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") in kinds)


def unpaired(called: Sequence[str], answered: Sequence[str]) -> str | None:
    """What is wrong with a set of tool calls and the results that must follow them."""
    if len(set(called)) != len(called) or len(set(answered)) != len(answered):
        return f"tool call ids are not unique: {', '.join(sorted([*called, *answered]))}"
    missing, orphaned = set(called) - set(answered), set(answered) - set(called)
    if missing:
        return f"tool calls without a result: {', '.join(sorted(missing))}"
    if orphaned:
        return f"tool results without a call: {', '.join(sorted(orphaned))}"
    return None


def malformed(ids: Iterable[str], pattern: str) -> str | None:
    """Which id a provider would not take."""
    bad = [call_id for call_id in ids if not re.fullmatch(pattern, call_id)]
    return f"tool call id {bad[0]!r} does not match {pattern}" if bad else None
