"""Stored messages to pydantic-ai's and back, so that a stored conversation reaches the provider exactly as it was.

Of a provider's part, the domain part holds what Stratus reads; all else (signatures, ids, details) is kept as
pydantic-ai's own JSON in the part's `provider` mapping. What belongs to the whole response is under `response` in its
first part. Parts that the domain does not know are kept whole.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import to_json

from stratus.agents.model import Stop
from stratus.domain.values import (
    FilePart,
    Message,
    Part,
    ResultOutcome,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    UnknownPart,
    Usage,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserContent

_RESPONSE = "response"
_RESPONSE_FIELDS = (
    "model_name",
    "provider_name",
    "provider_url",
    "provider_details",
    "provider_response_id",
    "canonical_system",
    "finish_reason",
)
_OPAQUE = "opaque"
_OUTCOMES: Mapping[ResultOutcome, Literal["success", "failed", "denied", "interrupted"]] = {
    ResultOutcome.OK: "success",
    ResultOutcome.FAILED: "failed",
    ResultOutcome.DENIED: "denied",
    ResultOutcome.EXPIRED: "denied",
    ResultOutcome.UNKNOWN: "failed",
    ResultOutcome.INTERRUPTED: "interrupted",
}
_STOPS: Mapping[str | None, Stop] = {
    "stop": "end",
    "tool_call": "tool_use",
    "length": "length",
    "content_filter": "refusal",
}
# What all three wires take as bytes: images as in both providers' vision guides, and PDF.
_BINARY_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/x-ndjson"})
_TEXT_FILE_MAX = 100_000
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


def _acceptable(call_id: str) -> str:
    """The same id where every wire takes it, else one made from it: a conversation may go on with another provider.

    Anthropic takes these characters only, Chat Completions 40 of them (both seen as a 400 of theirs).
    """
    if _CALL_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:24]}"


def to_provider(system: str, messages: Sequence[Message], *, blank_text: bool = True) -> list[ModelMessage]:
    """The conversation as pydantic-ai sends it; `system` goes with the last request. Parts of an unknown kind are
    passed over, and those of only white space where a wire refuses them (`blank_text`).
    """
    converted = [_response(item, blank_text) if item.role == "assistant" else _request(item) for item in messages]
    for message in reversed(converted):
        if message.kind == "request":
            message.instructions = system or None
            break
    return converted


def from_provider(response: ModelResponse) -> Message:
    """The message to store; its parts have the same indices as the response's."""
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    [dumped] = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    head = {name: dumped[name] for name in _RESPONSE_FIELDS if dumped.get(name) is not None}
    return Message(
        role="assistant",
        parts=[_stored(part, {_RESPONSE: head} if index == 0 else {}) for index, part in enumerate(dumped["parts"])],
    )


def usage_of(response: ModelResponse) -> Usage:
    """What is known of one request's use, complete or not; a provider that reported no tokens has not used zero."""
    usage = response.usage
    if usage.unmeasured_requests or not (usage.input_tokens or usage.output_tokens):
        return Usage.unknown()
    cost = _cost(response)
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        # pydantic-ai has 0 here also for what was not reported.
        cache_read_tokens=usage.cache_read_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
        cost=cost,
        requests=1,
        unpriced=int(cost is None),
    )


def _cost(response: ModelResponse) -> str | None:
    """US dollars at the list price that genai-prices has for the model's name, by its server's address or else its provider."""
    if not response.model_name:
        return None
    try:
        return f"{response.cost().total_price:f}"
    except (LookupError, ValueError):  # an unknown model; counts that contradict each other
        return None


def stop_of(response: ModelResponse, message: Message) -> Stop:
    """Why the model stopped. Some servers say `stop` where they call a tool; the calls are what counts."""
    stop = _STOPS.get(response.finish_reason, "other")
    return "tool_use" if stop == "end" and message.calls() else stop


