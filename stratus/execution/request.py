"""One model request of a turn: streamed into the journal, bounded by the idle limit, repeated only while nothing was visible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stratus.agents.model import Model, ModelDone, ModelError, ModelRequest, TextDelta, ThinkingDelta, ToolSpec
from stratus.agents.pool import ModelPool
from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import StratusError
from stratus.domain.history import repaired
from stratus.domain.retry import delay_seconds
from stratus.domain.values import Message
from stratus.effects import Clock
from stratus.execution.journal import Journal

MODEL_TRIES = 4
RETRY_AFTER_MAX_SECONDS = 60.0


class TurnFailed(StratusError):
    """The turn cannot go on. `code` goes to clients, the message to the person who waits."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def request_model(
    models: ModelPool,
    agent: AgentDefinition,
    history: Sequence[Message],
    tools: Sequence[ToolSpec],
    journal: Journal,
    clock: Clock,
) -> ModelDone:
    """The model's next message. Raises TurnFailed with the code of the last failure, or `idle`."""
    request = ModelRequest(agent.soul, repaired(history), list(tools), agent.settings)
    tries = 0
    while True:
        tries += 1
        before = journal.streamed
        try:
            return await _stream(models.get(agent), request, agent.idle_limit_seconds, journal)
        except ModelError as error:
            visible = journal.streamed > before
            if visible or not error.retryable or tries == MODEL_TRIES:
                raise TurnFailed(str(error.code), str(error)) from error
            wait = delay_seconds(tries, 0.0) if error.retry_after is None else error.retry_after
            if wait > RETRY_AFTER_MAX_SECONDS:
                raise TurnFailed(str(error.code), str(error)) from error
            await clock.sleep(wait)
        except TimeoutError as error:
            raise TurnFailed("idle", f"The model said nothing for {agent.idle_limit_seconds:.0f} seconds.") from error


async def _stream(model: Model, request: ModelRequest, idle_seconds: float, journal: Journal) -> ModelDone:
    loop = asyncio.get_running_loop()
    done: ModelDone | None = None
    async with asyncio.timeout(idle_seconds) as idle, model.stream(request) as events:
        async for event in events:
            idle.reschedule(loop.time() + idle_seconds)
            if isinstance(event, TextDelta):
                journal.delta("text.delta", event.part, event.text)
            elif isinstance(event, ThinkingDelta):
                journal.delta("thinking.delta", event.part, event.text)
            elif isinstance(event, ModelDone):
                done = event
            await journal.room()
    if done is None:
        raise ModelError("bad_response", "The model's answer broke off.")
    return done
