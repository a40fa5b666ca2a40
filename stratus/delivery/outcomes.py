"""What a call's end means for its op: sent, to be tried again, refused, or not to be known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratus.channel.errors import AccountStopped, SendError, SendFailure
from stratus.channel.text import clean_json
from stratus.channel.values import Receipt
from stratus.domain.chain import ANSWERS, PREVIEW
from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.domain.retry import delay_seconds
from stratus.store.attempt import SAME_KEY
from stratus.store.intent import Intent
from stratus.store.preview import REFUSED
from stratus.store.rate import BOT
from stratus.store.settle import Outcome

# What conformant adapters answer when the platform refuses the bot itself (stratus/channel/suite.py).
UNAUTHORIZED = "unauthorized"
_NOT_SENT_DELAY_SECONDS = 1.0
_MESSAGE_MAX = 300


def accepted(intent: Intent, receipt: Receipt) -> Outcome:
    """The platform took it."""
    try:
        detail = clean_json(receipt.detail)
    except TypeError:  # an adapter's extra that is not JSON must not cost the receipt
        detail = {}
    return Outcome(intent.op_id, intent.token, "sent", {**detail, "message_id": receipt.message_id})


def not_sent(intent: Intent, code: str) -> Outcome:
    """No byte of it has left, and that is not the op's fault."""
    return Outcome(intent.op_id, intent.token, "not_sent", {"code": code}, delay=_NOT_SENT_DELAY_SECONDS, costs=False)


def permanent(intent: Intent, code: str, message: str) -> Outcome:
    """Refused, now and for ever."""
    return Outcome(intent.op_id, intent.token, "permanent", {"code": code, "message": message[:_MESSAGE_MAX]})


def unknown(intent: Intent, code: str) -> Outcome:
    """It may have been taken."""
    return Outcome(intent.op_id, intent.token, "unknown", {"code": code})


def failed(intent: Intent, error: BaseException, jitter: float, same_key_seconds: float) -> Outcome:
    """What `error` out of the call means. `same_key_seconds` is how much longer a repeat is safe by its key (0: it is not)."""
    if credentials_refused(error):
        return not_sent(intent, UNAUTHORIZED)
    if not isinstance(error, SendError):
        # Unclassified texts may hold anything, a URL with a token too: the type's name must do.
        return _unknown_or_again(
            intent, {"code": "unexpected", "message": type(error).__name__}, jitter, same_key_seconds
        )
    detail = {"code": error.code, "message": str(error)[:_MESSAGE_MAX]}
    if error.kind is SendFailure.PERMANENT:
        return _refused(intent, detail)
    if error.kind is SendFailure.RETRYABLE:
        return _retryable(intent, error, detail, jitter)
    return _unknown_or_again(intent, detail, jitter, same_key_seconds)


def _refused(intent: Intent, detail: Mapping[str, Any]) -> Outcome:
    """An answer whose preview cannot be edited (deleted, too old) is tried once more, at once, as a message of its own."""
    if intent.payload.get(PREVIEW) == ANSWERS and intent.payload.get("message_id") is not None:
        return Outcome(intent.op_id, intent.token, "retryable", {**detail, REFUSED: True}, costs=False)
    return Outcome(intent.op_id, intent.token, "permanent", detail)


def credentials_refused(error: BaseException) -> bool:
    """Whether the platform no longer takes the bot at all."""
    return isinstance(error, AccountStopped) or (
        isinstance(error, SendError) and error.kind is SendFailure.PERMANENT and error.code == UNAUTHORIZED
    )


def _retryable(intent: Intent, error: SendError, detail: Mapping[str, Any], jitter: float) -> Outcome:
    if error.new_chat is not None:
        address = {**intent.address, "chat": error.new_chat}
        return Outcome(intent.op_id, intent.token, "retryable", detail, address=address)
    demanded = error.retry_after
    delay = delay_seconds(intent.attempts, jitter) if demanded is None else max(demanded, 0.0)
    holds = None if demanded is None else BOT if error.scope == "bot" else intent.scope
    return Outcome(intent.op_id, intent.token, "retryable", detail, delay=delay, costs=demanded is None, holds=holds)


def _unknown_or_again(intent: Intent, detail: Mapping[str, Any], jitter: float, same_key_seconds: float) -> Outcome:
    delay = delay_seconds(intent.attempts, jitter)
    if delay < same_key_seconds and intent.attempts < MAX_SEND_ATTEMPTS:
        return Outcome(intent.op_id, intent.token, "retryable", {**detail, SAME_KEY: True}, delay=delay)
    return Outcome(intent.op_id, intent.token, "unknown", detail)
