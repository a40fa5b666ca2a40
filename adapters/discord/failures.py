"""What a failed Discord call means for a send.

Codes: https://discord.com/developers/docs/topics/opcodes-and-status-codes#json; transport errors as seen with aiohttp 3.14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from stratus.channel import SendError, SendFailure

if TYPE_CHECKING:
    from adapters.discord.rest import Refused

_TEXT_MAX = 200
_CODES = {
    10003: "chat_not_found",
    10008: "message_not_found",
    50001: "forbidden",
    50007: "blocked",
    50013: "forbidden",
    40005: "too_large",
}
_BY_STATUS = {403: "forbidden", 404: "not_found", 413: "too_large"}


def send_error(error: Exception) -> SendError:
    """The SendError for what a call raised: only what proves that nothing was sent may be tried again."""
    import aiohttp

    from adapters.discord.rest import Refused

    if isinstance(error, Refused):
        return _refused(error)
    text = f"{type(error).__name__}"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return SendError(SendFailure.RETRYABLE, "not_sent", text)
    if isinstance(error, TimeoutError):
        return SendError(SendFailure.UNKNOWN, "timeout", text)
    if isinstance(error, aiohttp.ClientError | OSError):
        return SendError(SendFailure.UNKNOWN, "no_answer", text)
    return SendError(SendFailure.UNKNOWN, "unexpected", text)


def _refused(error: Refused) -> SendError:
    text = str(error)[:_TEXT_MAX]
    if error.status == 429:
        scope: Literal["chat", "bot"] = "bot" if error.everywhere else "chat"
        return SendError(SendFailure.RETRYABLE, "rate_limited", text, retry_after=error.retry_after, scope=scope)
    if error.status == 401:
        return SendError(SendFailure.PERMANENT, "unauthorized", "Discord refuses the bot's token")
    if error.status >= 500:
        return SendError(SendFailure.UNKNOWN, "server_error", text)
    code = _CODES.get(error.code) or _BY_STATUS.get(error.status, "bad_request")
    return SendError(SendFailure.PERMANENT, code, text)
