"""Tells a turn on a terminal as its events come: the answer on stdout, what happens around it as lines on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from stratus.cli.conversation import MERGED
from stratus.cli.output import complain, printable_lines
from stratus.domain.approval import code_of
from stratus.domain.transcript import Approval, Call, Child, Resumed, TurnView, Written, fold

Event = Mapping[str, Any]

_OUTCOMES = {
    "denied": "denied",
    "expired": "not approved in time",
    "interrupted": "interrupted",
    "unknown": "outcome unknown: its worker was lost; it was not run again, so look before you repeat it",
}
_RESUMED = {"yielded": "handed on to another worker"}


class Teller:
    """`view` is the turn so far; of a message that a running turn took up, that turn from there on."""

    def __init__(self) -> None:
        self.view = TurnView()
        self._printed: dict[str, str] = {}
        self._open_line = False

    def tell(self, event: Event) -> None:
        """Take the next event in, and print what is new.

        What was streamed and what is completed later is the same text, so only the rest is printed then.
        """
        self.view = fold(self.view, event)
        for block in self.view.blocks:
            if isinstance(block, Written) and block.type == "text":
                self._write(block)
        kind = event["kind"]
        if kind == "message.assistant":
            self._end_line()
        for line in _LINES.get(kind, _nothing)(self.view, event):
            self._end_line()
            complain(line)
        if kind == MERGED:
            self.view, self._printed = TurnView(), {}

    def _write(self, block: Written) -> None:
        printed = self._printed.get(block.id, "")
        if block.text == printed:
            return
        if not block.text.startswith(printed):
            self._end_line()
            printed = ""
        sys.stdout.write(printable_lines(block.text.removeprefix(printed)))
        sys.stdout.flush()
        self._printed[block.id] = block.text
        self._open_line = True

    def _end_line(self) -> None:
        if self._open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open_line = False


def code(approval: Approval) -> str:
    """What a person types to mean this one."""
    return code_of(approval.approval)


def _nothing(_view: TurnView, _event: Event) -> list[str]:
    return []


def _started(_view: TurnView, event: Event) -> list[str]:
    return [f"uses {event['name']}"]


def _ended(view: TurnView, event: Event) -> list[str]:
    if event["outcome"] == "ok":
        return []
    name = next((b.name for b in view.blocks if isinstance(b, Call) and b.call == event["call_id"]), event["call_id"])
    return [f"{name}: {_OUTCOMES.get(event['outcome'], 'failed')}"]


def _requested(view: TurnView, event: Event) -> list[str]:
    asked = _approval(view, event["id"])
    if asked is None:
        return []
    until = f" (until {asked.expires_at})" if asked.expires_at else ""
    return [
        f"asks to run {asked.name}{until} with {asked.args}",
        f"answer with /approve {code(asked)} or /deny {code(asked)}, and a note if you like",
    ]


def _resolved(view: TurnView, event: Event) -> list[str]:
    asked = _approval(view, event["id"])
    by, note = event.get("by"), event.get("note")
    name = event["call_id"] if asked is None else asked.name
    return [f"{name}: {event['state']}{f' by {by}' if by else ''}{f': {note}' if note else ''}"]


def _waiting(view: TurnView, _event: Event) -> list[str]:
    names = []
    for one in view.waits:
        asked = _approval(view, one.get("approval", ""))
        names.append(one.get("agent", "an answer") if asked is None else f"an approval of {asked.name}")
    return [f"waits for {', '.join(names)}"] if names else []


def _resumed(view: TurnView, _event: Event) -> list[str]:
    last = view.blocks[-1] if view.blocks else None
    if not isinstance(last, Resumed) or last.attempt != view.attempt:
        return []
    how = _RESUMED.get(last.reason, "taken up again by another worker")
    return [f"{how}, attempt {last.attempt}{'; the unfinished text above is written anew' if last.dropped else ''}"]


def _delegated(_view: TurnView, event: Event) -> list[str]:
    return [f"handed to {event['agent']}, session {event['session']}"]


def _child_ended(view: TurnView, event: Event) -> list[str]:
    agent = next((b.agent for b in view.blocks if isinstance(b, Child) and b.call == event["call_id"]), "agent")
    return [f"{agent}: {'done' if event['outcome'] == 'ok' else event['outcome']}"]


def _file(_view: TurnView, event: Event) -> list[str]:
    return [f"made the file {event['name']}, {event['size']} bytes"]


def _compacted(_view: TurnView, event: Event) -> list[str]:
    return [f"{event['left_out']} earlier messages no longer fit and were left out of what the agent reads"]


def _merged(_view: TurnView, _event: Event) -> list[str]:
    return ["taken up by the answer that is being written"]


def _broken(view: TurnView, _event: Event) -> list[str]:
    return [f"{view.state}: {view.error['message']}" if view.error else view.state]


def _approval(view: TurnView, approval: str) -> Approval | None:
    return next((b for b in view.blocks if isinstance(b, Approval) and b.approval == approval), None)


_LINES: Mapping[str, Callable[[TurnView, Event], list[str]]] = {
    "tool.started": _started,
    "tool.done": _ended,
    "tool.failed": _ended,
    "approval.requested": _requested,
    "approval.resolved": _resolved,
    "run.waiting": _waiting,
    "run.resumed": _resumed,
    "delegate.started": _delegated,
    "delegate.done": _child_ended,
    "file.produced": _file,
    "history.compacted": _compacted,
    "run.failed": _broken,
    "run.canceled": _broken,
    "run.interrupted": _broken,
    MERGED: _merged,
}
