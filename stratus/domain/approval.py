"""The approval's states and moves (state-machines.md §6)."""

from __future__ import annotations

from enum import StrEnum, unique

from stratus.domain.machine import Machine


@unique
class ApprovalState(StrEnum):
    """States of `approval`. The comment says who moves it on."""

    PENDING = "pending"  # an allowed approver, or the sweeper by database time
    APPROVED = "approved"  # the turn that starts the call
    DENIED = "denied"
    EXPIRED = "expired"
    CONSUMED = "consumed"
    CLOSED = "closed"  # its run ended first


@unique
class ApprovalEvent(StrEnum):
    """What moves an approval."""

    APPROVE = "approve"
    DENY = "deny"
    EXPIRE = "expire"
    CONSUME = "consume"
    CLOSE = "close"


_P, _A = ApprovalState.PENDING, ApprovalState.APPROVED

APPROVAL: Machine[ApprovalState, ApprovalEvent] = Machine(
    name="approval",
    table="approval",
    states=ApprovalState,
    initial=frozenset({_P}),
    moves={
        (_P, ApprovalEvent.APPROVE): _A,
        (_P, ApprovalEvent.DENY): ApprovalState.DENIED,
        (_P, ApprovalEvent.EXPIRE): ApprovalState.EXPIRED,
        (_P, ApprovalEvent.CLOSE): ApprovalState.CLOSED,
        (_A, ApprovalEvent.CONSUME): ApprovalState.CONSUMED,
        (_A, ApprovalEvent.CLOSE): ApprovalState.CLOSED,
    },
    columns={
        "decided_at": frozenset(
            {_A, ApprovalState.DENIED, ApprovalState.EXPIRED, ApprovalState.CONSUMED, ApprovalState.CLOSED}
        ),
    },
)
