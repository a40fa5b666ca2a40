"""Shows the answers of running turns as they grow: reads the events of all owned channels' runs at once, and plans at most one draft an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratus.channel.protocol import Adapter, CanEdit
from stratus.channel.values import Limits
from stratus.domain.draft import Draft, Step
from stratus.effects import Chance, Clock, Loop
from stratus.store import draft
from stratus.store.database import Database
from stratus.store.draft import Drawing, LiveRun
from stratus.store.inbox import ChannelLease

# Events of one run that a step reads; a takeover in the middle of a long turn reads on in the next.
_EVENTS = 1_000
# How often it looks whether there is something new, as a share of the interval.
_LOOK_SHARE, _LOOK_SECONDS_MIN = 0.25, 0.1
# Asleep until the manager sees a running turn; it looks for all channels at once.
_ASLEEP_SECONDS = 600.0


@dataclass(frozen=True)
class Easel:
    """An owned channel whose platform can edit. `groups` says whether drafts are shown in groups too; `wake` that there is one to send."""

    lease: ChannelLease
    limits: Limits
    groups: bool
    wake: Callable[[], None]


@dataclass
class _Sitter:
    """A running turn: what it shows, and from when (monotonic seconds) it may be shown anew."""

    draft: Draft
    read: int = 0
    next_at: float = 0.0
    shown: str = ""
    over: bool = False


def easel(lease: ChannelLease, adapter: Adapter, options: Mapping[str, Any], wake: Callable[[], None]) -> Easel | None:
    """What a channel's drafts need, or None where there are none: the platform cannot edit, or the option `drafts` is "off".

    "on" shows them in groups as well, whose tighter rate limits they would use up otherwise than by default.
    """
    wanted = str(options.get("drafts", "")).lower()
    if not isinstance(adapter, CanEdit) or wanted in ("off", "false"):
        return None
    return Easel(lease, adapter.limits, wanted in ("on", "true"), wake)


class Drafts:
    """One for a replica. `easels` lists what it may draw on now. Nothing is read as long as `stir()` has not told of a running turn."""

    def __init__(self, db: Database, easels: Callable[[], Sequence[Easel]], clock: Clock, chance: Chance) -> None:
        self._db = db
        self._easels = easels
        self._clock = clock
        self._sitters: dict[int, _Sitter] = {}
        self._live = False
        self.loop = Loop("drafts", self.step, _ASLEEP_SECONDS, clock, chance)

    def stir(self, channels: Sequence[int]) -> None:
        """On these owned channels turns are running."""
        if not self._live and any(one.lease.channel_id in channels for one in self._easels()):
            self._live = True
            self.loop.wake()

    async def step(self) -> bool:
        """Read on for every running turn, and show what has changed where an interval has passed."""
        easels = {one.lease.channel_id: one for one in self._easels()}
        if not self._live or not easels:
            self._live = False
            self._sitters.clear()
            return False
        places = {run_id: sitter.read for run_id, sitter in self._sitters.items()}
        runs = await draft.live(self._db, list(easels), places, _EVENTS)
        self._sitters = {run.run_id: self._sitters.get(run.run_id) or _Sitter(Draft()) for run in runs}
        self._live = bool(runs)
        shown = [run for run in runs if run.direct or easels[run.reply_to.channel_id].groups]
        behind = [self._fold(run, easels[run.reply_to.channel_id]) for run in shown]
        await self._draw([run for run, late in zip(shown, behind, strict=True) if not late], easels)
        if runs:
            self.loop.wake_within(min(self._pause(run, easels[run.reply_to.channel_id]) for run in runs))
        return any(behind)

    def _pause(self, run: LiveRun, at: Easel) -> float:
        """Seconds until this run should be read again."""
        left = self._sitters[run.run_id].next_at - self._clock.monotonic()
        return max(left, at.limits.edit_interval_seconds * _LOOK_SHARE, _LOOK_SECONDS_MIN)

    def _fold(self, run: LiveRun, at: Easel) -> bool:
        """Take in the run's new events. Returns whether there are more to read first."""
        sitter = self._sitters[run.run_id]
        for seq, kind, payload in run.events:
            sitter.draft.fold(seq, kind, payload, at.limits)
        full = run.last - sitter.read >= _EVENTS
        sitter.read = run.last
        return full

    async def _draw(self, runs: Sequence[LiveRun], easels: Mapping[int, Easel]) -> None:
        drawings = []
        for run in runs:
            drawing = self._drawing(run, easels[run.reply_to.channel_id])
            if drawing is not None:
                drawings.append(drawing)
        if not drawings:
            return
        steps = await draft.draw(self._db, drawings)
        for drawing in drawings:
            self._drawn(drawing, steps.get(drawing.run_id, Step.WAIT))
            if steps.get(drawing.run_id) in (Step.SEND, Step.EDIT, Step.MERGE):
                easels[drawing.lease.channel_id].wake()

    def _drawing(self, run: LiveRun, at: Easel) -> Drawing | None:
        sitter, interval = self._sitters[run.run_id], at.limits.edit_interval_seconds
        if sitter.over or run.age < interval or self._clock.monotonic() < sitter.next_at:
            return None
        shown = sitter.draft.shown(at.limits)
        if not shown or shown == sitter.shown:
            return None
        return Drawing(run.run_id, run.run, at.lease, run.reply_to, sitter.draft.seq, shown, interval)

    def _drawn(self, drawing: Drawing, step: Step) -> None:
        sitter = self._sitters[drawing.run_id]
        sitter.over = step is Step.OVER
        if step is not Step.WAIT:
            sitter.shown = drawing.shown
        sitter.next_at = self._clock.monotonic() + drawing.interval * (_LOOK_SHARE if step is Step.WAIT else 1)
