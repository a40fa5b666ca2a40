"""Makes a history fit for a model request: every call answered once, right after it, and no answer without a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from stratus.domain.values import Message, Part, ResultOutcome, ToolCallPart, ToolResultPart

R = TypeVar("R")

INTERRUPTED = "This call was interrupted; whether it had any effect is not known."


def repaired(messages: Sequence[Message]) -> list[Message]:
    """The same history, with missing answers put in as interrupted and stray ones left out.

    Providers refuse a request in which a call has no answer in the very next message, or an answer has no call, and would refuse every later
    request of the session too (reliability.md D8).
    """
    return [message for _, message in repaired_by_run([(None, message) for message in messages], working=False)]


def repaired_by_run(said: Sequence[tuple[R, Message]], *, working: bool) -> list[tuple[R, Message]]:
    """The same with the run that each message belongs to; an answer that is put in belongs to the run of its calls.

    `working` says that the calls of the very last message are being carried out: those are not answered for it.
    """
    good: list[tuple[R, Message]] = []
    open_calls: list[ToolCallPart] = []
    for run, message in said:
        if open_calls:
            answer = _answers(open_calls, message)
            good.append((run if message.role == "tool" else good[-1][0], answer))
            open_calls = []
            if message.role == "tool":
                continue
        if message.role == "tool":
            continue
        good.append((run, message))
        open_calls = message.calls() if message.role == "assistant" else []
    if open_calls and not working:
        good.append((good[-1][0], _answers(open_calls, None)))
    return good


def _answers(calls: Sequence[ToolCallPart], following: Message | None) -> Message:
    given: dict[str, Part] = {}
    if following is not None and following.role == "tool":
        for part in following.parts:
            if isinstance(part, ToolResultPart):
                given.setdefault(part.call_id, part)
    parts = [given.get(call.call_id) or interrupted(call) for call in calls]
    return following if following is not None and list(following.parts) == parts else Message(role="tool", parts=parts)


def interrupted(call: ToolCallPart) -> ToolResultPart:
    """The honest answer to a call whose outcome nobody knows."""
    return ToolResultPart(call_id=call.call_id, name=call.name, content=INTERRUPTED, outcome=ResultOutcome.INTERRUPTED)


def result_of(call: ToolCallPart, outcome: Mapping[str, Any] | None) -> ToolResultPart:
    """The answer to a call from its row's outcome; a call without one was interrupted."""
    if outcome is None:
        return interrupted(call)
    return ToolResultPart(
        call_id=call.call_id, name=call.name, content=outcome["content"], outcome=ResultOutcome(outcome["outcome"])
    )
