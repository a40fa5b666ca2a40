"""What an observer of one run sees, folded from its events in order: text so far, calls, approvals, children, how it stands.

The console's `web/turn.js` does the same; tests/vectors holds both to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from stratus.domain.approval import ApprovalState
from stratus.domain.run import TERMINAL_EVENT, RunState

Event = Mapping[str, Any]

_ENDS = {kind: str(state) for state, kind in TERMINAL_EVENT.items()}
_REFUSALS = frozenset({str(ApprovalState.DENIED), str(ApprovalState.EXPIRED)})
_DELTAS = frozenset({"text.delta", "thinking.delta", "tool.output"})


@dataclass(frozen=True)
class Written:
    """Text or thinking, a part of a model's message. `done` once nothing more of it will come."""

    type: str
    id: str
    part: int
    text: str
    done: bool = False


@dataclass(frozen=True)
class Call:
    """A tool call: `state` is proposed, started, done or failed; `outcome` says how it ended, `content` what it gave, so far or at last."""

    type: ClassVar[str] = "tool"
    id: str
    call: str
    name: str
    args: str
    state: str = "proposed"
    outcome: str = ""
    content: str = ""
    truncated: bool = False


@dataclass(frozen=True)
class Approval:
    """A question to people: may the call run with these arguments? `state` is pending until somebody or something answers."""

    type: ClassVar[str] = "approval"
    id: str
    approval: str
    call: str
    name: str
    args: str
    args_hash: str | None = None
    expires_at: str | None = None
    state: str = "pending"
    by: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class Child:
    """A run that another agent carries out for this one. `outcome` is empty while it goes on."""

    type: ClassVar[str] = "child"
    id: str
    call: str
    agent: str
    run: str
    session: str
    outcome: str = ""


@dataclass(frozen=True)
class File:
    """A file that the run produced."""

    type: ClassVar[str] = "file"
    id: str
    name: str
    mime: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Resumed:
    """The run was taken up again from its last step; `dropped` says that unfinished text stood here and is written anew."""

    type: ClassVar[str] = "resumed"
    id: str
    attempt: int
    reason: str
    dropped: bool


@dataclass(frozen=True)
class Compacted:
    """So many messages of the history no longer fitted into the model's request."""

    type: ClassVar[str] = "compacted"
    id: str
    left_out: int


@dataclass(frozen=True)
class Asked:
    """A further message that the person sent and this run took up on its way. `merged` is the run that it had been queued as."""

    type: ClassVar[str] = "asked"
    id: str
    text: str
    merged: str | None = None


Block = Written | Call | Approval | Child | File | Resumed | Compacted | Asked


