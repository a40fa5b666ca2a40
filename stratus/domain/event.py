"""Session events: their kinds, what a writer hands in, and the cursor that names one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from stratus.domain.errors import BadCursor
from stratus.domain.run import TERMINAL_EVENTS

KINDS = frozenset(
    {
        "run.queued",
        "run.started",
        "run.resumed",
        "run.waiting",
        "text.delta",
        "thinking.delta",
        "text.completed",
        "tool.proposed",
        "tool.started",
        "tool.output",
        "tool.done",
        "tool.failed",
        "approval.requested",
        "approval.resolved",
        "delegate.started",
        "delegate.done",
        "message.user",
        "message.assistant",
        "file.produced",
        "history.compacted",
        "usage",
        "session.renamed",
        "session.archived",
        "delivery.sent",
        "delivery.unknown",
    }
    | TERMINAL_EVENTS
)

_CURSOR = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}):([0-9]{1,18})")


@dataclass(frozen=True)
class NewEvent:
    """An event to append. `payload` must be encodable as JSON and free of NUL."""

    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredEvent:
    """An event as read back. `seq` is contiguous in its session; `run` is None for events of the session itself."""

    session_id: str
    seq: int
    run: UUID | None
    attempt: int
    kind: str
    payload: str
    at: datetime

    def terminal(self) -> bool:
        """Whether it is its run's last."""
        return self.kind in TERMINAL_EVENTS


@dataclass(frozen=True)
class Cursor:
    """Names an event for a client: the run's public id and the event's seq in the session."""

    run: UUID
    seq: int

    def __str__(self) -> str:
        return f"{self.run}:{self.seq}"


def parse_cursor(text: str) -> Cursor:
    """Read a client's cursor. Raises BadCursor."""
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise BadCursor("a cursor has the form <run uuid>:<seq>")
    return Cursor(UUID(match[1]), int(match[2]))
