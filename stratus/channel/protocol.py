"""The adapter's protocol: one class a platform, found by entry point.

Everything platform-specific is in it; nothing durable is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Protocol, runtime_checkable

from stratus.channel.values import Blob, ChannelConfig, Event, Limits, Op, RawRequest, Receipt, WebhookReply

Cursor = Mapping[str, Any]


class Deliver(Protocol):
    """Stores events.

    Returns only after they and the cursor have committed; raises if they have not, and then nothing may be
    acknowledged. Without a cursor the one before stays.
    """

    async def __call__(self, events: Sequence[Event], cursor: Cursor | None) -> None: ...


class Guard(Protocol):
    """Asks whether this op may still make a platform call. Raises if not; the adapter lets that pass through."""

    async def __call__(self) -> None: ...


class Budget(Protocol):
    """Asks for one more new session of this account, and has it on record before it returns. Raises StartRefused."""

    async def __call__(self) -> None: ...


class Adapter(Protocol):
    """One bot on one platform. Made anew for each start of a channel; `close()` ends it."""

    platform: ClassVar[str]
    limits: ClassVar[Limits]

    def __init__(self, config: ChannelConfig) -> None:
        """Cheap and local: no network. Raises BadCredentials when what is needed is missing."""

    def idempotent(self, kind: str) -> timedelta | None:
        """How long the platform takes the same key again for ops of `kind`, answering with the first result.

        None: never.
        """

    async def account(self) -> str:
        """The platform's id of this bot. Called at start, before anything is received or sent.

        Raises AccountStopped for refused credentials.
        """

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        """Receive until cancelled, from `cursor` (None: first start).

        `deliver` is awaited for each batch, empty ones included (a completed poll is progress); only after it has
        returned may the platform be told that the events were taken. Raises PollConflict, AccountStopped, SendError
        with `retry_after` for a flood wait, or any error when the platform cannot be reached; the caller backs off and
        calls again, on this same adapter. In webhook mode it makes sure that the webhook is registered, delivers one
        empty batch, then waits.
        """

    async def webhook(self, request: RawRequest) -> WebhookReply:
        """Verify and parse one pushed request, on any replica, with no network.

        The reply is sent after its events have committed.
        """

    async def fetch(self, ref: str) -> Blob:
        """Fetch an attachment's bytes. Raises SendError for a refusal, any other error for a passing fault."""

    async def send(self, op: Op, guard: Guard) -> Receipt:
        """Make the op's one platform call. An intent has committed and the caller has just asked the guard.

        Must call `guard()` before any further call. Raises SendError and nothing else on purpose; never retries or
        sleeps by itself.
        """

    async def close(self) -> None:
        """Free connections. May be called at any time, also twice."""


@runtime_checkable
class CanEdit(Protocol):
    """Platforms on which a sent message can be edited."""

    async def edit(self, op: Op, guard: Guard) -> Receipt: ...


@runtime_checkable
class CanReact(Protocol):
    """Platforms with reactions."""

    async def react(self, op: Op, guard: Guard) -> Receipt: ...


@runtime_checkable
class CanPrompt(Protocol):
    """Platforms with buttons; `send` then honours `Op.buttons`."""

    async def close_prompt(self, op: Op, guard: Guard) -> Receipt: ...


@runtime_checkable
class NeedsBudget(Protocol):
    """Platforms that punish too many new sessions: the gateway counts them for all replicas."""

    def use_budget(self, budget: Budget) -> None:
        """Called before the first `receive`; from then on `budget()` is awaited right before each new session."""
