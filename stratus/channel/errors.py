"""What an adapter may raise. Anything else that escapes from `send` counts as `unknown`."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class SendFailure(StrEnum):
    """What is known of a send that did not succeed."""

    RETRYABLE = "retryable"  # proven not delivered
    PERMANENT = "permanent"  # the platform refused it and will again
    UNKNOWN = "unknown"  # the platform may have taken it


class SendError(Exception):
    """A send did not succeed.

    `retry_after` in seconds is the platform's own demand (a 429), which costs no attempt; with `scope` "bot" it is for
    everything that the bot sends, else for this chat alone. `new_chat` re-addresses the
    chat (a supergroup migration), after which the same op may be retried. `code` is short, stable, and safe to show.
    """

    def __init__(
        self,
        kind: SendFailure,
        code: str,
        message: str,
        *,
        retry_after: float | None = None,
        scope: Literal["chat", "bot"] = "chat",
        new_chat: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.retry_after = retry_after
        self.scope = scope
        self.new_chat = new_chat


# Codes of a refusal that every later message to the chat would meet as well, until somebody there mends it.
CHAT_REFUSES = ("blocked", "chat_not_found", "forbidden", "not_member", "not_started")


class AccountStopped(Exception):
    """The platform no longer accepts our credentials (revoked or wrong): the whole channel stops until they change."""


class Misconfigured(AccountStopped):
    """The platform will not have the bot as it is set up there or here, however often it is asked.

    The message says what to switch on. Nobody tries again before an operator changes or re-enables the channel.
    """


class StartRefused(Exception):
    """No new session may be started yet: the platform punishes too many of them. Again in `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BadCredentials(AccountStopped):
    """The credentials are not even of the right form."""


class PollConflict(Exception):
    """Another consumer holds the platform's event stream; back off `retry_after` seconds and check the lease."""

    def __init__(self, message: str, retry_after: float = 3.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
