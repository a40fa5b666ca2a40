"""The run's states and moves (state-machines.md §4)."""

from __future__ import annotations

from enum import StrEnum, unique

from stratus.domain.machine import Machine


@unique
class RunState(StrEnum):
    """States of `agent_run`. The comment says who moves it on."""

    QUEUED = "queued"  # a worker, once it is the head of its session; or whoever cancels
    RUNNING = "running"  # the holder of the session's lease; the reaper once that has expired
    WAITING = "waiting"  # the last approver or child, the sweeper at expiry, or whoever cancels
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    INTERRUPTED = "interrupted"
    MERGED = "merged"


@unique
class RunEvent(StrEnum):
    """What moves a run."""

    CLAIM = "claim"
    PARK = "park"
    RESUME = "resume"
    YIELD = "yield"
    RECOVER = "recover"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    MERGE = "merge"


_Q, _R, _W = RunState.QUEUED, RunState.RUNNING, RunState.WAITING
_ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELED, RunState.INTERRUPTED, RunState.MERGED})

RUN: Machine[RunState, RunEvent] = Machine(
    name="run",
    table="agent_run",
    states=RunState,
    initial=frozenset({_Q}),
    moves={
        (_Q, RunEvent.CLAIM): _R,
        (_Q, RunEvent.CANCEL): RunState.CANCELED,
        (_Q, RunEvent.MERGE): RunState.MERGED,
        (_R, RunEvent.PARK): _W,
        (_R, RunEvent.YIELD): _Q,
        (_R, RunEvent.RECOVER): _Q,
        (_R, RunEvent.COMPLETE): RunState.COMPLETED,
        (_R, RunEvent.FAIL): RunState.FAILED,
        (_R, RunEvent.CANCEL): RunState.CANCELED,
        (_R, RunEvent.INTERRUPT): RunState.INTERRUPTED,
        (_W, RunEvent.RESUME): _Q,
        (_W, RunEvent.CANCEL): RunState.CANCELED,
    },
    columns={"finished_at": _ENDED},
)

OPEN_STATES = ("queued", "running", "waiting")
TERMINAL_EVENT = {
    RunState.COMPLETED: "run.completed",
    RunState.FAILED: "run.failed",
    RunState.CANCELED: "run.canceled",
    RunState.INTERRUPTED: "run.interrupted",
    RunState.MERGED: "run.merged",
}
TERMINAL_EVENTS = frozenset(TERMINAL_EVENT.values())
MAX_ATTEMPTS = 3
