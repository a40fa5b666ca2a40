"""One model request of a turn: streamed into the journal; repeated only while nothing of it was visible, and never without a bound."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from stratus.agents.model import (
    Model,
    ModelDone,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolSpec,
)
from stratus.agents.pool import ModelPool
from stratus.domain.agent import AgentDefinition
from stratus.domain.compaction import cut, next_cut
from stratus.domain.errors import StratusError
from stratus.domain.event import NewEvent
from stratus.domain.history import repaired
from stratus.domain.retry import delay_seconds
from stratus.domain.values import Message, Usage
from stratus.effects import Clock

MODEL_TRIES = 4
COMPACTIONS_MAX = 3
RETRY_AFTER_MAX_SECONDS = 60.0
PERMIT_MAX_SECONDS = 300.0
ANSWER_CHARACTERS_MAX = 2_000_000
_BROKEN_OFF = "What you see of the answer is not all of it."

log = structlog.get_logger(__name__)


class TurnFailed(StratusError):
    """The turn cannot go on. `code` goes to clients, the message to the person who waits; `usage` is what the failed request cost."""

    def __init__(self, code: str, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.usage = usage or Usage()


class Listener(Protocol):
    """What a request needs of its turn's journal, which is one."""

    @property
    def streamed(self) -> int:
        """How many deltas have become visible."""

    def delta(self, kind: str, part: int, text: str) -> None:
        """A piece of the answer."""

    def progress(self) -> None:
        """Something shows that the turn goes on."""

    def give_back(self, events: Sequence[NewEvent]) -> None:
        """Events to be written before what comes next."""

    async def room(self) -> None:
        """Wait while too much is unwritten."""


Files = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]


async def _as_they_are(messages: Sequence[Message]) -> Sequence[Message]:
    return messages


@dataclass(frozen=True)
class Asking:
    """Who asks what. `turn_start` is where in `history` the present turn begins: that much always stays. `files` fills in what the history
    only names.

    `left_out` is what an earlier request of the same turn had to leave out (ModelDone.left_out): this one begins there.
    """

    models: ModelPool
    agent: AgentDefinition
    history: Sequence[Message]
    tools: Sequence[ToolSpec]
    turn_start: int
    left_out: int = 0
    files: Files = _as_they_are


async def ask(asking: Asking, journal: Listener, clock: Clock) -> ModelDone:
    """The model's next message, with the usage of all attempts at it.

    Raises TurnFailed with the last failure's code (ErrorCode), or `idle`, `busy`, `answer_too_long`.
    """
    return await _Request(asking, journal, clock).answer()


