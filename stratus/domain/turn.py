"""What a turn does next, decided from what it has committed so far: so any replica can take it up at any step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratus.domain.values import Message, ToolCallPart, ToolResultPart


@dataclass(frozen=True)
class AskModel:
    """Make a model request over the history."""


@dataclass(frozen=True)
class AnswerCalls:
    """Run or settle these calls of the last message, in order."""

    calls: Sequence[ToolCallPart]


@dataclass(frozen=True)
class Conclude:
    """The last message is the answer."""

    answer: Message


def next_action(said: Sequence[Message]) -> AskModel | AnswerCalls | Conclude:
    """From the messages of this run in order, its user's message included."""
    if not said or said[-1].role != "assistant":
        return AskModel()
    calls = said[-1].calls()
    return AnswerCalls(calls) if calls else Conclude(said[-1])


def answered(calls: Sequence[ToolCallPart], results: Sequence[ToolResultPart]) -> Message:
    """The message that answers every call once, in the order of the calls."""
    by_id = {result.call_id: result for result in results}
    return Message(role="tool", parts=[by_id[call.call_id] for call in calls])
