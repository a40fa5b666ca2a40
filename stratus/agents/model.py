"""The provider seam: what the turn asks of a model, what it hears back, and how a model fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stratus.domain.agent import ToolEffect
from stratus.domain.errors import StratusError
from stratus.domain.values import Message, Usage

Stop = Literal["end", "tool_use", "length", "refusal", "other"]
ErrorCode = Literal[
    "rate_limited",
    "overloaded",
    "unavailable",
    "timeout",
    "connect",
    "auth",
    "not_found",
    "rejected",
    "context_overflow",
    "quota",
    "bad_response",
]
_RETRYABLE = frozenset({"rate_limited", "overloaded", "unavailable", "timeout", "connect", "bad_response"})


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model is told of it. `parameters` is a JSON schema of an object.

    `effect` says what a repeat does: `read` and `idempotent` may run again after a crash, `once` may not. `known_as` is
    what people call it when that is no name for a provider, such as `mcp:files/read`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: ToolEffect = "once"
    known_as: str = ""

    @property
    def policy_name(self) -> str:
        """What the patterns of an agent's `tools`, `approve` and `effects` match."""
        return self.known_as or self.name


@dataclass(frozen=True)
class ModelRequest:
    """One request. `messages` end with what the model is to answer; `settings` are the provider's own (temperature,
    max_tokens …).
    """

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextDelta:
    """More visible text of the part with index `part` of the message in making."""

    part: int
    text: str


@dataclass(frozen=True)
class ThinkingDelta:
    """More of the model's reasoning."""

    part: int
    text: str


@dataclass(frozen=True)
class ToolCallDelta:
    """More of a call's arguments: `args` is a fragment of JSON text. Only for showing; the call itself is in the
    message.
    """

    part: int
    name: str
    args: str


@dataclass(frozen=True)
class Alive:
    """The provider is at work, with nothing to show: reasoning that it keeps to itself, a part's end."""


@dataclass(frozen=True)
class ModelDone:
    """The answer is complete. `message` replays exactly to the model that made it.

    `left_out` is the number of the history's first messages that the model was not shown, because not all of it fitted.
    """

    message: Message
    usage: Usage
    stop: Stop
    left_out: int = 0


ModelEvent = TextDelta | ThinkingDelta | ToolCallDelta | Alive | ModelDone


class Model(Protocol):
    """A model that may serve many requests at once."""

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Send the request; iterate for its events: deltas and signs of life, then exactly one ModelDone, which is last.

        Leaving the context cancels the provider's request. Makes one attempt and never retries. Entering and iterating
        raise ModelError.
        """


class ModelError(StratusError):
    """A request to a model failed. The message is a sentence for the person who waits; the provider's own error is the
    cause.

    `retryable` follows from `code`: the same request may succeed later. `retry_after` is the provider's own demand in
    seconds. `usage` is what the attempt cost all the same, as far as it is known.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, retry_after: float | None = None, usage: Usage | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = code in _RETRYABLE
        self.retry_after = retry_after
        self.usage = usage or Usage()
