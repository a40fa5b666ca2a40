"""The approval's states and moves (state-machines.md §6), who may decide, and how the question is put."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum, unique

from stratus.domain.machine import Machine
from stratus.domain.values import Value


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

MAX_OFFERS = 5
CODE_CHARACTERS = 6
_SHOWN_CHARACTERS = 1_500
_NOTE_CHARACTERS = 500


class Approvers(Value):
    """Who may decide: principals by their row's id, or anybody with one of the roles."""

    v: int = 1
    principals: Sequence[int] = ()
    roles: Sequence[str] = ("owner", "admin")

    def may(self, principal: int, role: str) -> bool:
        """Whether this principal is one of them."""
        return principal in self.principals or role in self.roles


def code_of(public_id: str) -> str:
    """What a person types to name an approval in a chat: the beginning of its id."""
    return public_id.replace("-", "")[:CODE_CHARACTERS]


def question(name: str, args: str, code: str) -> str:
    """The text of a prompt. It shows the arguments as they will be used, cut where they are long."""
    return f"May I call {name}?\n{_shown(args)}\n\n/approve {code} lets me, /deny {code} does not."


def answered(name: str, args: str, state: ApprovalState, by: str | None, note: str | None) -> str:
    """What a prompt says once its approval is in `state`, which is not pending."""
    who = by or "Somebody"
    said = {
        ApprovalState.APPROVED: f"{who} allowed this.",
        ApprovalState.CONSUMED: f"{who} allowed this.",
        ApprovalState.DENIED: f"{who} did not allow this{f': {note[:_NOTE_CHARACTERS]}' if note else '.'}",
        ApprovalState.EXPIRED: "Nobody answered in time; the call was not made.",
    }.get(state, "The turn that asked is over; the call was not made.")
    return f"{name}\n{_shown(args)}\n\n{said}"


def buttons(public_id: str) -> list[tuple[str, str]]:
    """The prompt's buttons; what they send back is well below Telegram's 64 bytes."""
    key = public_id.replace("-", "")
    return [("Approve", f"approve:{key}"), ("Deny", f"deny:{key}")]


def _shown(args: str) -> str:
    return _readable(
        args if len(args) <= _SHOWN_CHARACTERS else f"{args[:_SHOWN_CHARACTERS]} … [{len(args)} characters]"
    )


def _readable(args: str) -> str:
    try:
        value = json.loads(args)
    except ValueError:
        return args
    if not isinstance(value, dict):
        return args
    return "\n".join(
        f"{name}: {text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)}"
        for name, text in value.items()
    )