class _Request:
    def __init__(self, asking: Asking, journal: Listener, clock: Clock) -> None:
        self._asking = asking
        self._agent = asking.agent
        self._journal = journal
        self._clock = clock
        older = repaired(asking.history[: asking.turn_start])
        self._messages = [*older, *repaired(asking.history[asking.turn_start :])]
        self._turn_start = len(older)
        self._left_out = min(asking.left_out, self._turn_start)
        self._usage = Usage()
        self._tries = 0
        self._compactions = 0

    async def answer(self) -> ModelDone:
        while True:
            before = self._journal.streamed
            try:
                done = await self._attempt()
            except ModelError as error:
                self._usage = self._usage.plus(error.usage)
                if self._journal.streamed > before:
                    raise self._failed(error.code, f"{error} {_BROKEN_OFF}") from error
                await self._prepare_another(error)
            else:
                return replace(done, usage=self._usage.plus(done.usage), left_out=self._left_out)

    async def _attempt(self) -> ModelDone:
        agent = self._agent
        model = self._asking.models.get(agent)
        history = await self._asking.files(cut(self._messages, self._left_out))
        request = ModelRequest(agent.soul, history, list(self._asking.tools), agent.settings)
        with self._asking.models.admission.ticket(agent.id, agent.max_concurrent) as ticket:
            waited = 0.0
            while not await ticket.admitted(self._pause()):
                waited += self._pause()
                self._journal.progress()
                if waited >= PERMIT_MAX_SECONDS:
                    raise self._failed(
                        "busy", "Too many requests to models are waiting here already. Please try again later."
                    )
            return await self._stream(model, request)

    async def _stream(self, model: Model, request: ModelRequest) -> ModelDone:
        loop = asyncio.get_running_loop()
        idle = self._agent.idle_limit_seconds
        heard = _Heard(self._journal)
        self._journal.progress()
        try:
            async with (
                asyncio.timeout(min(self._agent.first_token_limit_seconds, idle)) as silence,
                model.stream(request) as events,
            ):
                async for event in events:
                    silence.reschedule(None)  # a wait for our own database is not the model's silence
                    if not heard.take(event):
                        raise self._failed(
                            "answer_too_long",
                            f"The model's answer was longer than {ANSWER_CHARACTERS_MAX:,} characters and was broken off.",
                            Usage.unknown(),
                        )
                    await self._journal.room()
                    silence.reschedule(loop.time() + idle)
        except TimeoutError as error:
            raise self._silent(heard) from error
        if heard.done is None:
            raise ModelError("bad_response", "The model's answer broke off.", usage=Usage.unknown())
        return heard.done

    def _silent(self, heard: _Heard) -> StratusError:
        """Silence before the first sign is worth another attempt, unless the turn's own limit has been reached by it."""
        first, idle = self._agent.first_token_limit_seconds, self._agent.idle_limit_seconds
        if heard.anything or first >= idle:
            return self._failed("idle", f"The model said nothing for {idle:g} seconds.", Usage.unknown())
        said = f"The model did not begin to answer within {first:g} seconds. Please try again later."
        return ModelError("timeout", said, usage=Usage.unknown())

    async def _prepare_another(self, error: ModelError) -> None:
        """Make ready for the next attempt after one of which nothing was visible. Raises TurnFailed when there is to be none."""
        if error.code == "context_overflow":
            self._shorten(error)
            return
        self._tries += 1
        if not error.retryable or self._tries == MODEL_TRIES:
            raise self._failed(error.code, str(error)) from error
        jitter = self._asking.models.chance.spread(0.5, 1.0)
        wait = delay_seconds(self._tries, jitter)
        if error.retry_after is not None:
            if error.retry_after > RETRY_AFTER_MAX_SECONDS:
                said = f"{error} It asks to wait {math.ceil(error.retry_after)} seconds."
                raise self._failed(error.code, said) from error
            wait = max(error.retry_after, 0.0) + jitter
        log.info("model.retry", agent=self._agent.id, code=error.code, attempt=self._tries, seconds=round(wait, 1))
        await self._sleep(wait)

    def _shorten(self, error: ModelError) -> None:
        further = next_cut(self._messages, self._turn_start, self._left_out)
        if further is None or self._compactions == COMPACTIONS_MAX:
            tried = f" The first {self._left_out} messages were left out already." if self._left_out else ""
            raise self._failed("context_overflow", f"{error}{tried}") from error
        self._compactions += 1
        self._left_out = further
        # Nothing waits there now: the last step took it, and nothing of this request was visible.
        self._journal.give_back([NewEvent("history.compacted", {"left_out": further})])

    async def _sleep(self, seconds: float) -> None:
        while seconds > 0:
            self._journal.progress()
            step = min(seconds, self._pause())
            await self._clock.sleep(step)
            seconds -= step

    def _pause(self) -> float:
        """How long to wait at a time, so that the watchdog sees that this is no silence."""
        return self._agent.idle_limit_seconds / 4

    def _failed(self, code: str, message: str, usage: Usage | None = None) -> TurnFailed:
        return TurnFailed(code, message, self._usage.plus(usage or Usage()))


class _Heard:
    """What came of one attempt, on its way into the journal."""

    def __init__(self, journal: Listener) -> None:
        self.anything = False
        self.done: ModelDone | None = None
        self._journal = journal
        self._characters = 0

    def take(self, event: ModelEvent) -> bool:
        """Whether the answer is still of a size that can be kept."""
        self.anything = True
        self._journal.progress()
        match event:
            case TextDelta() | ThinkingDelta():
                self._characters += len(event.text)
            case ToolCallDelta():
                self._characters += len(event.args)
            case ModelDone():
                self.done = event
        if self._characters > ANSWER_CHARACTERS_MAX:
            return False
        if isinstance(event, TextDelta):
            self._journal.delta("text.delta", event.part, event.text)
        elif isinstance(event, ThinkingDelta):
            self._journal.delta("thinking.delta", event.part, event.text)
        return True
