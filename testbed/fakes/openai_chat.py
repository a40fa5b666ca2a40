"""OpenAI's Chat Completions API as the fake model speaks it, and the errors of all of OpenAI's APIs.

Source: OpenAI's API reference, "Chat", its streaming events, and "Error codes"; checked by its SDK in the tests.
Thinking is `reasoning_content`, as OpenAI-compatible servers send it: OpenAI itself sends none here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.fakes.turns import Call
from testbed.fakes.wires import Answer, Body, Frame, malformed, sse, text_of, unpaired

_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded", 529: "overloaded"}


def openai_error(status: int, context: bool, message: str) -> dict[str, Any]:
    """The body of an error of either OpenAI API; `context`: the prompt is too long."""
    kind = "invalid_request_error" if status < 429 else "requests" if status == 429 else "server_error"
    code = "context_length_exceeded" if context else _CODES.get(status)
    if context:
        message = "This model's maximum context length is 128000 tokens."
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    name = "openai-chat"

    def read(self, body: Body) -> Call:
        messages = [message for message in body["messages"] if message["role"] not in ("system", "developer")]
        system = [message for message in body["messages"] if message["role"] in ("system", "developer")]
        return Call(
            wire=self.name,
            model=body["model"],
            stream=bool(body.get("stream")),
            system="\n".join(text_of(message["content"]) for message in system),
            user_texts=tuple(text_of(message["content"]) for message in messages if message["role"] == "user"),
            messages=len(messages),
            tools=tuple(tool["function"]["name"] for tool in body.get("tools", ())),
            problem=_chat_problem(messages),
            body=body,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.turn.text or None}
        if answer.turn.thinking:
            message["reasoning_content"] = answer.turn.thinking
        if answer.turn.tools:
            message["tool_calls"] = _chat_calls(answer)
        choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
        return {**_chat_head(answer, "chat.completion"), "choices": [choice], "usage": _chat_usage(answer)}

    def frames(self, answer: Answer) -> Iterator[Frame]:
        yield _chunk(answer, {"role": "assistant", "content": ""})
        if answer.turn.thinking:
            for piece in answer.pieces(answer.turn.thinking):
                yield _chunk(answer, {"reasoning_content": piece}, delta=True)
        if answer.turn.text:
            for piece in answer.pieces(answer.turn.text):
                yield _chunk(answer, {"content": piece}, delta=True)
        for index, call in enumerate(_chat_calls(answer)):
            opening = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
            yield _chunk(answer, {"tool_calls": [opening]})
            for piece in answer.pieces(call["function"]["arguments"]):
                yield _chunk(answer, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, delta=True)
        yield _chunk(answer, {}, finish=_finish(answer))
        if answer.turn.counted and (answer.call.body.get("stream_options") or {}).get("include_usage"):
            head = _chat_head(answer, "chat.completion.chunk")
            yield sse({**head, "choices": [], "usage": _chat_usage(answer)})
        yield sse("[DONE]")

    def failing(self, answer: Answer, status: int, message: str) -> Frame:
        return sse(openai_error(status, False, message))

    def error(self, status: int, context: bool, message: str) -> dict[str, Any]:
        return openai_error(status, context, message)


def _chat_head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.number}", "object": kind, "created": 1, "model": answer.call.model}


def _chat_usage(answer: Answer) -> dict[str, Any]:
    incoming, outgoing = answer.input_tokens, answer.output_tokens
    details = {"prompt_tokens_details": {"cached_tokens": answer.cached_tokens}}
    return {"prompt_tokens": incoming, "completion_tokens": outgoing, "total_tokens": incoming + outgoing, **details}


def _chat_calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"id": call_id, "type": "function", "function": {"name": tool.name, "arguments": tool.args}}
        for call_id, tool in answer.tools("call")
    ]


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.turn.tools else "stop"


def _chunk(answer: Answer, content: dict[str, Any], *, finish: str | None = None, delta: bool = False) -> Frame:
    choice = {"index": 0, "delta": content, "finish_reason": finish, "logprobs": None}
    return sse({**_chat_head(answer, "chat.completion.chunk"), "choices": [choice]}, delta=delta)


def _chat_problem(messages: list[dict[str, Any]]) -> str | None:
    called: list[str] = []
    answered: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            answered.append(message["tool_call_id"])
            continue
        if (problem := unpaired(called, answered)) is not None:
            return problem
        called, answered = [call["id"] for call in message.get("tool_calls") or ()], []
        if (problem := malformed(called, ".{1,40}")) is not None:
            return problem
        if not message.get("content") and not called:
            return f"messages with role {message['role']!r} must have content or tool calls"
    return unpaired(called, answered)