def _stored(part: dict[str, Any], provider: dict[str, Any]) -> Part:
    provider.update({name: value for name, value in part.items() if value is not None})
    kind = provider.pop("part_kind")
    if kind == "text":
        return TextPart(text=provider.pop("content"), provider=provider)
    if kind == "thinking":
        return ThinkingPart(text=provider.pop("content"), provider=provider)
    if kind == "tool-call":
        args = provider.pop("args", None)
        return ToolCallPart(
            call_id=provider.pop("tool_call_id"),
            name=provider.pop("tool_name"),
            args=(args if isinstance(args, str) else to_json(args or {}).decode()) or "{}",
            provider=provider,
        )
    return UnknownPart.model_validate({"kind": _OPAQUE, "provider": {**provider, "part_kind": kind}})


def _response(message: Message, blank_text: bool) -> ModelResponse:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    head: dict[str, Any] = {}
    parts = []
    for part in message.parts:
        fields = _provided(part)
        if fields is not None:
            head = fields.pop(_RESPONSE, head)
            if blank_text or fields["part_kind"] != "text" or fields["content"].strip():
                parts.append(fields)
    # JSON, because that is the mode in which pydantic-ai reads what it dumped (bytes are base64 there).
    [response] = ModelMessagesTypeAdapter.validate_json(json.dumps([{**head, "kind": "response", "parts": parts}]))
    assert response.kind == "response"
    return response


def _provided(part: Part) -> dict[str, Any] | None:
    match part:
        case TextPart():
            return {**part.provider, "part_kind": "text", "content": part.text}
        case ThinkingPart():
            return {**part.provider, "part_kind": "thinking", "content": part.text}
        case ToolCallPart():
            call = {"tool_call_id": _acceptable(part.call_id), "tool_name": part.name, "args": part.args}
            return {**part.provider, "part_kind": "tool-call", **call}
        case UnknownPart(kind="opaque"):
            return dict((part.model_extra or {}).get("provider", {})) or None
    return None


def _request(message: Message) -> ModelRequest:
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    results = [
        ToolReturnPart(part.name, part.content or "(empty)", _acceptable(part.call_id), outcome=_OUTCOMES[part.outcome])
        for part in message.parts
        if isinstance(part, ToolResultPart)
    ]
    content = [item for part in message.parts for item in _content(part)]
    if not content and not results:
        content = ["(empty message)"]  # the wires refuse a message without content
    prompt = [UserPromptPart(content[0] if len(content) == 1 and isinstance(content[0], str) else content)]
    return ModelRequest(parts=[*results, *(prompt if content else [])])


def _content(part: Part) -> Iterator[UserContent]:
    if isinstance(part, TextPart) and part.text.strip():
        yield part.text
    elif isinstance(part, FilePart):
        yield _file(part)


def shows(mime: str) -> bool:
    """Whether a file of this type can be put before a model: as bytes, or as text."""
    plain = _plain(mime)
    return plain in _BINARY_TYPES or _is_text(plain)


def _file(part: FilePart) -> UserContent:
    from pydantic_ai.messages import BinaryContent

    mime, octets = _plain(part.mime), part.octets()
    if octets and not part.data and shows(mime):
        return f"[file {part.name} ({mime}, {octets} bytes): not part of this request, which has room for newer files only]"
    try:
        data = base64.b64decode(part.data, validate=True)
        if data and mime in _BINARY_TYPES:
            return BinaryContent(data, media_type=mime)
        if _is_text(mime):
            return _text_file(part.name, data.decode("utf-8"))
    except (binascii.Error, UnicodeDecodeError):
        pass
    return f"[file {part.name} ({mime}, {octets} bytes): its content cannot be shown to this model]"


def _plain(mime: str) -> str:
    return mime.partition(";")[0].strip().lower()


def _is_text(mime: str) -> bool:
    return mime.startswith("text/") or mime in _TEXT_TYPES


def _text_file(name: str, text: str) -> str:
    cut = f"\n[cut: {len(text)} characters, the first {_TEXT_FILE_MAX} are shown]" if len(text) > _TEXT_FILE_MAX else ""
    return f"[file {name}]\n{text[:_TEXT_FILE_MAX]}{cut}"
