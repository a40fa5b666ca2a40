"""One turn: from its claim to its single end, each step committed under the session's lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from stratus.agents.model import ModelDone
from stratus.agents.pool import ModelPool
from stratus.agents.tools import Tool, ToolContext
from stratus.channel.values import Limits
from stratus.domain.agent import AgentDefinition
from stratus.domain.chain import PlannedOp, notice, reply_chain
from stratus.domain.errors import DatabaseAway, LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.turn import AnswerCalls, Conclude, next_action
from stratus.domain.values import Message, RunError, TextPart, Usage
from stratus.effects import Batcher, Clock, Failpoints, Ids
from stratus.execution.calls import Calls
from stratus.execution.journal import Journal
from stratus.execution.request import TurnFailed, request_model
from stratus.store.database import Database
from stratus.store.execution import calls_of
from stratus.store.plan import NewOp, addressed
from stratus.store.run import ClaimedRun, Ending

_RETRY_SECONDS = 0.3

log = structlog.get_logger(__name__)


class Abort(Enum):
    """Why a turn is taken from its work before that has ended by itself."""

    CANCELED = auto()
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
    """What every turn of a replica works with. `limits` are a platform's; `select` resolves an agent's tool patterns."""

    db: Database
    models: ModelPool
    select: Callable[[Sequence[str]], Sequence[Tool]]
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
        history: Sequence[Message],
        tools: TurnTools,
        dirty: Callable[[Journal], None],
        deadline: float,
    ) -> None:
        self.claimed = claimed
        self.deadline = deadline
        self._with = tools
        self._history = list(history)
        self._usage = Usage()
        self._said: list[Message] = []
        self._calls: Calls | None = None
        self._journal = Journal(tools.db, claimed.lease, claimed.attempt, claimed.run_seq, dirty=dirty)
        self._work: asyncio.Task[Conclusion] | None = None
        self._aborted: Abort | None = None
        self._ending = False

    def abort(self, why: Abort) -> None:
        """Take the turn from its work. LOST overrules the others; once the end is being committed only LOST still counts."""
        if self._aborted is None or why is Abort.LOST:
            self._aborted = why
        if self._work is not None and not self._ending:
            self._work.cancel()

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
        return await self._end(conclusion or self._interrupted_by_us())

    async def _concluded(self) -> Conclusion:
        try:
            return Conclusion(RunEvent.COMPLETE, await self._steps())
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
        return Conclusion(RunEvent.CANCEL if self._aborted is Abort.CANCELED else RunEvent.YIELD)

    async def _steps(self) -> Message:
        agent = self._agent()
        tools = self._with.select(agent.tools)
        self._calls = calls = await self._known_calls(tools)
        self._said = self._own_messages()
        for step in range(1, agent.max_steps + 1):
            action = next_action(self._said)
            if isinstance(action, Conclude):
                return action.answer
            if isinstance(action, AnswerCalls):
                message = await calls.answer(step, action.calls)
            else:
                message = await self._ask(step, agent, tools, calls)
            self._history.append(message)
            self._said.append(message)
        raise TurnFailed("too_many_steps", f"The turn took more than {agent.max_steps} steps.")

    async def _ask(self, step: int, agent: AgentDefinition, tools: Sequence[Tool], calls: Calls) -> Message:
        await self._with.failpoints.hit("model.before_request")
        done = await request_model(self._with.models, agent, self._history, tools, self._journal, self._with.clock)
        self._usage = self._usage.plus(done.usage)
        message = calls.named_apart(done.message)
        if message.calls():
            await self._with.failpoints.hit("step.before_commit")
            await self._journal.commit(
                step, _response_events(message, done), messages=[message], proposed=calls.proposals(message)
            )
        return message

    def _agent(self) -> AgentDefinition:
        if self.claimed.agent is None:
            raise TurnFailed("target_gone", f"The agent {self.claimed.agent_id} is no longer available.")
        return self.claimed.agent

    async def _known_calls(self, tools: Sequence[Tool]) -> Calls:
        lease = self.claimed.lease
        context = ToolContext(lease.session_id, self.claimed.run, "", self.claimed.agent_id)
        stored = await calls_of(self._with.db, lease.run_id) if self.claimed.resumed else []
        return Calls(tools, context, self._journal, stored, self._with.failpoints)

    def _own_messages(self) -> list[Message]:
        """This run's part of the history: from its user's message on."""
        start = max((i for i, message in enumerate(self._history) if message.role == "user"), default=0)
        return self._history[start:]

    async def _end(self, conclusion: Conclusion) -> bool:
        """Commit the end, repeating while the database is away and the lease may still be ours."""
        await self._journal.lock.acquire()  # for good: nothing is written after the end
        ending = self._ending_of(conclusion)
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

    def _ending_of(self, conclusion: Conclusion) -> Ending:
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
            ops=self._ops(conclusion),
            error=conclusion.error,
            usage=self._usage,
        )

    def _last_messages(self, conclusion: Conclusion) -> list[Message]:
        """The answer; or, of a turn that was broken off, what had become visible, and an answer to each call."""
        if conclusion.answer is not None:
            return [conclusion.answer]
        if conclusion.event is RunEvent.YIELD:
            return []
        action = next_action(self._said)
        if isinstance(action, AnswerCalls) and self._calls is not None:
            return [self._calls.broken_off(action.calls)]
        spoken = self._journal.spoken()
        return [Message(role="assistant", parts=[TextPart(text=spoken)])] if spoken else []

    def _ops(self, conclusion: Conclusion) -> list[NewOp]:
        to = self.claimed.reply_to
        if to is None:
            return []
        key = f"run:{self.claimed.run}"
        planned: list[PlannedOp] = []
        if conclusion.answer is not None:
            planned = reply_chain(conclusion.answer.text(), [], to, self._with.limits(to.platform), key=key)
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
