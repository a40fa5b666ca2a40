"""One turn: from its claim to its single end, each step committed under the session's lease."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from stratus.agents.model import ModelDone
from stratus.agents.pool import ModelPool
from stratus.agents.tools import Tool, ToolContext
from stratus.agents.toolsets import Toolsets
from stratus.channel.values import Limits
from stratus.domain.agent import AgentDefinition
from stratus.domain.chain import PlannedOp, notice, reply_chain
from stratus.domain.errors import CancelAsked, DatabaseAway, LeaseLost, NotApproved
from stratus.domain.event import NewEvent
from stratus.domain.history import repaired_by_run
from stratus.domain.run import RunEvent
from stratus.domain.turn import (
    TURN,
    EndCall,
    Finish,
    Park,
    ReadChild,
    RequestModel,
    RunCall,
    Settle,
    TurnEvent,
    TurnState,
    next_step,
    state_of,
)
from stratus.domain.values import FilePart, Message, RunError, TextPart, Usage
from stratus.effects import Batcher, Clock, Failpoints, Ids
from stratus.execution.calls import Calls
from stratus.execution.journal import Journal
from stratus.execution.notices import Notifier
from stratus.execution.parking import parking_of
from stratus.execution.request import TurnFailed, request_model
from stratus.execution.rules import AgentRules
from stratus.store import blob
from stratus.store.database import Database
from stratus.store.execution import spent
from stratus.store.park import asks_at
from stratus.store.plan import NewOp, addressed
from stratus.store.repair import repair
from stratus.store.run import ClaimedRun, Ending
from stratus.store.tool_call import StoredCall, calls_of

DEFAULT_IDLE_SECONDS = 120.0
_RETRY_SECONDS = 0.3

log = structlog.get_logger(__name__)


class Abort(Enum):
    """Why a turn is taken from its work before that has ended by itself."""

    CANCELED = auto()
    IDLE = auto()
    YIELDED = auto()
    LOST = auto()


@dataclass(frozen=True)
class Conclusion:
    """How the work ended; `answer` is the model's last message where there is one."""

    event: RunEvent
    answer: Message | None = None
    error: RunError | None = None


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


