"""The inbox row's states and moves (state-machines.md §2)."""

from __future__ import annotations

from enum import StrEnum, unique

from stratus.domain.machine import Machine


@unique
class InboxState(StrEnum):
    """States of `channel_inbox`. The comment says who moves it on."""

    RECEIVED = "received"  # the media fetcher
    READY = "ready"  # the router, on any replica
    ROUTED = "routed"
    IGNORED = "ignored"
    REJECTED = "rejected"
    DEAD = "dead"


@unique
class InboxEvent(StrEnum):
    """What moves an inbox row."""

    FETCHED = "fetched"
    ROUTE = "route"
    IGNORE = "ignore"
    REJECT = "reject"
    BURY = "bury"


_READY = InboxState.READY

INBOX: Machine[InboxState, InboxEvent] = Machine(
    name="inbox",
    table="channel_inbox",
    states=InboxState,
    initial=frozenset({InboxState.RECEIVED, _READY, InboxState.DEAD}),
    moves={
        (InboxState.RECEIVED, InboxEvent.FETCHED): _READY,
        (InboxState.RECEIVED, InboxEvent.BURY): InboxState.DEAD,
        (_READY, InboxEvent.ROUTE): InboxState.ROUTED,
        (_READY, InboxEvent.IGNORE): InboxState.IGNORED,
        (_READY, InboxEvent.REJECT): InboxState.REJECTED,
        (_READY, InboxEvent.BURY): InboxState.DEAD,
    },
    columns={
        "routed_at": frozenset({InboxState.ROUTED, InboxState.IGNORED, InboxState.REJECTED, InboxState.DEAD}),
    },
)

MAX_ROUTE_ATTEMPTS = 5
ROUTE_WINDOW_SECONDS = 600
