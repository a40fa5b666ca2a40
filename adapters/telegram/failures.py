"""What a failed Bot API call means for a send.

Seen with python-telegram-bot 22.8; the cause decides, because its classes fold causes together.
"""

from __future__ import annotations

from datetime import timedelta

from stratus.channel import SendError, SendFailure

# Telegram tells causes apart by words alone; a 400 and a 403 share some of them. The first that fits counts.
_CODES = (
    ("chat not found", "chat_not_found"),
    ("group chat was deleted", "chat_not_found"),
    ("blocked", "blocked"),
    ("deactivated", "blocked"),
    ("kicked", "blocked"),
    ("not a member", "not_member"),
    ("initiate conversation", "not_started"),
    ("not enough rights", "forbidden"),
    ("no rights to send", "forbidden"),
    ("chat_write_forbidden", "forbidden"),
    ("topic_closed", "topic_closed"),
    ("topic_deleted", "topic_gone"),
    ("message thread not found", "topic_gone"),
    ("message to edit not found", "message_gone"),
    ("message can't be edited", "message_gone"),
)
_TEXT_MAX = 200


def send_error(error: Exception) -> SendError:
    """The SendError for what a call raised. The order matters: BadRequest and TimedOut are both NetworkErrors."""
    from telegram import error as tg

    text = str(error)[:_TEXT_MAX]
    if isinstance(error, tg.RetryAfter):
        return SendError(SendFailure.RETRYABLE, "rate_limited", text, retry_after=seconds(error.retry_after))
    if isinstance(error, tg.ChatMigrated):
        return SendError(SendFailure.RETRYABLE, "migrated", text, new_chat=str(error.new_chat_id))
    if isinstance(error, tg.Forbidden | tg.BadRequest):
        otherwise = "forbidden" if isinstance(error, tg.Forbidden) else "bad_request"
        return SendError(SendFailure.PERMANENT, _code(text.lower(), otherwise), text)
    if isinstance(error, tg.InvalidToken):
        return SendError(SendFailure.PERMANENT, "unauthorized", "Telegram refuses the bot's token")
    if isinstance(error, tg.NetworkError):
        return _network(error, text)
    return SendError(SendFailure.UNKNOWN, "unexpected", f"{type(error).__name__}: {text}")


def seconds(value: int | float | timedelta) -> float:
    """A period that the library gives as a number or, with PTB_TIMEDELTA, as a timedelta."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def parse_refused(error: Exception) -> bool:
    """Whether Telegram could not read our formatting: then nothing was sent, and the plain text will do."""
    from telegram.error import BadRequest

    return isinstance(error, BadRequest) and "can't parse entities" in str(error).lower()


def not_modified(error: Exception) -> bool:
    """Whether an edit found the message as it should be: then it has succeeded."""
    from telegram.error import BadRequest

    return isinstance(error, BadRequest) and "message is not modified" in str(error).lower()


def _code(text: str, otherwise: str) -> str:
    return next((code for words, code in _CODES if words in text), otherwise)


def _network(error: Exception, text: str) -> SendError:
    import httpx

    cause = error.__cause__
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return SendError(SendFailure.RETRYABLE, "not_sent", text)
    if isinstance(cause, httpx.TimeoutException):
        return SendError(SendFailure.UNKNOWN, "timeout", text)
    if isinstance(cause, httpx.HTTPError):
        return SendError(SendFailure.UNKNOWN, "no_answer", text)
    if "(413)" in text or text.startswith("Request Entity Too Large"):
        return SendError(SendFailure.PERMANENT, "too_large", "Telegram takes no file of this size")
    if text.startswith("Too Many Requests"):  # a 429 that does not say how long
        return SendError(SendFailure.RETRYABLE, "rate_limited", text, retry_after=1.0)
    return SendError(SendFailure.UNKNOWN, "server_error", text)
