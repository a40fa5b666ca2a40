"""One turn: from its claim to its single end, each step committed under the session's lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial

import structlog

from stratus.agents.model import ModelDone
from stratus.agents.tools import Tool, ToolContext
from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import CancelAsked, DatabaseAway, LeaseLost, NotApproved
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
from stratus.domain.values import Message, RunError, Usage
from stratus.execution.calls import Calls
from stratus.execution.ending import Conclusion, Left, TurnTools, ending_of, response_events
from stratus.execution.files import with_files
from stratus.execution.journal import Journal
from stratus.execution.notices import Notifier
from stratus.execution.parking import parking_of
from stratus.execution.request import Asking, TurnFailed, ask
from stratus.execution.rules import AgentRules
from stratus.store.execution import spent
from stratus.store.park import asks_at
from stratus.store.repair import repair
from stratus.store.rows import StoredRows
from stratus.store.run import ClaimedRun
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
        self._left_out = 0
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
        if number > 1:
            steering = await self._journal.take_up()
            if steering:
                self._move(TurnEvent.STEER)
            self._history += steering
            self._said += steering
        await self._with.failpoints.hit("model.before_request")
        done = await self._asked(agent, rules)
        self._usage = self._usage.plus(done.usage)
        message = calls.named_apart(done.message)
        if not message.calls():
            self._move(TurnEvent.ANSWER)
            return message
        await self._with.failpoints.hit("step.before_commit")
        rows = calls.proposals(message)
        await self._journal.commit(number, response_events(message, done), messages=[message], proposed=rows)
        calls.proposed(number, rows)
        self._move(TurnEvent.PROPOSE)
        await self._with.failpoints.hit("step.after_commit")
        return message

    async def _asked(self, agent: AgentDefinition, rules: AgentRules) -> ModelDone:
        turn_start = len(self._history) - len(self._said)
        files = partial(with_files, self._with.db)
        asking = Asking(self._with.models, agent, self._history, rules.specs(), turn_start, self._left_out, files)
        try:
            done = await ask(asking, self._journal, self._with.clock)
        except TurnFailed as error:
            self._usage = self._usage.plus(error.usage)
            raise
        self._left_out = done.left_out
        return done

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
            stored = await calls_of(db, lease.run_id, agent=lease.agent_id)
            self._usage = await spent(db, lease.run_id, agent=lease.agent_id)
        rows = StoredRows(db, lease.agent_id)
        context = ToolContext(lease.session_id, self.claimed.run, "", self.claimed.agent_id, rows)
        notifier = Notifier(db, self.claimed, self._with.limits)
        self._calls = Calls(tools, context, self._journal, stored, self._with.failpoints, notifier)
        return self._calls

    def _left(self) -> Left:
        return Left(self._said, self._calls, self._usage)

    async def _end(self, conclusion: Conclusion) -> bool:
        """Commit the end, repeating while the database is away and the lease may still be ours."""
        await self._journal.lock.acquire()  # for good: nothing is written after the end
        ending = await ending_of(conclusion, self.claimed, self._journal, self._left(), self._with)
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
