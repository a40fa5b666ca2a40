"""How a channel does, as operators see it; told on only when it changes."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import structlog

log = structlog.get_logger(__name__)


class State(StrEnum):
    """What a channel is worth at the moment."""

    STARTING = "starting"
    CONNECTED = "connected"
    DEGRADED = "degraded"  # a passing fault, being retried
    FAILED = "failed"  # somebody should look


class ChannelHealth:
    """State, stable cause, and a sentence for operators. `changed` is called after each change."""

    def __init__(self, channel_id: int, changed: Callable[[], None]) -> None:
        self.state = State.STARTING
        self.cause = ""
        self.error: str | None = None
        self._channel_id = channel_id
        self._changed = changed

    def set(self, state: State, cause: str = "", error: str | None = None) -> None:
        """Note how it is now."""
        if (state, cause) == (self.state, self.cause):
            return
        self.state, self.cause, self.error = state, cause, error
        level = log.warning if state in (State.DEGRADED, State.FAILED) else log.info
        level("channel.health", channel=self._channel_id, state=str(state), cause=cause)
        self._changed()
