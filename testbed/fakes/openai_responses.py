"""OpenAI's Responses API as the fake model speaks it.

Source: OpenAI's API reference, "Responses" and its streaming events; checked by its SDK in the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from testbed.fakes.openai_chat import openai_error
from testbed.fakes.turns import Call
from testbed.fakes.wires import Answer, Body, Frame, malformed, sse, text_of, unpaired

_SEALED, _SEAL = "reasoning.encrypted_content", "fake-sealed-reasoning"
_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
_HOLLOW: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
}


class Responses:
    """`POST /v1/responses`."""

    name = "openai-responses"

    def read(self, body: Body) -> Call:
        given = body["input"]
        everything = [{"role": "user", "content": given}] if isinstance(given, str) else given
        items = [item for item in everything if item.get("role") not in ("system", "developer")]
        system = [text_of(item["content"]) for item in everything if item.get("role") in ("system", "developer")]
        return Call(
            wire=self.name,
            model=body["model"],
            stream=bool(body.get("stream")),
            system="\n".join([*([body["instructions"]] if body.get("instructions") else []), *system]),
            user_texts=tuple(text_of(item["content"]) for item in items if item.get("role") == "user"),
            messages=len(items),
            tools=tuple(tool["name"] for tool in body.get("tools", ()) if "name" in tool),
            problem=_problem(items),
            body=body,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        incoming, outgoing = answer.input_tokens, answer.output_tokens
        return {
            **_response(answer),
            "status": "completed",
            "output": _items(answer),
            "usage": {
                "input_tokens": incoming,
                "output_tokens": outgoing,
                "total_tokens": incoming + outgoing,
                "input_tokens_details": {"cached_tokens": answer.cached_tokens},
                "output_tokens_details": {"reasoning_tokens": len(answer.turn.thinking) // 4},
            },
        }

    def frames(self, answer: Answer) -> Iterator[Frame]:
        numbers = itertools.count()

        def event(kind: str, delta_frame: bool = False, /, **data: Any) -> Frame:
            return sse({"type": kind, "sequence_number": next(numbers), **data}, event=kind, delta=delta_frame)

        yield event("response.created", response=_response(answer))
        yield event("response.in_progress", response=_response(answer))
        for index, item in enumerate(_items(answer)):
            place = {"item_id": item["id"], "output_index": index}
            started = {**item, **_HOLLOW[item["type"]], "status": "in_progress"}
            yield event("response.output_item.added", output_index=index, item=started)
            for kind, is_delta, data in _item_events(answer, item):
                yield event(f"response.{kind}", is_delta, **place, **data)
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.completed", response=self.whole(answer))

    def failing(self, answer: Answer, status: int, message: str) -> Frame:
        code = {429: "rate_limit_exceeded", 529: "server_is_overloaded"}.get(status, "server_error")
        failed = {**_response(answer), "status": "failed", "error": {"code": code, "message": message}}
        event = {"type": "response.failed", "sequence_number": 9_999, "response": failed}
        return sse(event, event="response.failed")

    def error(self, status: int, context: bool, message: str) -> dict[str, Any]:
        return openai_error(status, context, message)


def _response(answer: Answer) -> dict[str, Any]:
    fixed = {"object": "response", "created_at": 1, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"id": f"resp_{answer.number}", "model": answer.call.model, "status": "in_progress", "output": [], **fixed}


def _items(answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.turn.thinking:
        summary = [{"type": "summary_text", "text": answer.turn.thinking}]
        sealed = {"encrypted_content": _SEAL} if _SEALED in (answer.call.body.get("include") or ()) else {}
        items.append({"id": f"rs_{answer.number}", "type": "reasoning", "summary": summary, **sealed})
    if answer.turn.text:
        part = {"type": "output_text", "text": answer.turn.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{answer.number}", "type": "message", "role": "assistant", "content": [part]}
        items.append({**message, "status": "completed"})
    for call_id, tool in answer.tools("call"):
        call = {"id": f"fc_{call_id}", "type": "function_call", "call_id": call_id, "name": tool.name}
        items.append({**call, "arguments": tool.args, "status": "completed"})
    return items


def _item_events(answer: Answer, item: dict[str, Any]) -> Iterator[tuple[str, bool, dict[str, Any]]]:
    """The events between an item's start and end: name, whether it is a delta, data."""
    if item["type"] == "message":
        part = item["content"][0]
        yield "content_part.added", False, {"content_index": 0, "part": {**part, "text": ""}}
        for piece in answer.pieces(part["text"]):
            yield "output_text.delta", True, {"content_index": 0, "delta": piece, "logprobs": []}
        yield "output_text.done", False, {"content_index": 0, "text": part["text"], "logprobs": []}
        yield "content_part.done", False, {"content_index": 0, "part": part}
    elif item["type"] == "reasoning":
        part = item["summary"][0]
        yield "reasoning_summary_part.added", False, {"summary_index": 0, "part": {**part, "text": ""}}
        for piece in answer.pieces(part["text"]):
            yield "reasoning_summary_text.delta", True, {"summary_index": 0, "delta": piece}
        yield "reasoning_summary_text.done", False, {"summary_index": 0, "text": part["text"]}
        yield "reasoning_summary_part.done", False, {"summary_index": 0, "part": part}
    else:
        for piece in answer.pieces(item["arguments"]):
            yield "function_call_arguments.delta", True, {"delta": piece}
        yield "function_call_arguments.done", False, {"arguments": item["arguments"], "name": item["name"]}


def _problem(items: list[dict[str, Any]]) -> str | None:
    called: list[str] = []
    answered: list[str] = []
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            called.append(item["call_id"])
        elif kind == "function_call_output":
            answered.append(item["call_id"])
            if item["call_id"] not in called:
                return f"No tool call found for function call output with call_id {item['call_id']}"
        elif kind == "message" and item.get("role") == "user" and set(called) - set(answered):
            return unpaired(called, answered)
        if (problem := _refused(item, kind, items[at + 1 :])) is not None:
            return problem
    return unpaired(called, answered) or malformed(called, ".{1,64}")


def _refused(item: dict[str, Any], kind: str, following: list[dict[str, Any]]) -> str | None:
    """What is wrong with an item by itself: its id, a message without content, reasoning without its seal or without what it led to."""
    prefix = _PREFIXES.get(kind)
    if prefix is not None and not str(item.get("id") or prefix).startswith(prefix):
        return f"Invalid id {item['id']!r}. Expected an ID that begins with {prefix!r}"
    if kind == "message" and not item.get("content"):
        return "a message has no content"
    if kind == "reasoning":
        if item.get("encrypted_content") != _SEAL:
            return f"Item with id {item.get('id')!r} not found. Items are not persisted when `store` is set to false"
        led_to = following[0].get("type", "message") if following else ""
        if led_to not in ("reasoning", "function_call") and (led_to, following[:1] and following[0].get("role")) != (
            "message",
            "assistant",
        ):
            return f"Item {item.get('id')!r} of type 'reasoning' was provided without its required following item"
    return None
