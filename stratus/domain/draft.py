"""Live drafts: what a run's events let people read so far, and what the standing of its last message allows to be written next.

state-machines.md §7: an older text is never sent after a newer one, and nothing is built on a message whose state is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any
from uuid import UUID

from stratus.channel.values import Limits
from stratus.domain.outbox import OpState
from stratus.domain.split import split

# Kinds of events that change what is shown.
KINDS = (
    "run.started",
    "run.resumed",
    "text.delta",
    "text.completed",
    "message.assistant",
    "tool.proposed",
    "tool.done",
    "tool.failed",
)
# The end of a preview that is still being written.
MORE = " …"
_FENCES = ("```", "~~~")
# Text that the first piece cannot need any more is not kept; a piece ends at most here.
_KEPT_PIECES = 2
_NAME_MAX = 60


@dataclass
class Draft:
    """What one run shows: the text of the model's newest message, and the calls that it waits for.

    `seq` is the run's event up to which this holds. Text that an attempt left unfinished is dropped when the next one begins, which writes it
    anew.
    """

    seq: int = 0
    _parts: dict[int, str] = field(default_factory=dict)
    _calls: dict[str, str] = field(default_factory=dict)
    _ended: bool = False

    def fold(self, seq: int, kind: str, payload: Mapping[str, Any], limits: Limits) -> None:
        """Take in one event; those up to `seq` are in already."""
        if seq <= self.seq:
            return
        self.seq = seq
        if kind in ("run.started", "run.resumed"):
            self._begin(kept=self._ended)
        elif kind == "text.delta":
            self._next_message()
            part = int(payload["part"])
            text = self._parts.get(part, "") + str(payload["text"])
            self._parts[part] = text[: _KEPT_PIECES * limits.text_max]
        elif kind == "text.completed":
            self._next_message()
            self._parts[int(payload["part"])] = str(payload["text"])[: _KEPT_PIECES * limits.text_max]
        elif kind == "message.assistant":
            self._ended = True
        elif kind == "tool.proposed":
            self._calls[str(payload["call_id"])] = str(payload["name"])
        elif kind in ("tool.done", "tool.failed"):
            self._calls.pop(str(payload.get("call_id")), None)

    def shown(self, limits: Limits) -> str:
        """The Markdown to show, without the mark that more will come: the first piece that the platform takes, "" for nothing yet."""
        text = "".join(self._parts[part] for part in sorted(self._parts))
        calls = ", ".join(f"`{name[:_NAME_MAX]}`" for name in dict.fromkeys(self._calls.values()))
        if calls:
            text = f"{text.rstrip()}\n\n🔧 {calls}".strip()
        room = limits.model_copy(update={"text_max": limits.text_max - _longest(MORE)})
        pieces = split(text[: _KEPT_PIECES * limits.text_max], room)
        return pieces[0].rstrip() if pieces else ""

    def _next_message(self) -> None:
        if self._ended:
            self._begin(kept=False)

    def _begin(self, *, kept: bool) -> None:
        if not kept:
            self._parts.clear()
            self._calls.clear()
            self._ended = False


def unfinished(shown: str) -> str:
    """`shown` with the mark that more will come."""
    last = shown.rpartition("\n")[2].lstrip()
    return f"{shown}\n{MORE.strip()}" if last.startswith(_FENCES) else shown + MORE


def draft_key(run: UUID, seq: int) -> str:
    """The delivery key of the draft that was written first for this event."""
    return f"live:{run}:{seq}"


class Step(Enum):
    """What to do with a newer draft."""

    SEND = auto()  # as a message of its own
    EDIT = auto()  # into the message that shows the last one
    MERGE = auto()  # into the op that has not left yet
    WAIT = auto()  # an edit is under way, or it is too early
    SAME = auto()  # nothing new to see
    OVER = auto()  # this run shows no more drafts: what its message says cannot be known, or it cannot be edited


@dataclass(frozen=True)
class Standing:
    """What the run has said last, as an op. `overtaken` says that a canceled draft was only passed over: its message is as it was.

    `waited` is seconds since it was settled (or planned); `held` that the platform has asked for a pause that still lasts.
    """

    kind: str
    state: OpState
    seq: int = 0
    text: str = ""
    message_id: str | None = None
    overtaken: bool = False
    waited: float = 0.0
    held: bool = False


def next_step(standing: Standing | None, seq: int, text: str, interval: float) -> Step:
    """The step for a draft of `text` at event `seq`, at least `interval` seconds after the last.

    Whatever else the run has said (a question, a notice) stands below its preview: then a new one begins under it.
    """
    if standing is None or standing.kind != "draft_update":
        return Step.SEND
    if seq <= standing.seq:
        return Step.SAME
    match standing.state:
        case OpState.SENDING:
            return Step.WAIT
        case OpState.PENDING:
            return Step.SAME if text == standing.text else Step.MERGE
        case OpState.UNKNOWN | OpState.FAILED:
            return Step.OVER
        case OpState.CANCELED if not standing.overtaken:
            return Step.OVER
        case OpState.CANCELED if standing.message_id is None:
            return Step.WAIT if standing.held else Step.SEND
        case OpState.SENT if standing.message_id is None:
            return Step.OVER
        case OpState.SENT if text == standing.text:
            return Step.SAME
        case _:
            return Step.WAIT if standing.held or standing.waited < interval else Step.EDIT


def _longest(mark: str) -> int:
    """Room for the mark in whatever unit the platform counts."""
    return len(mark.encode())
