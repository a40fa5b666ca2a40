"""The tool call's states and moves (state-machines.md §6)."""

from __future__ import annotations

from enum import StrEnum, unique

from stratus.domain.machine import Machine


@unique
class CallState(StrEnum):
    """States of `tool_call`. The comment says who moves it on."""

    PROPOSED = "proposed"  # the turn that holds the session's lease
    AWAITING = "awaiting"  # an approver or the sweeper
    APPROVED = "approved"  # the turn
    STARTED = "started"  # the turn; after a lost lease the next attempt
    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


@unique
class CallEvent(StrEnum):
    """What moves a tool call."""

    ASK = "ask"
    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    LOSE = "lose"


_P, _A, _OK, _S = CallState.PROPOSED, CallState.AWAITING, CallState.APPROVED, CallState.STARTED

TOOL_CALL: Machine[CallState, CallEvent] = Machine(
    name="tool_call",
    table="tool_call",
    states=CallState,
    initial=frozenset({_P}),
    moves={
        (_P, CallEvent.START): _S,
        (_P, CallEvent.ASK): _A,
        (_P, CallEvent.FAIL): CallState.FAILED,
        (_A, CallEvent.APPROVE): _OK,
        (_A, CallEvent.DENY): CallState.DENIED,
        (_A, CallEvent.EXPIRE): CallState.EXPIRED,
        (_A, CallEvent.FAIL): CallState.FAILED,
        (_OK, CallEvent.START): _S,
        (_OK, CallEvent.FAIL): CallState.FAILED,
        (_S, CallEvent.SUCCEED): CallState.DONE,
        (_S, CallEvent.FAIL): CallState.FAILED,
        (_S, CallEvent.LOSE): CallState.UNKNOWN,
        (_S, CallEvent.START): _S,
    },
    columns={
        "ended_at": frozenset(
            {CallState.DONE, CallState.FAILED, CallState.DENIED, CallState.EXPIRED, CallState.UNKNOWN}
        ),
    },
)
