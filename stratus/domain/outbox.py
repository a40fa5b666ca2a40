"""The outbox op's states and moves (state-machines.md §7)."""

from __future__ import annotations

from enum import StrEnum, unique

from stratus.domain.machine import Machine


@unique
class OpState(StrEnum):
    """States of `channel_outbox`. The comment says who moves it on."""

    PENDING = "pending"  # the channel's owner, in lane order
    SENDING = "sending"  # whoever holds the attempt's token; the next owner past deadline + grace
    SENT = "sent"
    FAILED = "failed"
    CANCELED = "canceled"
    UNKNOWN = "unknown"  # late evidence, an idempotent platform's repeat, or an operator


@unique
class OpEvent(StrEnum):
    """What moves an op."""

    INTEND = "intend"
    ACCEPT = "accept"
    RETRY = "retry"
    REFUSE = "refuse"
    LOSE = "lose"
    EVIDENCE = "evidence"
    RESEND = "resend"
    CANCEL = "cancel"


_P, _S, _U = OpState.PENDING, OpState.SENDING, OpState.UNKNOWN

OUTBOX: Machine[OpState, OpEvent] = Machine(
    name="outbox",
    table="channel_outbox",
    states=OpState,
    initial=frozenset({_P}),
    moves={
        (_P, OpEvent.INTEND): _S,
        (_P, OpEvent.REFUSE): OpState.FAILED,
        (_P, OpEvent.CANCEL): OpState.CANCELED,
        (_S, OpEvent.ACCEPT): OpState.SENT,
        (_S, OpEvent.RETRY): _P,
        (_S, OpEvent.REFUSE): OpState.FAILED,
        (_S, OpEvent.LOSE): _U,
        (_U, OpEvent.EVIDENCE): OpState.SENT,
        (_U, OpEvent.RESEND): _P,
        (_U, OpEvent.CANCEL): OpState.CANCELED,
    },
    columns={
        "attempt_token": frozenset({_S, _U}),
        "settled_at": frozenset({OpState.SENT, OpState.FAILED, OpState.CANCELED}),
    },
)

MAX_SEND_ATTEMPTS = 5

# What an operator may say of an op that only a person can settle.
VERDICTS = {"sent": OpEvent.EVIDENCE, "resend": OpEvent.RESEND, "cancel": OpEvent.CANCEL}
