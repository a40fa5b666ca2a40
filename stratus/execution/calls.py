"""Tool calls of a turn: intent committed before the tool acts, result committed before the next step, one result each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from stratus.agents.tools import ProducedFile, Tool, ToolContext, ToolOutcome
from stratus.channel.text import clean
from stratus.domain.agent import ToolEffect
from stratus.domain.delegation import verdict
from stratus.domain.errors import NotApproved
from stratus.domain.event import NewEvent
from stratus.domain.history import interrupted, result_of
from stratus.domain.refusal import ArgumentsChanged, Refusal, ended_by_others
from stratus.domain.tool_call import TOOL_CALL, CallEvent, CallState
from stratus.domain.turn import CallFact, answered
from stratus.domain.values import Message, ResultOutcome, ToolCallPart, ToolResultPart
from stratus.effects import Failpoints
from stratus.execution.journal import Journal
from stratus.execution.notices import Notifier
from stratus.store.plan import NewOp
from stratus.store.tool_call import CallMove, NewCall, StoredCall

# A watcher sees this much of a result; the model gets all of it.
SHOWN_CHARACTERS = 2_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _End:
    """How a call ends: what the model is told, the row's move where the call's end is ours to commit, and what comes with it."""

    content: str
    verdict: ResultOutcome
    event: CallEvent
    files: Sequence[ProducedFile] = ()
    ops: Sequence[NewOp] = ()


class Calls:
    """The calls of one run, as they stand: `stored` is what is committed, and each commit here keeps it so."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        context: ToolContext,
        journal: Journal,
        stored: Sequence[StoredCall],
        failpoints: Failpoints,
        notifier: Notifier,
    ) -> None:
        self._tools = tools
        self._context = context
        self._journal = journal
        self._stored = {call.call_id: call for call in stored}
        self._failpoints = failpoints
        self._notifier = notifier

    def facts(self) -> dict[str, CallFact]:
        """What the next step is decided from."""
        return {
            call_id: CallFact(
                call.state, call.effect in ("read", "idempotent"), None if call.child is None else call.child.open
            )
            for call_id, call in self._stored.items()
        }

    def names(self) -> list[tuple[str, str]]:
        """Id and name of each call, in order."""
        return [(call.call_id, call.name) for call in self._stored.values()]

    def files(self) -> list[Mapping[str, Any]]:
        """Files that the calls have produced: `name`, `mime`, `size` and `sha256` (hexadecimal) of each."""
        return [file for call in self._stored.values() for file in (call.outcome or {}).get("files", ())]

    def named_apart(self, message: Message) -> Message:
        """The message with call ids that are unique in the run: some providers number calls anew in each message."""
        parts, used = [], set(self._stored)
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                call_id, n = part.call_id or "call", 1
                while call_id in used:
                    n += 1
                    call_id = f"{part.call_id}~{n}"
                used.add(call_id)
                part = part.model_copy(update={"call_id": call_id, "args": clean(part.args)})
            parts.append(part)
        return Message(role=message.role, parts=parts)

    def proposals(self, message: Message) -> list[NewCall]:
        """The rows for its calls."""
        return [NewCall(call.call_id, call.name, call.args, self._effect(call)) for call in message.calls()]

    def proposed(self, step: int, rows: Sequence[NewCall]) -> None:
        """These rows have been committed."""
        for row in rows:
            self._stored[row.call_id] = StoredCall(
                row.call_id, step, row.name, CallState.PROPOSED, row.effect, None, None, None, None
            )

    async def start(self, call: ToolCallPart, *, approved: bool) -> bool:
        """Commit the intent. False when the call's approval does not cover it: then it has ended so."""
        shown = {"call_id": call.call_id, "name": call.name}
        move = CallMove(call.call_id, CallEvent.START, consumes=approved)
        await self._failpoints.hit("tool.before_intent")
        try:
            await self._journal.commit(0, [NewEvent("tool.started", shown)], moves=[move])
        except NotApproved:
            return False
        self._moved(call, CallEvent.START)
        await self._failpoints.hit("tool.after_start")
        return True

    async def act(self, call: ToolCallPart, among: Sequence[ToolCallPart]) -> Message | None:
        """Let the tool act and commit its result. Returns the message that answers `among` when this was the last of them."""
        context = replace(
            self._context, call_id=call.call_id, progress=lambda text: self._journal.output(call.call_id, text)
        )
        outcome = await self._tools[call.name].run(call.args, context)
        await self._failpoints.hit("tool.before_result")
        return await self._end(call, among, await self._end_of(call, outcome))

    async def refuse(self, call: ToolCallPart, among: Sequence[ToolCallPart], why: Refusal) -> Message | None:
        """End a call for a reason of ours; see `act` for what is returned."""
        if why.event is CallEvent.LOSE:
            log.warning("tool.unknown", run=str(self._context.run), call=call.call_id, tool=call.name)
        return await self._end(call, among, _End(why.text, why.outcome, why.event))

    async def not_approved(self, call: ToolCallPart, among: Sequence[ToolCallPart]) -> Message | None:
        """End a call whose approval was given for other arguments."""
        log.warning("tool.not_approved", run=str(self._context.run), call=call.call_id, tool=call.name)
        return await self.refuse(call, among, ArgumentsChanged())

    async def read_child(self, call: ToolCallPart, among: Sequence[ToolCallPart]) -> Message | None:
        """Make the outcome of a child that has ended the call's; see `act` for what is returned."""
        child = self._stored[call.call_id].child
        assert child is not None
        content, outcome = verdict(child.agent_id, child.state, child.reply, child.error, child.error_code)
        event = CallEvent.SUCCEED if outcome is ResultOutcome.OK else CallEvent.FAIL
        done = NewEvent("delegate.done", {"call_id": call.call_id, "run": str(child.run), "outcome": str(outcome)})
        return await self._end(call, among, _End(content, outcome, event), [done])

    async def settle(self, among: Sequence[ToolCallPart]) -> Message:
        """Commit the message that answers calls of which the last was ended by somebody else."""
        message = self._answers(among)
        await self._journal.commit(0, [], messages=[message])
        return message

    def broken_off(self, calls: Sequence[ToolCallPart]) -> Message:
        """The answer to calls of which some did not come to their end."""
        return answered(calls, [self._result(call) if self._ended(call) else interrupted(call) for call in calls])

    def _answers(self, calls: Sequence[ToolCallPart]) -> Message:
        return answered(calls, [self._result(call) for call in calls])

    def _ended(self, call: ToolCallPart) -> bool:
        stored = self._stored.get(call.call_id)
        return stored is not None and str(stored.state) in TOOL_CALL.terminal()

    def _result(self, call: ToolCallPart) -> ToolResultPart:
        stored = self._stored[call.call_id]
        if stored.outcome is not None:
            return result_of(call, stored.outcome)
        content, outcome = ended_by_others(stored.state, stored.decided_by, stored.note)
        return ToolResultPart(call_id=call.call_id, name=call.name, content=content, outcome=outcome)

    async def _end_of(self, call: ToolCallPart, outcome: ToolOutcome) -> _End:
        told = await self._notifier.told(call.call_id, outcome.notices)
        if told.problem is not None:
            return _End(told.problem, ResultOutcome.FAILED, CallEvent.FAIL)
        if outcome.failed:
            return _End(outcome.content, ResultOutcome.FAILED, CallEvent.FAIL, outcome.files, told.ops)
        content = outcome.content if told.instead is None else told.instead
        return _End(content, ResultOutcome.OK, CallEvent.SUCCEED, outcome.files, told.ops)

    async def _end(
        self, call: ToolCallPart, among: Sequence[ToolCallPart], end: _End, events: Sequence[NewEvent] = ()
    ) -> Message | None:
        files = [_described(file) for file in end.files]
        content = clean(end.content)
        outcome = {"content": content, "outcome": str(end.verdict), **({"files": files} if files else {})}
        before = self._stored[call.call_id]
        self._moved(call, end.event, outcome)
        message = self._answers(among) if among and all(self._ended(one) for one in among) else None
        try:
            await self._journal.commit(
                0,
                [
                    *(NewEvent("file.produced", {"call_id": call.call_id, **file}) for file in files),
                    _told(call, content, end.verdict),
                    *events,
                ],
                messages=[] if message is None else [message],
                moves=[CallMove(call.call_id, end.event, outcome)],
                blobs=[file.data for file in end.files],
                ops=end.ops,
            )
        except BaseException:
            self._stored[call.call_id] = before  # what was broken off is told as it stands in the database
            raise
        return message

    def _moved(self, call: ToolCallPart, event: CallEvent, outcome: Mapping[str, Any] | None = None) -> None:
        stored = self._stored[call.call_id]
        self._stored[call.call_id] = replace(stored, state=TOOL_CALL.after(stored.state, event), outcome=outcome)

    def _effect(self, call: ToolCallPart) -> ToolEffect:
        tool = self._tools.get(call.name)
        return "once" if tool is None else tool.spec.effect


def _described(file: ProducedFile) -> dict[str, Any]:
    digest = hashlib.sha256(file.data).hexdigest()
    return {"name": file.name, "mime": file.mime, "size": len(file.data), "sha256": digest}


def _told(call: ToolCallPart, content: str, verdict: ResultOutcome) -> NewEvent:
    return NewEvent(
        "tool.done" if verdict is ResultOutcome.OK else "tool.failed",
        {
            "call_id": call.call_id,
            "name": call.name,
            "outcome": str(verdict),
            "content": content[:SHOWN_CHARACTERS],
            "truncated": len(content) > SHOWN_CHARACTERS,
        },
    )
