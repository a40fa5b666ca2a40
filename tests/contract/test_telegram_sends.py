"""The Telegram adapter's sends against the fake Telegram: addresses, formatting, files, edits, and what each failure
means.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.telegram import TelegramAdapter
from stratus.channel import Op, SendError, SendFailure
from stratus.channel.suite import CountedGuard, Delivered
from tests.contract.telegram_driver import TelegramDriver, config

PERMANENT, RETRYABLE, UNKNOWN = SendFailure.PERMANENT, SendFailure.RETRYABLE, SendFailure.UNKNOWN


@pytest.fixture
async def driver() -> AsyncIterator[TelegramDriver]:
    async with TelegramDriver() as made:
        yield made


@pytest.fixture
async def adapter(driver: TelegramDriver) -> AsyncIterator[TelegramAdapter]:
    made = TelegramAdapter(config(driver.url))
    yield made
    await made.close()


def op(text: str = "hi", **fields: Any) -> Op:
    return Op.model_validate({"id": 1, "kind": "send_reply", "chat": "7", "text": text, "key": "k1", **fields})


async def failure(adapter: TelegramAdapter, made: Op) -> SendError:
    with pytest.raises(SendError) as caught:
        await adapter.send(made, CountedGuard())
    return caught.value


async def test_markdown_is_sent_as_html_without_previews(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    await adapter.send(op("**b** `a<b` https://example.org", markdown=True), CountedGuard())
    (entry,) = driver.telegram.log
    assert (entry["parse_mode"], entry["raw"]) == ("HTML", "<b>b</b> <code>a&lt;b</code> https://example.org")
    assert entry["text"] == "b a<b https://example.org"
    assert driver.calls("sendMessage")[0]["params"]["link_preview_options"] == {"is_disabled": True}


async def test_a_reply_goes_to_its_thread_and_message_or_without_it(
    adapter: TelegramAdapter, driver: TelegramDriver
) -> None:
    await adapter.send(op(chat="-1005", thread="33", reply_to="999"), CountedGuard())
    (entry,) = driver.telegram.log
    assert (entry["chat"], entry["thread"], entry["reply_to"]) == ("-1005", "33", 999)


async def test_the_general_topic_is_addressed_without_its_number(
    adapter: TelegramAdapter, driver: TelegramDriver
) -> None:
    await adapter.send(op(chat="-1005", thread="1"), CountedGuard())
    assert driver.telegram.log[0]["thread"] == ""


async def test_refused_formatting_is_sent_plain_behind_the_guard(
    adapter: TelegramAdapter, driver: TelegramDriver
) -> None:
    driver.telegram.controls.fault({}, "parse")
    guard = CountedGuard()
    await adapter.send(op("**b** _c", markdown=True), guard)
    (entry,) = driver.telegram.log
    assert (entry["parse_mode"], entry["text"], guard.asked) == (None, "**b** _c", 1)


async def test_formatting_refused_twice_is_permanent(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    driver.telegram.controls.fault({}, "parse", times=2)
    assert (await failure(adapter, op("**b**", markdown=True))).kind is PERMANENT
    assert len(driver.calls("sendMessage")) == 2


async def test_the_second_of_two_calls_may_be_unknown(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    driver.telegram.controls.fault({}, "parse")
    driver.telegram.controls.fault({}, "store_then_reset")
    assert (await failure(adapter, op("**b**", markdown=True))).kind is UNKNOWN


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (429, RETRYABLE, "rate_limited"),
        ("migrate", RETRYABLE, "migrated"),
        ("blocked", PERMANENT, "blocked"),
        (400, PERMANENT, "chat_not_found"),
        (401, PERMANENT, "unauthorized"),
        (404, PERMANENT, "unauthorized"),
        (413, PERMANENT, "too_large"),
        (500, UNKNOWN, "server_error"),
        ("502html", UNKNOWN, "server_error"),
        ("store_then_502html", UNKNOWN, "server_error"),
        ("reset", UNKNOWN, "no_answer"),
        ("store_then_reset", UNKNOWN, "no_answer"),
    ],
)
async def test_each_failure_has_its_class(
    adapter: TelegramAdapter, driver: TelegramDriver, answer: int | str, kind: SendFailure, code: str
) -> None:
    driver.telegram.controls.fault({}, answer, retry_after=11, detail={"to": -10077})
    error = await failure(adapter, op())
    assert (error.kind, error.code) == (kind, code)
    assert error.retry_after == (11 if answer == 429 else None)
    assert error.new_chat == ("-10077" if answer == "migrate" else None)
    assert len(driver.telegram.log) == (1 if str(answer).startswith("store_then_") else 0)
    assert len(driver.calls("sendMessage")) == 1


@pytest.mark.parametrize(
    ("status", "description", "code"),
    [
        (403, "Forbidden: user is deactivated", "blocked"),
        (403, "Forbidden: bot was kicked from the supergroup chat", "blocked"),
        (403, "Forbidden: bot is not a member of the channel chat", "not_member"),
        (403, "Forbidden: bot can't initiate conversation with a user", "not_started"),
        (403, "Forbidden: the group chat was deleted", "chat_not_found"),
        (403, "Forbidden: not enough rights to send text messages to the chat", "forbidden"),
        (403, "Forbidden: something new", "forbidden"),
        (400, "Bad Request: not enough rights to send text messages to the chat", "forbidden"),
        (400, "Bad Request: have no rights to send a message", "forbidden"),
        (400, "Bad Request: CHAT_WRITE_FORBIDDEN", "forbidden"),
        (400, "Bad Request: TOPIC_CLOSED", "topic_closed"),
        (400, "Bad Request: TOPIC_DELETED", "topic_gone"),
        (400, "Bad Request: message thread not found", "topic_gone"),
        (400, "Bad Request: something new", "bad_request"),
    ],
)
async def test_a_refusal_names_its_cause(
    adapter: TelegramAdapter, driver: TelegramDriver, status: int, description: str, code: str
) -> None:
    driver.telegram.controls.fault({}, status, detail={"description": description})
    error = await failure(adapter, op())
    assert (error.kind, error.code) == (PERMANENT, code)
    assert len(driver.calls("sendMessage")) == 1


@pytest.mark.parametrize("description", ["message to edit not found", "message can't be edited"])
async def test_an_edit_of_a_message_that_is_gone_says_so(
    adapter: TelegramAdapter, driver: TelegramDriver, description: str
) -> None:
    driver.telegram.controls.fault({}, 400, detail={"description": f"Bad Request: {description}"})
    error = await failure(adapter, op(message_id="7"))
    assert (error.kind, error.code) == (PERMANENT, "message_gone")


async def test_a_429_that_does_not_say_how_long_is_retryable(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    driver.telegram.controls.fault({}, 429, retry_after=0)
    error = await failure(adapter, op())
    assert (error.kind, error.code, error.retry_after) == (RETRYABLE, "rate_limited", 1.0)


async def test_a_silent_server_makes_a_send_unknown(
    adapter: TelegramAdapter, driver: TelegramDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.telegram.adapter._SEND_SECONDS", 0.2)
    driver.telegram.controls.fault({}, "store_then_hang")
    error = await failure(adapter, op())
    assert (error.kind, error.code) == (UNKNOWN, "timeout")
    assert len(driver.telegram.log) == 1


async def test_a_file_is_sent_byte_for_byte_with_its_caption(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    data = bytes(range(256)) + b"\r\n--x\r\n"
    file = {"name": "b\u00fc \U0001f600.bin", "mime": "application/x-y", "data": base64.b64encode(data).decode()}
    receipt = await adapter.send(op("*cap*", kind="send_attachment", attachment=file, markdown=True), CountedGuard())
    (entry,) = driver.telegram.log
    assert (entry["method"], entry["text"], entry["parse_mode"]) == ("sendDocument", "cap", "HTML")
    assert entry["attachment"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert entry["attachment"]["name"] == file["name"]
    assert receipt.message_id == str(entry["message_id"])


@pytest.mark.parametrize(
    ("mime", "size", "method"),
    [("image/png", 9, "sendPhoto"), ("image/gif", 9, "sendDocument"), ("image/png", 10_000_001, "sendDocument")],
)
async def test_a_picture_is_a_photo_where_telegram_takes_it_as_one(
    adapter: TelegramAdapter, driver: TelegramDriver, mime: str, size: int, method: str
) -> None:
    file = {"name": "p", "mime": mime, "data": base64.b64encode(bytes(size)).decode()}
    await adapter.send(op("", kind="send_attachment", attachment=file), CountedGuard())
    assert driver.telegram.log[0]["method"] == method


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"text": "x" * 4097}, "too_long"),
        ({"text": "\U0001f600" * 513, "attachment": {"data": "AA=="}}, "too_long"),
        ({"attachment": {"data": "?"}}, "bad_data"),
        ({"attachment": {}}, "no_data"),
        ({"buttons": [("b", "d" * 65)]}, "bad_button"),
        ({"buttons": [("b", "")]}, "bad_button"),
        ({"chat": "nobody"}, "bad_address"),
        ({"thread": "x"}, "bad_address"),
        ({"reply_to": "x"}, "bad_address"),
        ({"kind": "draft_update", "message_id": "x"}, "bad_address"),
        ({"kind": "reaction"}, "no_message"),
    ],
)
async def test_what_telegram_would_refuse_is_refused_before_the_call(
    adapter: TelegramAdapter, driver: TelegramDriver, fields: dict[str, Any], code: str
) -> None:
    error = await failure(adapter, op(**fields))
    assert (error.kind, error.code) == (PERMANENT, code)
    assert driver.telegram.calls == []


async def test_a_prompt_has_buttons_until_it_is_closed(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    buttons = [("Yes", "y" * 64), ("No", "n"), ("Later", "l")]
    prompt = await adapter.send(op("sure?", kind="approval_prompt", buttons=buttons), CountedGuard())
    close = op("", kind="edit_prompt", message_id=prompt.message_id)
    for _ in range(2):
        assert (await adapter.close_prompt(close, CountedGuard())).message_id == prompt.message_id
    asked, closed = driver.telegram.log
    assert asked["buttons"] == [list(button) for button in buttons]
    assert (closed["method"], closed["text"], closed["buttons"]) == ("editMessageReplyMarkup", "sure?", [])


async def test_an_op_that_names_a_message_edits_it(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    draft = await adapter.send(op("a", kind="draft_update"), CountedGuard())
    final = op("**ab**", message_id=draft.message_id, markdown=True)
    for _ in range(2):  # the second finds the message as it should be
        assert (await adapter.send(final, CountedGuard())).message_id == draft.message_id
    assert [(entry["method"], entry["text"]) for entry in driver.telegram.log] == [
        ("sendMessage", "a"),
        ("editMessageText", "ab"),
    ]


async def test_an_unchanged_message_is_a_success_on_the_plain_retry_too(
    adapter: TelegramAdapter, driver: TelegramDriver
) -> None:
    draft = await adapter.send(op("**a**"), CountedGuard())
    driver.telegram.controls.fault({}, "parse")
    edited = await adapter.edit(op("**a**", message_id=draft.message_id, markdown=True), CountedGuard())
    assert edited.message_id == draft.message_id


async def test_a_reaction_is_set_on_its_message(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    await driver.inject("nice")
    number = str(driver.bot.history[-1]["message"]["message_id"])
    receipt = await adapter.send(op("\U0001f44d", kind="reaction", message_id=number), CountedGuard())
    (entry,) = driver.telegram.log
    assert (entry["method"], entry["text"], receipt.message_id) == ("setMessageReaction", "\U0001f44d", number)


async def test_many_sends_go_on_while_polls_are_torn(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    driver.telegram.controls.fault({"method": "getUpdates"}, "reset")
    with pytest.raises(Exception):  # noqa: B017, PT011 - the poll is torn on purpose
        await adapter.receive(None, Delivered())
    for number in range(40):
        await adapter.send(op(f"m{number}"), CountedGuard())
    assert len(driver.telegram.log) == 40
