"""Tool calls of a turn: intent committed before the tool acts, result committed before the next step, one result each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stratus.agents.model import ToolEffect
from stratus.agents.tools import Tool, ToolContext, ToolOutcome
from stratus.channel.text import clean
from stratus.domain.event import NewEvent
from stratus.domain.history import interrupted
from stratus.domain.tool_call import CallEvent, CallState
from stratus.domain.turn import answered
from stratus.domain.values import Message, ResultOutcome, ToolCallPart, ToolResultPart
from stratus.effects import Failpoints
from stratus.execution.journal import Journal
from stratus.store.execution import CallMove, NewCall, StoredCall

# A watcher sees this much of a result; the model gets all of it.
SHOWN_CHARACTERS = 2_000
UNKNOWN = "The process that ran this call was lost; whether it had any effect is not known. It was not run again."


class Calls:
    """The calls of one run. `stored` are those that an earlier attempt left."""

    def __init__(
        self,
        tools: Sequence[Tool],
        context: ToolContext,
        journal: Journal,
        stored: Sequence[StoredCall],
        failpoints: Failpoints,
    ) -> None:
        self._tools: Mapping[str, Tool] = {tool.spec.name: tool for tool in tools}
        self._context = context
        self._journal = journal
        self._stored = {call.call_id: call for call in stored}
        self._used = set(self._stored)
        self._failpoints = failpoints
        self._results: list[ToolResultPart] = []

    def named_apart(self, message: Message) -> Message:
        """The message with call ids that are unique in the run: some providers number calls anew in each message."""
        parts = []
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                call_id, n = part.call_id or "call", 1
                while call_id in self._used:
                    n += 1
                    call_id = f"{part.call_id}~{n}"
                self._used.add(call_id)
                part = part.model_copy(update={"call_id": call_id, "args": clean(part.args)})
            parts.append(part)
        return Message(role=message.role, parts=parts)

    def proposals(self, message: Message) -> list[NewCall]:
        """The rows for its calls."""
        return [NewCall(call.call_id, call.name, call.args, self._effect(call)) for call in message.calls()]

    async def answer(self, step: int, calls: Sequence[ToolCallPart]) -> Message:
        """Bring every call to its end, in order; the last commit carries the message with all results."""
        self._results = []
        for call in calls:
            self._results.append(await self._settle(step, call, calls))
        return answered(calls, self._results)

    def broken_off(self, calls: Sequence[ToolCallPart]) -> Message:
        """The answer to calls of which some did not come to their end."""
        known = {result.call_id for result in self._results}
        return answered(calls, [*self._results, *(interrupted(call) for call in calls if call.call_id not in known)])

    async def _settle(self, step: int, call: ToolCallPart, calls: Sequence[ToolCallPart]) -> ToolResultPart:
        stored = self._stored.get(call.call_id)
        state = stored.state if stored is not None else CallState.PROPOSED
        if stored is not None and stored.outcome is not None:
            result = ToolResultPart(
                call_id=call.call_id,
                name=call.name,
                content=stored.outcome["content"],
                outcome=ResultOutcome(stored.outcome["outcome"]),
            )
            if call is calls[-1]:
                await self._journal.commit(step, [], messages=[answered(calls, [*self._results, result])])
            return result
        if state is CallState.STARTED and stored is not None and stored.effect == "once":
            outcome, event = ToolOutcome(UNKNOWN, failed=True), CallEvent.LOSE
        elif call.name not in self._tools:
            outcome, event = ToolOutcome(f"There is no tool {call.name!r} here.", failed=True), CallEvent.FAIL
        else:
            outcome = await self._run(step, call, state)
            state = CallState.STARTED
            event = CallEvent.FAIL if outcome.failed else CallEvent.SUCCEED
        return await self._commit_result(step, call, calls, state, outcome, event)

    async def _run(self, step: int, call: ToolCallPart, state: CallState) -> ToolOutcome:
        shown = {"call_id": call.call_id, "name": call.name}
        await self._journal.commit(
            step,
            [NewEvent("tool.started", shown)],
            moves=[CallMove(call.call_id, CallEvent.START)],
        )
        await self._failpoints.hit("tool.after_start")
        return await self._tools[call.name].run(call.args, replace(self._context, call_id=call.call_id))

    async def _commit_result(
        self,
        step: int,
        call: ToolCallPart,
        calls: Sequence[ToolCallPart],
        state: CallState,
        outcome: ToolOutcome,
        event: CallEvent,
    ) -> ToolResultPart:
        verdict = {CallEvent.LOSE: ResultOutcome.UNKNOWN, CallEvent.FAIL: ResultOutcome.FAILED}.get(
            event, ResultOutcome.OK
        )
        result = ToolResultPart(call_id=call.call_id, name=call.name, content=clean(outcome.content), outcome=verdict)
        shown = {
            "call_id": call.call_id,
            "name": call.name,
            "outcome": str(verdict),
            "content": result.content[:SHOWN_CHARACTERS],
            "truncated": len(result.content) > SHOWN_CHARACTERS,
        }
        await self._journal.commit(
            step,
            [NewEvent("tool.failed" if outcome.failed else "tool.done", shown)],
            messages=[answered(calls, [*self._results, result])] if call is calls[-1] else [],
            moves=[
                CallMove(
                    call.call_id,
                    event,
                    {"content": result.content, "outcome": str(verdict)},
                )
            ],
        )
        return result

    def _effect(self, call: ToolCallPart) -> ToolEffect:
        tool = self._tools.get(call.name)
        return "once" if tool is None else tool.spec.effect