class Turn:
    """Executes one claimed run. `deadline` is the monotonic moment until which its lease may be relied on."""

    def __init__(
        self,
        claimed: ClaimedRun,
        history: Sequence[tuple[int, Message]],
        tools: TurnTools,
        dirty: Callable[[Journal], None],
        deadline: float,
    ) -> None:
        self.claimed = claimed
        self.deadline = deadline
        self._with = tools
        self._take_history(history)
        self._usage = Usage()
        self._state = TurnState.REQUESTING
        self._calls: Calls | None = None
        self._journal = Journal(tools.db, claimed.lease, claimed.attempt, claimed.run_seq, dirty=dirty)
        self._work: asyncio.Task[Conclusion] | None = None
        self._aborted: Abort | None = None
        self._ending = False

    def abort(self, why: Abort) -> None:
        """Take the turn from its work. LOST overrules the others; once the end is being committed only LOST still counts."""
        if self._aborted is None or why is Abort.LOST:
            self._aborted = why
        if self._work is not None and (not self._ending or why is Abort.LOST):
            self._work.cancel()

    @property
    def progressed_at(self) -> float:
        """The monotonic moment of its last sign of life."""
        return self._journal.progressed_at

    @property
    def idle_limit_seconds(self) -> float:
        """How long it may show none."""
        return DEFAULT_IDLE_SECONDS if self.claimed.agent is None else self.claimed.agent.idle_limit_seconds

    async def execute(self) -> bool:
        """Work to the end. True when this turn ended its run (or gave it back), False when the lease was lost."""
        conclusion: Conclusion | None = None
        if self.claimed.cancel_requested:
            self._aborted = self._aborted or Abort.CANCELED
        if self._aborted is None:
            # A task of its own, so that an abort cancels the work and not the ending of it.
            async with asyncio.TaskGroup() as group:
                self._work = group.create_task(self._concluded())
            conclusion = None if self._work.cancelled() else self._work.result()
        self._ending = True
        if conclusion is None and self._aborted in (Abort.LOST, None):
            return False
        if conclusion is not None and conclusion.event is RunEvent.PARK:
            return True
        return await self._end(conclusion or self._interrupted_by_us())

    async def _concluded(self) -> Conclusion:
        try:
            answer = await self._steps()
            return Conclusion(RunEvent.PARK if answer is None else RunEvent.COMPLETE, answer)
        except TurnFailed as error:
            return Conclusion(RunEvent.FAIL, error=RunError(code=error.code, message=str(error)))
        except LeaseLost:
            self._aborted = Abort.LOST
            raise asyncio.CancelledError from None
        except Exception:
            log.exception("turn.failed", run=str(self.claimed.run), session=self.claimed.lease.session_id)
            return Conclusion(
                RunEvent.FAIL, error=RunError(code="internal", message="Something went wrong on our side.")
            )

    def _interrupted_by_us(self) -> Conclusion:
        if self._aborted is Abort.IDLE:
            said = f"Nothing happened for {self.idle_limit_seconds:.0f} seconds, so I stopped."
            return Conclusion(RunEvent.FAIL, error=RunError(code="idle", message=said))
        return Conclusion(RunEvent.CANCEL if self._aborted is Abort.CANCELED else RunEvent.YIELD)

    async def _steps(self) -> Message | None:
        """Step after step until the answer; None when the turn has parked."""
        agent = self._agent()
        await self._mend_history()
        async with self._with.toolsets.open(agent) as opened:
            tools = {tool.spec.name: tool for tool in opened}
            rules = AgentRules(agent, tools, self.claimed)
            calls = await self._known_calls(tools)
            self._state = state_of(self._said, calls.facts())
            while True:
                rules.number(calls.names())
                step = next_step(self._said, calls.facts(), rules)
                if isinstance(step, Finish):
                    return step.answer
                if isinstance(step, Park):
                    if await self._park(step, rules, calls):
                        return None
                    continue
                if isinstance(step, RequestModel):
                    message: Message | None = await self._ask(agent, rules, calls)
                else:
                    message = await self._call(step, calls)
                if message is not None:
                    self._history.append(message)
                    self._said.append(message)

    async def _mend_history(self) -> None:
        """Put right, once and for all, what a fault has left in the history: a provider would refuse it again and again."""
        working = bool(self._said) and self._history[-1] is self._said[-1]
        told = [(None, message) for message in self._history]
        if repaired_by_run(told, working=working) != told:
            log.warning("history.repaired", run=str(self.claimed.run), session=self.claimed.lease.session_id)
            self._take_history(await repair(self._with.db, self.claimed.lease, working=working))

    def _take_history(self, told: Sequence[tuple[int, Message]]) -> None:
        self._history = [message for _, message in told]
        self._said = [message for run_id, message in told if run_id == self.claimed.lease.run_id]

    async def _ask(self, agent: AgentDefinition, rules: AgentRules, calls: Calls) -> Message:
        number = 1 + sum(message.role == "assistant" for message in self._said)
        if number > agent.max_steps:
            raise TurnFailed("too_many_steps", f"The turn took more than {agent.max_steps} steps.")
        await self._with.failpoints.hit("model.before_request")
        done = await request_model(
            self._with.models, agent, self._history, rules.specs(), self._journal, self._with.clock
        )
        self._usage = self._usage.plus(done.usage)
        message = calls.named_apart(done.message)
        if not message.calls():
            self._move(TurnEvent.ANSWER)
            return message
        await self._with.failpoints.hit("step.before_commit")
        rows = calls.proposals(message)
        await self._journal.commit(number, _response_events(message, done), messages=[message], proposed=rows)
        calls.proposed(number, rows)
        self._move(TurnEvent.PROPOSE)
        await self._with.failpoints.hit("step.after_commit")
        return message

    async def _call(self, step: RunCall | EndCall | ReadChild | Settle, calls: Calls) -> Message | None:
        among = self._said[-1].calls()
        if isinstance(step, Settle):
            message: Message | None = await calls.settle(among)
        elif isinstance(step, ReadChild):
            message = await calls.read_child(step.call, among)
            self._move(TurnEvent.READ)
        elif isinstance(step, EndCall):
            message = await calls.refuse(step.call, among, step.why)
            self._move(TurnEvent.RESULT if self._state is TurnState.ACTING else TurnEvent.REFUSE)
        elif await calls.start(step.call, approved=step.approved):
            self._move(TurnEvent.INTEND)
            message = await calls.act(step.call, among)
            self._move(TurnEvent.RESULT)
        else:
            message = await calls.not_approved(step.call, among)
            self._move(TurnEvent.REFUSE)
        if message is not None:
            self._move(TurnEvent.SETTLE)
        await self._with.failpoints.hit("tool.after_result")
        return message

    async def _park(self, step: Park, rules: AgentRules, calls: Calls) -> bool:
        """Whether the lease has been given back."""
        claimed = self.claimed
        to = await asks_at(self._with.db, claimed.lease.run_id) if step.asks else None
        parking = parking_of(step, rules, claimed, calls.facts(), token=self._with.ids.uuid(), to=to)
        await self._with.failpoints.hit("park.before_commit")
        self._ending = True  # from here on only a lost lease may break in
        try:
            await self._journal.park(parking)
        except CancelAsked:
            self._aborted = Abort.CANCELED
            raise asyncio.CancelledError from None
        except NotApproved:
            self._ending = False
            changed = next(move.call_id for move in parking.moves if move.consumes)
            await calls.not_approved(next(call for call in step.starts if call.call_id == changed), [])
            return False
        self._move(TurnEvent.PARK)
        await self._with.failpoints.hit("park.after_commit")
        return True

    def _move(self, event: TurnEvent) -> None:
        self._state = TURN.after(self._state, event)

    def _agent(self) -> AgentDefinition:
        if self.claimed.agent is None:
            raise TurnFailed("target_gone", f"The agent {self.claimed.agent_id} is no longer available.")
        return self.claimed.agent

    async def _known_calls(self, tools: Mapping[str, Tool]) -> Calls:
        """The calls as earlier attempts left them, and what those have spent."""
        lease, db = self.claimed.lease, self._with.db
        stored: Sequence[StoredCall] = ()
        if self.claimed.resumed:
            stored = await calls_of(db, lease.run_id)
            self._usage = await spent(db, lease.run_id)
        context = ToolContext(lease.session_id, self.claimed.run, "", self.claimed.agent_id)
        notifier = Notifier(db, self.claimed, self._with.limits)
        self._calls = Calls(tools, context, self._journal, stored, self._with.failpoints, notifier)
        return self._calls

    async def _end(self, conclusion: Conclusion) -> bool:
        """Commit the end, repeating while the database is away and the lease may still be ours."""
        await self._journal.lock.acquire()  # for good: nothing is written after the end
        ending = self._ending_of(conclusion, await self._files(conclusion))
        await self._with.failpoints.hit("finish.before_commit")
        while self._aborted is not Abort.LOST:
            try:
                ended = await self._with.finisher.submit(ending)
            except DatabaseAway:
                await self._with.clock.sleep(_RETRY_SECONDS)
                continue
            await self._with.failpoints.hit("finish.after_commit")
            return ended
        return False

    async def _files(self, conclusion: Conclusion) -> list[FilePart]:
        """What the calls produced for the person, with its bytes."""
        if conclusion.answer is None or self._calls is None or self.claimed.reply_to is None:
            return []
        files = []
        for file in self._calls.files():
            data = await blob.get(self._with.db, bytes.fromhex(file["sha256"]))
            if data is not None:
                encoded = base64.b64encode(data).decode()
                files.append(FilePart(name=file["name"], mime=file["mime"], data=encoded))
        return files

    def _ending_of(self, conclusion: Conclusion, files: Sequence[FilePart]) -> Ending:
        streamed = self._journal.take()
        messages = self._last_messages(conclusion)
        events = [event for message in messages if message.role == "assistant" for event in _answer_events(message)]
        return Ending(
            lease=self.claimed.lease,
            attempt=self.claimed.attempt,
            run_seq=self._journal.run_seq,
            event=conclusion.event,
            finish_token=self._with.ids.uuid(),
            events=[*streamed, *events],
            messages=messages,
            ops=self._ops(conclusion, files),
            error=conclusion.error,
            usage=self._usage,
        )

    def _last_messages(self, conclusion: Conclusion) -> list[Message]:
        """The answer; or, of a turn that was broken off, what had become visible, and an answer to each call."""
        if conclusion.answer is not None:
            return [conclusion.answer]
        if conclusion.event is RunEvent.YIELD:
            return []
        open_calls = self._said[-1].calls() if self._said and self._said[-1].role == "assistant" else []
        if open_calls and self._calls is not None:
            return [self._calls.broken_off(open_calls)]
        spoken = self._journal.spoken()
        return [Message(role="assistant", parts=[TextPart(text=spoken)])] if spoken else []

    def _ops(self, conclusion: Conclusion, files: Sequence[FilePart]) -> list[NewOp]:
        to = self.claimed.reply_to
        if to is None:
            return []
        key = f"run:{self.claimed.run}"
        planned: list[PlannedOp] = []
        if conclusion.answer is not None:
            planned = reply_chain(conclusion.answer.text(), files, to, self._with.limits(to.platform), key=key)
        elif conclusion.error is not None:
            planned = [notice(f"⚠ {conclusion.error.message}", to, key)]
        return addressed(planned, to, self.claimed.lease.run_id)


def _text_events(message: Message) -> list[NewEvent]:
    return [
        NewEvent("text.completed", {"part": index, "text": part.text})
        for index, part in enumerate(message.parts)
        if isinstance(part, TextPart) and part.text
    ]


def _answer_events(message: Message) -> list[NewEvent]:
    return [*_text_events(message), NewEvent("message.assistant", {"text": message.text()})]


def _response_events(message: Message, done: ModelDone) -> list[NewEvent]:
    calls = message.calls()
    return [
        *_text_events(message),
        NewEvent("message.assistant", {"text": message.text(), "calls": [call.call_id for call in calls]}),
        NewEvent("usage", done.usage.model_dump(mode="json")),
        *(NewEvent("tool.proposed", {"call_id": call.call_id, "name": call.name, "args": call.args}) for call in calls),
    ]