@dataclass(frozen=True)
class TurnView:
    """A run as it is seen. `waits` is what it is parked for; `into` the run that took it up; `attempt` the newest seen.

    Blocks from `kept` on belong to the model's message that is still coming: a later attempt writes that one anew.
    """

    state: str = "queued"
    attempt: int = 0
    asked: str | None = None
    blocks: tuple[Block, ...] = ()
    waits: tuple[Event, ...] = ()
    into: str | None = None
    error: Event | None = None
    begun: bool = field(default=False, repr=False)
    kept: int = field(default=0, repr=False)
    made: int = field(default=0, repr=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in _ENDS.values()

    def pending(self) -> list[Approval]:
        """The approvals that nobody has answered yet."""
        return [block for block in self.blocks if isinstance(block, Approval) and block.state == "pending"]

    def plain(self) -> dict[str, Any]:
        """As JSON, in the form of the shared vectors."""
        blocks = [{"type": block.type, **asdict(block)} for block in self.blocks]
        shown = ("state", "attempt", "asked", "into", "error")
        return {**{name: getattr(self, name) for name in shown}, "waits": list(self.waits), "blocks": blocks}


def fold(view: TurnView, event: Event) -> TurnView:
    """The view after the run's next event. An event of an unknown kind changes nothing but the attempt."""
    kind = event["kind"]
    attempt = event.get("attempt") or 0
    if kind in _DELTAS and attempt < view.attempt:
        return view  # a lost attempt's last words, written before anybody knew
    view = replace(view, attempt=max(view.attempt, attempt))
    if kind in _ENDS:
        return _ended(view, event)
    step = _STEPS.get(kind)
    return view if step is None else step(view, event)


def _ended(view: TurnView, event: Event) -> TurnView:
    state = _ENDS[event["kind"]]
    blocks = tuple(_closed(_done(block)) for block in view.blocks)
    return replace(view, state=state, blocks=blocks, waits=(), into=event.get("into"), error=event.get("error"))


def _done(block: Block) -> Block:
    return replace(block, done=True) if isinstance(block, Written) else block


def _closed(block: Block) -> Block:
    return replace(block, state="closed") if isinstance(block, Approval) and block.state == "pending" else block


def _resumed(view: TurnView, event: Event) -> TurnView:
    """Text of the step that was not committed is gone: the attempt that begins writes it anew."""
    stays = tuple(
        block for n, block in enumerate(view.blocks) if n < view.kept or not isinstance(block, Written) or block.done
    )
    dropped = len(stays) < len(view.blocks)
    reason = event.get("reason") or "recovered"
    view = replace(view, state="running", blocks=stays, kept=len(stays), waits=())
    if reason == "answered" and not dropped:
        return view  # it was parked at a step's end; what it waited for says the rest
    return _added(view, Resumed(_id(view), view.attempt, reason, dropped))


def _waiting(view: TurnView, event: Event) -> TurnView:
    return replace(view, state="waiting", waits=tuple(event.get("for", ())))


def _queued(view: TurnView, event: Event) -> TurnView:
    return replace(view, asked=event.get("text"))


def _user(view: TurnView, event: Event) -> TurnView:
    """The first message is the question; each further one was taken up on the way."""
    if not view.begun:
        return replace(view, asked=event["text"], begun=True)
    return _added(view, Asked(_id(view), event["text"], event.get("merged")))


def _written(kind: str, view: TurnView, event: Event) -> TurnView:
    """A piece of a part, or with `text.completed` all of it."""
    whole, part = event["kind"] == "text.completed", event.get("part", 0)
    for n, block in enumerate(view.blocks):
        if n >= view.kept and isinstance(block, Written) and (block.type, block.part) == (kind, part):
            text = event["text"] if whole else block.text + event["text"]
            return _with(view, n, replace(block, text=text, done=whole))
    made = Written(kind, _id(view), part, event["text"], whole)
    # An earlier part's block is not there when its deltas are no longer kept; order goes by part, not by arrival.
    later = (n for n, b in enumerate(view.blocks) if n >= view.kept and isinstance(b, Written) and b.part > part)
    at = next(later, len(view.blocks))
    return replace(view, blocks=(*view.blocks[:at], made, *view.blocks[at:]), made=view.made + 1)


def _text(view: TurnView, event: Event) -> TurnView:
    return _written("text", view, event)


def _thinking(view: TurnView, event: Event) -> TurnView:
    return _written("thinking", view, event)


def _said(view: TurnView, event: Event) -> TurnView:
    return replace(view, blocks=tuple(map(_done, view.blocks)), kept=len(view.blocks))


def _proposed(view: TurnView, event: Event) -> TurnView:
    return _added(view, Call(_id(view), event["call_id"], event["name"], event["args"]))


def _called(view: TurnView, call: str, change: Callable[[Call], Call]) -> TurnView:
    blocks = tuple(change(block) if isinstance(block, Call) and block.call == call else block for block in view.blocks)
    return replace(view, blocks=blocks)


def _started(view: TurnView, event: Event) -> TurnView:
    """Begun, perhaps again: what an earlier attempt's run of it had put out is void."""
    return _called(view, event["call_id"], lambda call: replace(call, state="started", content=""))


def _output(view: TurnView, event: Event) -> TurnView:
    return _called(view, event["call_id"], lambda call: replace(call, content=call.content + event["text"]))


def _result(view: TurnView, event: Event) -> TurnView:
    state = event["kind"].removeprefix("tool.")
    fields = {"outcome": event["outcome"], "content": event["content"], "truncated": event.get("truncated", False)}
    return _called(view, event["call_id"], lambda call: replace(call, state=state, **fields))


def _requested(view: TurnView, event: Event) -> TurnView:
    what = {name: event[name] for name in ("name", "args")} | {n: event.get(n) for n in ("args_hash", "expires_at")}
    made = Approval(_id(view), event["id"], event["call_id"], **what)
    known = any(isinstance(block, Approval) and block.approval == made.approval for block in view.blocks)
    return view if known else _added(view, made)


def _resolved(view: TurnView, event: Event) -> TurnView:
    """The answer; one that refuses ends the call, of which no other event need tell."""
    answer = {"state": event["state"], "by": event.get("by"), "note": event.get("note")}
    blocks = tuple(
        replace(block, **answer) if isinstance(block, Approval) and block.approval == event["id"] else block
        for block in view.blocks
    )
    view = replace(view, blocks=blocks, waits=_without(view.waits, "approval", event["id"]))
    if event["state"] not in _REFUSALS:
        return view
    return _called(view, event["call_id"], lambda call: replace(call, state="failed", outcome=event["state"]))


def _delegated(view: TurnView, event: Event) -> TurnView:
    made = Child(_id(view), event["call_id"], event["agent"], event["run"], event["session"])
    known = any(isinstance(block, Child) and block.call == made.call for block in view.blocks)
    return view if known else _added(view, made)


def _answered(view: TurnView, event: Event) -> TurnView:
    blocks = tuple(
        replace(block, outcome=event["outcome"])
        if isinstance(block, Child) and block.call == event["call_id"]
        else block
        for block in view.blocks
    )
    return replace(view, blocks=blocks, waits=_without(view.waits, "run", event["run"]))


def _file(view: TurnView, event: Event) -> TurnView:
    return _added(view, File(_id(view), event["name"], event["mime"], event["size"], event["sha256"]))


def _compacted(view: TurnView, event: Event) -> TurnView:
    return _added(view, Compacted(_id(view), event["left_out"]))


def _without(waits: Sequence[Event], name: str, value: str) -> tuple[Event, ...]:
    return tuple(one for one in waits if one.get(name) != value)


def _id(view: TurnView) -> str:
    return f"e{view.made}"


def _added(view: TurnView, block: Block) -> TurnView:
    """With a block of a committed step; unfinished text before it stays unfinished."""
    blocks = (*view.blocks, block)
    kept = len(blocks) if view.kept == len(view.blocks) else view.kept
    return replace(view, blocks=blocks, kept=kept, made=view.made + 1)


def _with(view: TurnView, n: int, block: Block) -> TurnView:
    return replace(view, blocks=(*view.blocks[:n], block, *view.blocks[n + 1 :]))


_STEPS: Mapping[str, Callable[[TurnView, Event], TurnView]] = {
    "run.queued": _queued,
    "run.started": lambda view, _: replace(view, state=str(RunState.RUNNING)),
    "run.resumed": _resumed,
    "run.waiting": _waiting,
    "message.user": _user,
    "text.delta": _text,
    "text.completed": _text,
    "thinking.delta": _thinking,
    "message.assistant": _said,
    "tool.proposed": _proposed,
    "tool.started": _started,
    "tool.output": _output,
    "tool.done": _result,
    "tool.failed": _result,
    "approval.requested": _requested,
    "approval.resolved": _resolved,
    "delegate.started": _delegated,
    "delegate.done": _answered,
    "file.produced": _file,
    "history.compacted": _compacted,
}
