"""The Telegram adapter against the fake Telegram: the conformance suite, polling, the conflict of two pollers, webhook."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import SecretStr

from adapters.telegram import TelegramAdapter
from stratus.channel import (
    AccountStopped,
    BadCredentials,
    ChannelConfig,
    PollConflict,
    SendError,
    SendFailure,
)
from stratus.channel.suite import AdapterSuite, Delivered, receiving
from testbed.eventually import eventually
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram_checks import File
from testbed.sockets import ReservedPort
from tests.contract.receiver import Receiver
from tests.contract.telegram_driver import SECRET, TOKEN, TelegramDriver, config, pushed


@pytest.fixture
async def driver() -> AsyncIterator[TelegramDriver]:
    async with TelegramDriver() as made:
        yield made


@pytest.fixture
async def adapter(driver: TelegramDriver) -> AsyncIterator[TelegramAdapter]:
    made = TelegramAdapter(config(driver.url))
    yield made
    await made.close()


@pytest.fixture
async def stranded() -> AsyncIterator[TelegramAdapter]:
    with ReservedPort() as reserved:
        made = TelegramAdapter(config(f"http://127.0.0.1:{reserved.number}"))
        yield made
        await made.close()


class TestConformance(AdapterSuite):
    """The suite."""


# -- polling --


async def test_the_next_poll_confirms_exactly_what_was_stored(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    for text in ("a", "b"):
        await driver.inject(text)
    last = driver.bot.history[-1]["update_id"]
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: len(delivered.events) == 2)
        await eventually(lambda: driver.bot.confirmed == last + 1)
    assert delivered.cursor == {"offset": last + 1}
    offsets = [int(call["params"]["offset"]) for call in driver.calls("getUpdates")]
    assert offsets[0] == 0 and set(offsets[1:]) == {last + 1}
    assert all(call["params"]["allowed_updates"][0] == "message" for call in driver.calls("getUpdates"))


async def test_update_ids_that_start_anew_lower_are_confirmed(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    delivered = Delivered()
    async with receiving(adapter, delivered, {"offset": 900_000}):
        await driver.bot.add({"update_id": 5, "message": {"text": "after a week"}})
        await driver.bot.redeliver(5)
        await delivered.until(lambda: bool(delivered.events))
        await eventually(lambda: driver.bot.confirmed == 6)


async def test_one_malformed_update_does_not_block_the_batch(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    await driver.bot.add({"raw": True, "update_id": 2001, "message": {"chat": "?"}})
    await driver.bot.add({"raw": True, "update_id": 2002, "novelty": {"x": 1}})
    await driver.bot.add({"update_id": 2003, "message": {"text": "fine"}})
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: len(delivered.events) == 3)
        await eventually(lambda: driver.bot.confirmed == 2004)
    assert [event.kind for event in delivered.events] == ["other", "other", "message"]


async def test_a_webhook_left_behind_is_ended_without_losing_updates(
    adapter: TelegramAdapter, driver: TelegramDriver
) -> None:
    driver.bot.set_webhook({"url": "http://127.0.0.1:9/none", "secret_token": "x"}, lambda update, reply: None)
    await driver.inject("waiting")
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: bool(delivered.events))
    assert delivered.events[0].text == "waiting"


async def test_of_two_pollers_the_older_is_told_of_the_conflict(
    adapter: TelegramAdapter, driver: TelegramDriver
) -> None:
    newer = TelegramAdapter(config(driver.url, poll_seconds=5))
    async with asyncio.TaskGroup() as group:
        older = group.create_task(_outcome(TelegramAdapter(config(driver.url, poll_seconds=50))))
        await eventually(lambda: len(driver.calls("getUpdates")) == 1)
        delivered = Delivered()
        async with receiving(newer, delivered):
            conflict = await older
            await driver.inject("for the newer")
            await delivered.until(lambda: bool(delivered.events))
    await newer.close()
    assert isinstance(conflict, PollConflict)
    assert conflict.retry_after == 3.0


async def _outcome(adapter: TelegramAdapter) -> Exception:
    with pytest.raises(PollConflict) as caught:
        await adapter.receive(None, Delivered())
    await adapter.close()
    return caught.value


async def test_a_flood_wait_of_a_poll_says_how_long(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    driver.telegram.controls.fault({"method": "getUpdates"}, 429, retry_after=9)
    with pytest.raises(SendError) as caught:
        await adapter.receive(None, Delivered())
    assert (caught.value.kind, caught.value.retry_after) == (SendFailure.RETRYABLE, 9.0)


@pytest.mark.parametrize("answer", ["reset", "502html", 500])
async def test_a_torn_poll_ends_and_the_next_one_works(
    adapter: TelegramAdapter, driver: TelegramDriver, answer: int | str
) -> None:
    driver.telegram.controls.fault({"method": "getUpdates"}, answer)
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011 - whatever the library makes of it
        await adapter.receive(None, Delivered())
    assert not isinstance(caught.value, AccountStopped | PollConflict)
    delivered = Delivered()
    await driver.inject("after")
    async with receiving(adapter, delivered):
        await delivered.until(lambda: bool(delivered.events))
    torn, *later = [call["port"] for call in driver.calls("getUpdates")]
    assert torn not in later


async def test_a_tap_is_stored_and_its_button_stops_spinning(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    await driver.bot.add({"callback_query": {"id": "q9", "data": "approve:1"}})
    driver.telegram.controls.fault({"method": "answerCallbackQuery"}, 400)
    await driver.bot.add({"callback_query": {"id": "q10", "data": "deny:1"}})
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: len(delivered.events) == 2)
        await eventually(lambda: len(driver.calls("answerCallbackQuery")) == 2)
        await delivered.until(lambda: delivered.batches >= 2)
    assert [(event.key, event.callback) for event in delivered.events] == [
        ("cb:q9", "approve:1"),
        ("cb:q10", "deny:1"),
    ]


# -- webhook --


async def test_a_webhook_is_registered_and_pushes_until_it_is_taken(driver: TelegramDriver) -> None:
    serving = TelegramAdapter(config(driver.url))
    receiver = Receiver(serving, refusals=2)
    async with FakeServer(receiver) as server:
        adapter = TelegramAdapter(config(driver.url, f"{server.url}/hooks/x", mode="webhook"))
        await driver.inject("before")
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await delivered.until(lambda: delivered.batches == 1)
            await driver.bot.add({"message": {"text": "/new@BOT42_Bot x", "chat": {"id": -5, "type": "supergroup"}}})
            await driver.bot.add({"callback_query": {"id": "q1", "data": "d"}})
            await eventually(lambda: len(receiver.events) == 3 and not driver.bot.pending)
        await adapter.close()
        driver.bot.end_webhook({})
    (registration,) = driver.calls("setWebhook")
    assert SECRET in registration["params"]["secret_token"]
    assert "message" in registration["params"]["allowed_updates"]
    assert registration["params"].get("drop_pending_updates", "false").lower() == "false"
    assert receiver.statuses == [503, 503, 200, 200, 200]
    before, command, tap = receiver.events
    # the serving adapter never asked for the bot's name: it came with the secret
    assert (before.text, command.command, command.text, tap.callback) == ("before", "new", "x", "d")
    answered = driver.calls("answerCallbackQuery")
    assert [(call["params"], call.get("reply")) for call in answered] == [({"callback_query_id": "q1"}, True)]
    await serving.close()


async def test_a_name_that_the_secret_does_not_prove_is_forged(
    driver: TelegramDriver, adapter: TelegramAdapter
) -> None:
    await driver.inject("x")
    update = driver.bot.history[-1]
    for secret in ("", SECRET[:-1], f"{SECRET}-", f"{SECRET}-other", f"{SECRET}-bot-{'0' * 32}", "\udcff", SECRET * 9):
        reply = await adapter.webhook(pushed(update, secret))
        assert (reply.status, list(reply.events)) == (401, []), secret


async def test_the_derived_secret_differs_by_channel_and_token(driver: TelegramDriver) -> None:
    def made(channel: str, token: str) -> TelegramAdapter:
        credentials = {"token": SecretStr(token)}
        options = {"api_base": driver.url}
        return TelegramAdapter(ChannelConfig(channel_id=channel, name="n", options=options, credentials=credentials))

    secrets = {made(*pair)._secret for pair in (("a", "1:AA"), ("b", "1:AA"), ("a", "1:BB"), ("a", "1:AA"))}
    assert len(secrets) == 3


# -- media, credentials, secrets --


async def test_a_file_is_fetched_byte_for_byte(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    data = bytes(range(256)) * 9
    ref = driver.telegram.add_file(File("voice.ogg", "audio/ogg", data))
    blob = await adapter.fetch(ref)
    assert (blob.name, blob.mime, blob.data) == ("voice.ogg", "audio/ogg", data)


@pytest.mark.parametrize(("size", "code"), [(20_000_001, "too_large"), (None, "no_file")])
async def test_a_file_that_cannot_be_had_is_refused_for_good(
    adapter: TelegramAdapter, driver: TelegramDriver, size: int | None, code: str
) -> None:
    ref = "gone" if size is None else driver.telegram.add_file(File("big", "", bytes(size)))
    with pytest.raises(SendError) as caught:
        await adapter.fetch(ref)
    assert (caught.value.kind, caught.value.code) == (SendFailure.PERMANENT, code)


async def test_a_passing_fault_of_a_fetch_is_no_refusal(adapter: TelegramAdapter, driver: TelegramDriver) -> None:
    ref = driver.telegram.add_file(File("a", "", b"x"))
    driver.telegram.controls.fault({"method": "getFile"}, "502html")
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011 - any error that is no SendError
        await adapter.fetch(ref)
    assert not isinstance(caught.value, SendError)
    assert (await adapter.fetch(ref)).data == b"x"


async def test_a_file_named_by_a_path_of_this_machine_is_refused(
    adapter: TelegramAdapter, driver: TelegramDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def local(*_call: object) -> dict[str, str]:
        return {"file_id": "f", "file_unique_id": "f", "file_path": __file__}

    monkeypatch.setitem(driver.telegram.methods, "getFile", local)
    with pytest.raises(SendError) as caught:
        await adapter.fetch("f")
    assert (caught.value.kind, caught.value.code) == (SendFailure.PERMANENT, "no_file")


@pytest.mark.parametrize("token", ["", "42", "42:", ":AA", "42:a b", "42:AA/../x"])
def test_a_token_of_the_wrong_form_is_refused_at_once(token: str) -> None:
    with pytest.raises(BadCredentials):
        TelegramAdapter(ChannelConfig(channel_id="c", name="n", credentials={"token": SecretStr(token)}))


async def test_neither_the_token_nor_an_answer_is_logged(
    adapter: TelegramAdapter, driver: TelegramDriver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await driver.inject("x")
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await delivered.until(lambda: bool(delivered.events))
        driver.telegram.controls.fault({"method": "getUpdates"}, "502html")
        with pytest.raises(Exception) as caught:  # noqa: B017, PT011 - what matters is what it says
            await adapter.receive(None, Delivered())
        await adapter.send(AdapterSuite().op(driver), _no_guard)
    assert TOKEN not in caplog.text
    assert "<html>" not in caplog.text
    assert TOKEN not in repr(caught.value) + str(caught.value) + repr(adapter)


async def _no_guard() -> None:
    return None


async def test_the_fake_runs_its_controls_over_http(driver: TelegramDriver) -> None:
    async with httpx.AsyncClient(base_url=driver.url, trust_env=False) as control:
        update = (await control.post("/control/update", json={"bot": 42, "message": {"text": "/new"}})).json()
        assert update["message"]["entities"] == [{"type": "bot_command", "offset": 0, "length": 4}]
        data = base64.b64encode(b"abc").decode()
        assert (await control.post("/control/file", json={"name": "a", "base64": data})).json()["size"] == 3
        await control.post("/control/fault", json={"answer": "migrate", "to": -1005})
        refused = await control.post(f"/bot{TOKEN}/sendMessage", json={"chat_id": 7, "text": "x"})
        assert refused.json()["parameters"] == {"migrate_to_chat_id": -1005}
        sent = await control.post(f"/bot{TOKEN}/sendMessage", json={"chat_id": 7, "text": "x"})
        assert sent.json()["ok"]
        assert [entry["text"] for entry in (await control.get("/log")).json()] == ["x"]
        assert (await control.get("/control/state")).json()["42"]["pending"] == 1
        assert (await control.post("/control/redeliver", json={"bot": 42})).json() == {"count": 1}
