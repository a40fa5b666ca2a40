"""Anthropic's Messages API as the fake model speaks it.

Source: Anthropic's API reference, "Messages", "Streaming Messages" and "Errors"; checked by its SDK in the tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from testbed.fakes.turns import Call
from testbed.fakes.wires import Answer, Body, Frame, malformed, sse, text_of, unpaired

_SIGNATURE = "fake-signature"
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}


class AnthropicMessages:
    """`POST /v1/messages`."""

    name = "anthropic"

    def read(self, body: Body) -> Call:
        messages = body["messages"]
        texts = [text_of(message["content"]) for message in messages if message["role"] == "user"]
        return Call(
            wire=self.name,
            model=body["model"],
            stream=bool(body.get("stream")),
            system=text_of(body.get("system", "")),
            user_texts=tuple(text for text in texts if text),
            messages=len(messages),
            tools=tuple(tool["name"] for tool in body.get("tools", ())),
            problem=_problem(messages),
            body=body,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        message = _message(answer)
        content: list[dict[str, Any]] = []
        for start, _, delta in _blocks(answer):
            if start["type"] == "tool_use":
                content.append({**start, "input": json.loads(delta)})
            elif start["type"] == "thinking":
                content.append({**start, "thinking": delta, "signature": _SIGNATURE})
            else:
                content.append({**start, "text": delta})
        usage = {**_input_usage(answer), "output_tokens": answer.output_tokens}
        return {**message, "content": content, "stop_reason": _stop(answer), "usage": usage}

    def frames(self, answer: Answer) -> Iterator[Frame]:
        usage = {**_input_usage(answer), "output_tokens": 1}
        yield _event("message_start", message={**_message(answer), "stop_reason": None, "usage": usage})
        for index, (start, kind, text) in enumerate(_blocks(answer)):
            yield _event("content_block_start", index=index, content_block=start)
            field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[kind]
            for piece in answer.pieces(text):
                yield _event("content_block_delta", True, index=index, delta={"type": kind, field: piece})
            if start["type"] == "thinking":
                signed = {"type": "signature_delta", "signature": _SIGNATURE}
                yield _event("content_block_delta", index=index, delta=signed)
            yield _event("content_block_stop", index=index)
        end = {"stop_reason": _stop(answer), "stop_sequence": None}
        yield _event("message_delta", delta=end, usage={"output_tokens": answer.output_tokens})
        yield _event("message_stop")

    def failing(self, answer: Answer, status: int, message: str) -> Frame:
        return sse(self.error(status, False, message), event="error")

    def error(self, status: int, context: bool, message: str) -> dict[str, Any]:
        if context:
            message = "prompt is too long: 250000 tokens > 200000 maximum"
        return {"type": "error", "error": {"type": _KINDS.get(status, "api_error"), "message": message}}


def _event(event: str, delta_frame: bool = False, /, **data: Any) -> Frame:
    return sse({"type": event, **data}, event=event, delta=delta_frame)


def _input_usage(answer: Answer) -> dict[str, int]:
    """`input_tokens` are those beside the cached ones."""
    return {
        "input_tokens": answer.input_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _message(answer: Answer) -> dict[str, Any]:
    fixed: dict[str, Any] = {"type": "message", "role": "assistant", "content": [], "stop_sequence": None}
    return {"id": f"msg_{answer.number}", "model": answer.call.model, **fixed}


def _stop(answer: Answer) -> str:
    return "tool_use" if answer.turn.tools else "end_turn"


def _blocks(answer: Answer) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each content block: as it starts, the kind of its deltas, and all of its text."""
    if answer.turn.thinking:
        yield {"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", answer.turn.thinking
    if answer.turn.text:
        yield {"type": "text", "text": ""}, "text_delta", answer.turn.text
    for call_id, tool in answer.tools("toolu"):
        yield {"type": "tool_use", "id": call_id, "name": tool.name, "input": {}}, "input_json_delta", tool.args


def _problem(messages: list[dict[str, Any]]) -> str | None:
    if messages and messages[0]["role"] != "user":
        return "messages: first message must use the user role"
    called: list[str] = []
    ever: set[str] = set()
    for message in _turns(messages):
        parts = message["content"]
        answered = [part["tool_use_id"] for part in parts if part["type"] == "tool_result"]
        problem = unpaired(called, answered) or _refused(message["role"], parts)
        if problem is not None:
            return problem
        called = [part["id"] for part in parts if part["type"] == "tool_use"]
        problem = malformed(called, "[a-zA-Z0-9_-]+")
        if problem is not None or ever & set(called):
            return problem or "`tool_use` ids must be unique"
        ever |= set(called)
    return unpaired(called, [])


def _turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of one role that follow one another count as one."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1] = {"role": message["role"], "content": [*turns[-1]["content"], *parts]}
        else:
            turns.append({"role": message["role"], "content": parts})
    return turns


def _refused(role: str, parts: list[dict[str, Any]]) -> str | None:
    """What a message's own blocks lack. `tool_result` blocks come first; a thinking block must be one that was signed here."""
    kinds = [part["type"] for part in parts]
    results = kinds.count("tool_result")
    if kinds[:results] != ["tool_result"] * results:
        return "`tool_result` blocks must come first in the message after their `tool_use` blocks"
    if not parts or any(part["type"] == "text" and not part["text"].strip() for part in parts):
        return "messages: text content blocks must be non-empty"
    allowed = {"user": {"text", "image", "document", "tool_result"}, "assistant": {"text", "thinking", "tool_use"}}[
        role
    ]
    if not set(kinds) <= allowed:
        return f"messages: blocks {sorted(set(kinds) - allowed)} are not those of the {role} role"
    if any(part["type"] == "thinking" and part.get("signature") != _SIGNATURE for part in parts):
        return "Invalid `signature` in `thinking` block"
    return None
