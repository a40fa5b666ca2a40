"""What each end of a call means for its op, and the call that is made of a stored op."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from stratus.channel.errors import AccountStopped, SendError, SendFailure
from stratus.channel.values import Op, Receipt
from stratus.delivery import outcomes
from stratus.delivery.guard import GuardRefused, OpGuard
from stratus.delivery.ops import call, op_of, platform_key
from stratus.domain.outbox import MAX_SEND_ATTEMPTS
from stratus.store.intent import Intent

CHANNEL = UUID(int=7)
RETRYABLE, PERMANENT, UNKNOWN = SendFailure.RETRYABLE, SendFailure.PERMANENT, SendFailure.UNKNOWN


def intent(**fields: Any) -> Intent:
    given: dict[str, Any] = {
        "op_id": 5,
        "lane": "c",
        "scope": "c",
        "kind": "send_text",
        "address": {"v": 1, "chat": "c", "thread": "t"},
        "payload": {"v": 1, "text": "hello", "markdown": True},
        "delivery_key": "k",
        "token": UUID(int=1),
        "attempt": 3,
        "attempts": 2,
    }
    return Intent(**{**given, **fields})


@pytest.mark.parametrize(
    ("error", "same_key_seconds", "outcome", "delay", "costs"),
    [
        (SendError(RETRYABLE, "not_sent", "refused"), 0.0, "retryable", 2.0, True),
        (SendError(RETRYABLE, "rate_limited", "429", retry_after=30.0), 0.0, "retryable", 30.0, False),
        (SendError(RETRYABLE, "rate_limited", "429", retry_after=-1.0), 0.0, "retryable", 0.0, False),
        (SendError(RETRYABLE, "migrated", "moved", new_chat="d"), 0.0, "retryable", 0.0, True),
        (SendError(PERMANENT, "blocked", "403"), 60.0, "permanent", 0.0, True),
        (SendError(PERMANENT, "unauthorized", "401"), 0.0, "not_sent", 1.0, False),
        (AccountStopped("revoked"), 0.0, "not_sent", 1.0, False),
        (SendError(UNKNOWN, "http_502", "502"), 0.0, "unknown", 0.0, True),
        (SendError(UNKNOWN, "http_502", "502"), 60.0, "retryable", 2.0, True),
        (SendError(UNKNOWN, "http_502", "502"), 1.5, "unknown", 0.0, True),
        (TimeoutError(), 0.0, "unknown", 0.0, True),
        (KeyError("anything"), 0.0, "unknown", 0.0, True),
        (KeyError("anything"), 60.0, "retryable", 2.0, True),
    ],
)
def test_an_error_has_one_meaning(
    error: Exception, same_key_seconds: float, outcome: str, delay: float, costs: bool
) -> None:
    found = outcomes.failed(intent(), error, 0.0, same_key_seconds)
    assert (found.outcome, found.delay, found.costs) == (outcome, delay, costs)
    assert found.detail["code"]


def test_the_last_attempt_by_key_stays_unknown_rather_than_failed() -> None:
    last = intent(attempts=MAX_SEND_ATTEMPTS)
    assert outcomes.failed(last, TimeoutError(), 0.0, 600.0).outcome == "unknown"


def test_a_moved_chat_changes_nothing_else_of_the_address() -> None:
    found = outcomes.failed(intent(), SendError(RETRYABLE, "migrated", "moved", new_chat="d"), 0.0, 0.0)
    assert found.address == {"v": 1, "chat": "d", "thread": "t"}


def test_the_text_of_an_unclassified_error_is_not_kept() -> None:
    found = outcomes.failed(intent(), RuntimeError("https://api/bot1:secret"), 0.0, 0.0)
    assert "secret" not in repr(found)


def test_a_receipt_survives_an_adapters_odd_extras() -> None:
    assert outcomes.accepted(intent(), Receipt(message_id="9", detail={"x": object()})).detail == {"message_id": "9"}
    assert outcomes.accepted(intent(), Receipt(message_id="9", detail={"n": 1, "message_id": "0"})).detail == {
        "n": 1,
        "message_id": "9",
    }


def test_an_op_is_what_its_row_says() -> None:
    op = op_of(intent(payload={"text": "hi", "id": 1, "kind": "notify", "reply_to": "m", "owner": "x"}), CHANNEL, "r")
    assert (op.id, op.kind, op.chat, op.thread, op.text, op.reply_to) == (5, "send_text", "c", "t", "hi", "m")
    assert (op.attempt, op.owner, op.key) == (3, "r", platform_key(CHANNEL, 5))


@pytest.mark.parametrize("fields", [{"address": {}}, {"payload": {"text": 1}}, {"kind": "sing"}])
def test_a_row_that_describes_no_call_is_told(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        op_of(intent(**fields), CHANNEL, "r")


def test_keys_are_short_and_differ_by_op_and_channel() -> None:
    keys = [platform_key(UUID(int=c), n) for c in range(20) for n in (1, 2, 2**62)]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch("[0-9a-z]{15,25}", key) for key in keys)


class Plain:
    """An adapter without optional abilities."""

    async def send(self, op: Op, guard: object) -> Receipt:
        return Receipt(message_id="sent")


class Able(Plain):
    async def react(self, op: Op, guard: object) -> Receipt:
        return Receipt(message_id="reacted")

    async def edit(self, op: Op, guard: object) -> Receipt:
        return Receipt(message_id="edited")

    async def close_prompt(self, op: Op, guard: object) -> Receipt:
        return Receipt(message_id="closed")


@pytest.mark.parametrize(
    ("kind", "message_id", "made"),
    [
        ("send_text", None, "sent"),
        ("approval_prompt", None, "sent"),
        ("reaction", "9", "reacted"),
        ("edit_prompt", "9", "closed"),
        ("draft_update", "9", "edited"),
        ("draft_update", None, "sent"),
    ],
)
async def test_each_kind_is_one_call_of_the_adapter(kind: str, message_id: str | None, made: str) -> None:
    op = op_of(intent(kind=kind, payload={"message_id": message_id}), CHANNEL, "r")
    adapter: Any = Able()
    assert (await call(adapter, op, yes)).message_id == made
    plain: Any = Plain()
    if kind == "edit_prompt":  # without buttons there are none to take off
        assert (await call(plain, op, yes)).detail["left"]
        with pytest.raises(SendError) as caught:
            await call(adapter, op.model_copy(update={"message_id": None}), yes)
        assert caught.value.code == "no_message"
    elif made == "sent":
        assert (await call(plain, op, yes)).message_id == made
    else:
        with pytest.raises(SendError) as caught:
            await call(plain, op, yes)
        assert (caught.value.kind, caught.value.code) == (PERMANENT, "unsupported")


async def yes() -> None:
    return None


async def test_a_guard_is_shut_while_it_asks_and_after_a_no() -> None:
    seen = []

    async def ask() -> bool:
        seen.append(guard.shut)
        return len(seen) < 2

    guard = OpGuard(ask)
    shut = [guard.shut]
    await guard()
    shut.append(guard.shut)
    with pytest.raises(GuardRefused):
        await guard()
    assert [*shut, guard.shut] == [False, False, True] and seen == [True, True]
