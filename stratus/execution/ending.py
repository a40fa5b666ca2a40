"""How a turn ends: the answer with its events and ops, or what had become visible of one that was broken off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratus.agents.model import ModelDone
from stratus.agents.pool import ModelPool
from stratus.agents.toolsets import Toolsets
from stratus.channel.values import Limits
from stratus.domain.chain import PlannedOp, notice, reply_chain
from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.values import FilePart, Message, RunError, TextPart, Usage
from stratus.effects import Batcher, Clock, Failpoints, Ids
from stratus.execution.calls import Calls
from stratus.execution.journal import Journal
from stratus.store.database import Database
from stratus.store.plan import NewOp, addressed
from stratus.store.run import ClaimedRun, Ending


@dataclass(frozen=True)
class Conclusion:
    """How the work ended; `answer` is the model's last message where there is one."""

    event: RunEvent
    answer: Message | None = None
    error: RunError | None = None


@dataclass(frozen=True)
class Left:
    """What a turn has come to: its messages, its calls once they are known, and what it has used."""

    said: Sequence[Message]
    calls: Calls | None
    usage: Usage


@dataclass(frozen=True)
class TurnTools:
    """What every turn of a replica works with. `limits` are a platform's; `toolsets` opens an agent's tools."""

    db: Database
    models: ModelPool
    toolsets: Toolsets
    finisher: Batcher[Ending, bool]
    limits: Callable[[str], Limits]
    clock: Clock
    ids: Ids
    failpoints: Failpoints


async def ending_of(
    conclusion: Conclusion, claimed: ClaimedRun, journal: Journal, left: Left, tools: TurnTools
) -> Ending:
    """What the finish commits. The caller holds the journal's lock for good."""
    files = _files(claimed, left.calls) if conclusion.answer is not None else []
    streamed = journal.take()
    messages = _last_messages(conclusion, journal, left)
    events = [event for message in messages if message.role == "assistant" for event in _answer_events(message)]
    return Ending(
        lease=claimed.lease,
        attempt=claimed.attempt,
        run_seq=journal.run_seq,
        event=conclusion.event,
        finish_token=tools.ids.uuid(),
        events=[*streamed, *events],
        messages=messages,
        ops=_ops(conclusion, claimed, files, tools.limits),
        error=conclusion.error,
        usage=left.usage,
    )


def response_events(message: Message, done: ModelDone) -> list[NewEvent]:
    """The events of a model's message that proposes calls."""
    calls = message.calls()
    return [
        *_text_events(message),
        NewEvent("message.assistant", {"text": message.text(), "calls": [call.call_id for call in calls]}),
        NewEvent("usage", done.usage.model_dump(mode="json")),
        *(NewEvent("tool.proposed", {"call_id": call.call_id, "name": call.name, "args": call.args}) for call in calls),
    ]


def _files(claimed: ClaimedRun, calls: Calls | None) -> list[FilePart]:
    """What the calls produced for the person: their bytes were stored with the calls' results, and stay where they are."""
    if calls is None or claimed.reply_to is None:
        return []
    return [FilePart.model_validate({**file, "kind": "file"}) for file in calls.files()]


def _last_messages(conclusion: Conclusion, journal: Journal, left: Left) -> list[Message]:
    """The answer; or, of a turn that was broken off, what had become visible, and an answer to each call."""
    if conclusion.answer is not None:
        return [conclusion.answer]
    if conclusion.event is RunEvent.YIELD:
        return []
    open_calls = left.said[-1].calls() if left.said and left.said[-1].role == "assistant" else []
    if open_calls and left.calls is not None:
        return [left.calls.broken_off(open_calls)]
    spoken = journal.spoken()
    return [Message(role="assistant", parts=[TextPart(text=spoken)])] if spoken else []


def _ops(
    conclusion: Conclusion, claimed: ClaimedRun, files: Sequence[FilePart], limits: Callable[[str], Limits]
) -> list[NewOp]:
    to = claimed.reply_to
    if to is None:
        return []
    key = f"run:{claimed.run}"
    planned: list[PlannedOp] = []
    if conclusion.answer is not None:
        planned = reply_chain(conclusion.answer.text(), files, to, limits(to.platform), key=key)
    elif conclusion.error is not None:
        planned = [notice(f"⚠ {conclusion.error.message}", to, key)]
    return addressed(planned, to, claimed.lease.run_id)


def _text_events(message: Message) -> list[NewEvent]:
    return [
        NewEvent("text.completed", {"part": index, "text": part.text})
        for index, part in enumerate(message.parts)
        if isinstance(part, TextPart) and part.text
    ]


def _answer_events(message: Message) -> list[NewEvent]:
    return [*_text_events(message), NewEvent("message.assistant", {"text": message.text()})]
