"""What the room is given: its numbers, and its doors to time and luck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from stratus.channel.values import Event
from stratus.effects import Chance, Clock, Failpoints, Ids
from stratus.store.inbox import ChannelLease
from stratus.store.renewal import local_deadline

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


# Of the budget of a send, what a draft gets.
_DRAFT_SHARE, _DRAFT_SECONDS_MIN = 0.25, 2.0


@dataclass(frozen=True)
class Terms:
    """The replica's name and address, and times in seconds as in interfaces.md §2. `slots` is how many sends a channel may have under way.

    `platforms` are those it has adapters for (None: any).
    """

    replica: str
    public_url: str
    lease_channels: bool = True
    ttl: float = 30.0
    send_budget: float = 20.0
    send_grace: float = 8.0
    poll: float = 0.5
    slots: int = 32
    test_channels: bool = False
    platforms: Sequence[str] | None = None

    @property
    def draft_budget(self) -> float:
        """Seconds that a draft may be under way: the answer waits behind it, so it is given up sooner than an answer would be."""
        return min(self.send_budget, max(_DRAFT_SECONDS_MIN, self.send_budget * _DRAFT_SHARE))

    def budget(self, kind: str) -> float:
        """Seconds that an op of this kind may be under way."""
        return self.draft_budget if kind == "draft_update" else self.send_budget

    def deadline(self, sent_at: float) -> float:
        """Until when (monotonic) a lease may be relied on, whose renewal was sent at `sent_at`: a little earlier than the database thinks."""
        return local_deadline(sent_at, self.ttl)


@dataclass(frozen=True)
class Doors:
    """Clock, chance, ids and failpoints, as parameters."""

    clock: Clock = field(default_factory=Clock)
    chance: Chance = field(default_factory=Chance)
    ids: Ids = field(default_factory=Ids)
    failpoints: Failpoints = field(default_factory=Failpoints)


class Ending(StrEnum):
    """Why a channel's runtime ended."""

    STOPPED = "stopped"  # asked to: disabled, deleted, configured anew, drained
    LOST = "lost"  # the lease is another's, or the channel may not run
    REFUSED = "refused"  # the platform refuses the credentials
    UNREACHABLE = "unreachable"  # too many failed contacts: another replica may do better
    UNSTARTABLE = "unstartable"  # no adapter, unreadable credentials: another replica may have them


class DeliverEvents(Protocol):
    """Stores a channel's events and cursor under its lease.

    Returns only after the commit. Raises LeaseLost when another owns the channel, DatabaseAway when nothing could be stored.
    """

    async def __call__(
        self, lease: ChannelLease, events: Sequence[Event], cursor: Mapping[str, Any] | None
    ) -> None: ...
