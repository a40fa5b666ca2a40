"""Versioned values that rows hold as jsonb: messages and their parts, run input, actor, reply address.

Rows outlive releases: readers ignore fields they do not know, and keep parts of an unknown kind as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from stratus.channel.values import Attachment


class Value(BaseModel):
    """Immutable, tolerant of fields from later versions."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class TextPart(Value):
    """Visible text."""

    kind: Literal["text"] = "text"
    text: str
    provider: Mapping[str, Any] = Field(default_factory=dict)


class ThinkingPart(Value):
    """A model's reasoning. `provider` keeps signatures and ids, opaque, so that the conversation replays exactly."""

    kind: Literal["thinking"] = "thinking"
    text: str = ""
    provider: Mapping[str, Any] = Field(default_factory=dict)


class ToolCallPart(Value):
    """A call that the model proposes. `args` is the JSON text as the model wrote it, valid or not."""

    kind: Literal["tool_call"] = "tool_call"
    call_id: str
    name: str
    args: str = "{}"
    provider: Mapping[str, Any] = Field(default_factory=dict)


class ResultOutcome(StrEnum):
    """How a call ended, as the model is told."""

    OK = "ok"
    FAILED = "failed"
    DENIED = "denied"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    INTERRUPTED = "interrupted"


class ToolResultPart(Value):
    """The one answer to a call."""

    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    name: str
    content: str
    outcome: ResultOutcome = ResultOutcome.OK


class FilePart(Value):
    """A file of `size` bytes. They are kept under `sha256` (hexadecimal); only at a model's or a client's edge, and in rows of
    the first release, they stand in `data` (base64).
    """

    kind: Literal["file"] = "file"
    name: str
    mime: str
    data: str = ""
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    size: int | None = None

    def octets(self) -> int:
        """How many bytes it has."""
        return len(self.data.rstrip("=")) * 3 // 4 if self.size is None else self.size


class UnknownPart(BaseModel):
    """A part from a later version: kept, passed over by readers."""

    model_config = ConfigDict(frozen=True, extra="allow")
    kind: str


_KNOWN_PARTS = {"text", "thinking", "tool_call", "tool_result", "file"}


def _part_tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return kind if isinstance(kind, str) and kind in _KNOWN_PARTS else "unknown"


Part = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ThinkingPart, Tag("thinking")]
    | Annotated[ToolCallPart, Tag("tool_call")]
    | Annotated[ToolResultPart, Tag("tool_result")]
    | Annotated[FilePart, Tag("file")]
    | Annotated[UnknownPart, Tag("unknown")],
    Discriminator(_part_tag),
]
Role = Literal["user", "assistant", "tool"]

PARTS: TypeAdapter[list[Part]] = TypeAdapter(list[Part])


class Message(Value):
    """One message of a session's history."""

    role: Role
    parts: Sequence[Part]

    def text(self) -> str:
        """Its visible text."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    def calls(self) -> list[ToolCallPart]:
        """The calls that it proposes, in order."""
        return [part for part in self.parts if isinstance(part, ToolCallPart)]


class RunInput(Value):
    """What a run was asked: its text, and whatever came with it as parts. The claim builds the user's message of it, in SQL."""

    v: int = 1
    text: str = ""
    parts: Sequence[Part] = ()

    @classmethod
    def of(cls, text: str, attachments: Sequence[Attachment] = ()) -> RunInput:
        """From a text and attachments; one whose bytes are not at hand becomes an honest note."""
        return cls(text=text, parts=[_attached(item) for item in attachments])

    def message(self) -> Message:
        """The user's message as it enters history."""
        return Message(role="user", parts=[TextPart(text=self.text), *self.parts])


def _attached(item: Attachment) -> FilePart | TextPart:
    if item.sha256 is not None or item.data is not None:
        return FilePart(name=item.name, mime=item.mime, data=item.data or "", sha256=item.sha256, size=item.size)
    return TextPart(text=f"[attachment {item.name or item.kind} ({item.mime}): {item.missing or 'not available'}]")


class Actor(Value):
    """On whose behalf a run acts."""

    v: int = 1
    principal: str
    name: str = ""
    platform: str = ""
    sender: str = ""


class ReplyTo(Value):
    """Where the answer goes: pinned when the message is routed, so that no later step can forget the thread or the account."""

    v: int = 1
    channel_id: int
    platform: str
    chat: str
    thread: str = ""
    message_id: str | None = None
    account_key: str | None = None
    group: bool = False

    def lane(self) -> str:
        """The lane of its chat and thread."""
        return lane(self.chat, self.thread)


class Usage(Value):
    """What requests to models used, as their providers reported it; None where none did, which is not zero.

    `input_tokens` include those read from and written to the provider's cache. `cost` is US dollars at list price, a decimal number as text.
    `unreported` counts the requests whose tokens, `unpriced` those whose cost is not known: above 0, the sums are a part of the whole.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost: str | None = None
    requests: int = 0
    unreported: int = 0
    unpriced: int = 0

    @classmethod
    def unknown(cls) -> Usage:
        """A request that was sent, and of which nothing was heard that could be counted."""
        return cls(requests=1, unreported=1, unpriced=1)

    def plus(self, other: Usage) -> Usage:
        """The sum; a figure that neither reported stays unreported."""
        return Usage(
            input_tokens=_sum(self.input_tokens, other.input_tokens),
            output_tokens=_sum(self.output_tokens, other.output_tokens),
            cache_read_tokens=_sum(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens=_sum(self.cache_write_tokens, other.cache_write_tokens),
            cost=_sum_of_money(self.cost, other.cost),
            requests=self.requests + other.requests,
            unreported=self.unreported + other.unreported,
            unpriced=self.unpriced + other.unpriced,
        )


class RunError(Value):
    """Why a run did not complete: a stable code, and a sentence for the person who waits."""

    v: int = 1
    code: str
    message: str


def lane(chat: str, thread: str) -> str:
    """The name of a chat's or thread's lane. The separator cannot be part of a platform's chat id (PostgreSQL text has no NUL, so 0x1f)."""
    return f"{chat}\x1f{thread}" if thread else chat


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None and b is None else (a or 0) + (b or 0)


def _sum_of_money(a: str | None, b: str | None) -> str | None:
    return None if a is None and b is None else f"{Decimal(a or 0) + Decimal(b or 0):f}"
