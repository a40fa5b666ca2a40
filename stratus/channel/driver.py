"""What the conformance suite asks of a platform's fake: faults for the next send, and ways to order it about."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from stratus.channel.values import RawRequest

RETRY_AFTER_SECONDS = 7


class Fault(StrEnum):
    """What the next send meets at the platform."""

    REFUSED = "refused"  # not sent, and never will be
    RATE_LIMITED = "rate_limited"  # not sent; again in RETRY_AFTER_SECONDS
    UNAUTHORIZED = "unauthorized"  # not sent: the credentials are refused
    UNFORMATTED = "unformatted"  # not sent: the formatting is refused, plain text is not
    SERVER_ERROR = "server_error"  # sent, and answered with a server's error
    LOST = "lost"  # sent, and the connection reset before the answer
    SILENCE = "silence"  # sent, and never answered


class Driver(Protocol):
    """The platform's side, as the suite needs it: a fake server and ways to order it about."""

    chat: str

    async def inject(self, text: str) -> None:
        """A person writes `text` to the bot in `chat`."""

    async def redeliver(self) -> None:
        """The platform hands out again, to whoever polls next, everything that it has handed out."""

    async def acknowledged(self) -> int:
        """How many of the injected events the platform believes to be taken."""

    async def arm(self, fault: Fault) -> None:
        """The next send meets `fault`; the one after it does not."""

    async def sent(self) -> Sequence[str]:
        """The texts that the platform took, in order."""

    async def send_calls(self) -> int:
        """How many calls to send something have reached the platform, refused ones included."""

    async def revoke(self) -> None:
        """From now on the platform refuses the bot's credentials."""

    async def pushed(self, text: str) -> RawRequest | None:
        """The webhook request in which the platform would bring the next injected event; None: it has no webhooks."""
