"""The Discord adapter's sends against the fake Discord: nonces, mentions, limits, files, edits, reactions, and what each failure means."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.discord import DiscordAdapter
from stratus.channel import Op, SendError, SendFailure
from stratus.channel.suite import CountedGuard
from testbed.fakes.telegram_checks import File
from tests.contract.discord_driver import DiscordDriver, adapter_at

PERMANENT, RETRYABLE, UNKNOWN = SendFailure.PERMANENT, SendFailure.RETRYABLE, SendFailure.UNKNOWN


@pytest.fixture
async def driver() -> AsyncIterator[DiscordDriver]:
    async with DiscordDriver() as made:
        yield made


@pytest.fixture
async def adapter(driver: DiscordDriver) -> AsyncIterator[DiscordAdapter]:
    made = adapter_at(driver.url)
    yield made
    await made.close()


def op(text: str = "hi", **fields: Any) -> Op:
    return Op.model_validate({"id": 1, "kind": "send_reply", "chat": "7000", "text": text, "key": "k1", **fields})


def file(data: bytes, name: str = "a.txt") -> dict[str, Any]:
    return {"kind": "document", "name": name, "mime": "text/plain", "data": base64.b64encode(data).decode()}


async def failure(adapter: DiscordAdapter, made: Op) -> SendError:
    with pytest.raises(SendError) as caught:
        await adapter.send(made, CountedGuard())
    return caught.value


async def test_nothing_that_is_sent_pings_anybody(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    text = "@everyone @here <@4711> <@&9>"
    sent = await adapter.send(op(text, reply_to="123"), CountedGuard())
    await adapter.edit(op(text, message_id=sent.message_id, kind="draft_update"), CountedGuard())
    await adapter.close_prompt(op("", message_id=sent.message_id, kind="edit_prompt"), CountedGuard())
    await adapter.send(op(text, key="k2", attachment=file(b"x")), CountedGuard())
    assert [entry["pings"] for entry in driver.discord.log] == [[], [], [], []]
    bodies = [call["params"] for call in driver.discord.calls if call["method"] in ("createMessage", "editMessage")]
    assert [body["allowed_mentions"]["parse"] for body in bodies] == [[], [], [], []]


async def test_the_key_is_the_nonce_of_messages_and_files(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    for fields in ({"key": "k1"}, {"key": "k2", "attachment": file(b"x")}):
        first = await adapter.send(op("once", **fields), CountedGuard())
        again = await adapter.send(op("once", attempt=2, **fields), CountedGuard())
        assert first.message_id == again.message_id
    assert [entry["nonce"] for entry in driver.discord.log] == ["k1", "k2"]
    assert all(call["params"]["enforce_nonce"] is True for call in driver.calls("createMessage"))


async def test_markdown_is_discords_own(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    await adapter.send(op("**b** `c` [x](https://example.org)", markdown=True), CountedGuard())
    assert driver.discord.log[0]["text"] == "**b** `c` [x](https://example.org)"


async def test_a_reply_goes_without_its_message_if_that_is_gone(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    await adapter.send(op(reply_to="999"), CountedGuard())
    reference = driver.calls("createMessage")[0]["params"]["message_reference"]
    assert reference == {"message_id": "999", "fail_if_not_exists": False}


async def test_a_file_arrives_byte_for_byte_with_its_caption(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    data = bytes(range(256)) * 50
    await adapter.send(op("look", attachment=file(data, 'na"me.bin')), CountedGuard())
    [entry] = driver.discord.log
    assert (entry["text"], entry["attachment"]["sha256"]) == ("look", hashlib.sha256(data).hexdigest())


async def test_a_file_that_is_too_large_is_not_sent(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    error = await failure(adapter, op(attachment=file(bytes(adapter.limits.attachment_bytes_max + 1))))
    assert (error.kind, error.code) == (PERMANENT, "too_large")
    assert driver.calls("createMessage") == []


async def test_a_file_is_fetched_from_discord_only(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    number = driver.discord.add_file(File("cat.png", "image/png", b"meow"))
    blob = await adapter.fetch(f"{driver.url}/files/{number}/cat.png")
    assert (blob.name, blob.mime, blob.data) == ("cat.png", "image/png", b"meow")
    for ref in ("http://127.0.0.1:1/x", "https://example.org/x", "file:///etc/passwd", "http://cdn.discordapp.com/x"):
        with pytest.raises(SendError) as caught:
            await adapter.fetch(ref)
        assert (caught.value.kind, caught.value.code) == (PERMANENT, "no_file")
    with pytest.raises(SendError, match="run out"):
        await adapter.fetch(f"{driver.url}/files/99/gone.png")


async def test_buttons_are_shown_and_taken_away(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    buttons = [(f"B{n}", f"data{n}") for n in range(7)]
    sent = await adapter.send(op("Allow?", buttons=buttons), CountedGuard())
    assert driver.discord.log[0]["buttons"] == [list(one) for one in buttons]
    await adapter.close_prompt(op("Allowed", message_id=sent.message_id, kind="edit_prompt"), CountedGuard())
    assert (driver.discord.log[1]["buttons"], driver.discord.log[1]["text"]) == ([], "Allowed")
    error = await failure(adapter, op(buttons=[("x", "d" * 101)], key="k2"))
    assert (error.kind, error.code) == (PERMANENT, "bad_button")


async def test_a_reaction_is_set_and_taken_away(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    message = driver.bot.say("hello")
    reaction = op("\U0001f44d", kind="reaction", message_id=message["id"])
    for _ in range(2):
        await adapter.react(reaction, CountedGuard())
    assert [one["emoji"]["name"] for one in message["reactions"]] == ["\U0001f44d"]
    guard = CountedGuard()
    await adapter.react(reaction.model_copy(update={"text": ""}), guard)
    assert (message["reactions"], guard.asked) == ([], 1)


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (400, PERMANENT, "bad_request"),
        (401, PERMANENT, "unauthorized"),
        (403, PERMANENT, "forbidden"),
        ("blocked", PERMANENT, "blocked"),
        (404, PERMANENT, "chat_not_found"),
        (413, PERMANENT, "too_large"),
        (500, UNKNOWN, "server_error"),
        ("502html", UNKNOWN, "server_error"),
        ("reset", UNKNOWN, "no_answer"),
    ],
)
async def test_what_each_failure_means(
    adapter: DiscordAdapter, driver: DiscordDriver, answer: int | str, kind: SendFailure, code: str
) -> None:
    driver.discord.controls.fault({}, answer)
    error = await failure(adapter, op())
    assert (error.kind, error.code) == (kind, code)
    assert len(driver.calls("createMessage")) == 1


async def test_an_edit_of_a_message_that_is_gone_is_permanent(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    error = await failure(adapter, op(message_id="123"))
    assert (error.kind, error.code) == (PERMANENT, "message_not_found")


async def test_a_global_limit_holds_back_every_call(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    driver.discord.controls.fault({}, 429, retry_after=5.5, detail={"global": True})
    refused = await failure(adapter, op())
    assert (refused.retry_after, refused.scope) == (5.5, "bot")
    error = await failure(adapter, op(chat="7001"))
    assert error.kind is RETRYABLE and error.retry_after == pytest.approx(5.5, abs=1)
    assert len(driver.calls("createMessage")) == 1


async def test_a_limit_of_the_proxy_before_discord_holds_back_the_bot(
    adapter: DiscordAdapter, driver: DiscordDriver
) -> None:
    driver.discord.controls.fault({}, "429html")
    error = await failure(adapter, op())
    assert (error.kind, error.code, error.scope) == (RETRYABLE, "rate_limited", "bot")
    assert error.retry_after == 30.0
    assert (await failure(adapter, op(chat="7001"))).kind is RETRYABLE
    assert len(driver.calls("createMessage")) == 1


async def test_a_limit_of_one_route_holds_back_its_chat_alone(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    driver.discord.controls.fault({}, 429, retry_after=5.5)
    error = await failure(adapter, op())
    assert (error.retry_after, error.scope) == (5.5, "chat")
    await adapter.send(op(chat="7001", key="n2"), CountedGuard())


async def test_an_empty_bucket_is_told_and_not_run_into(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    driver.discord.limits["7000"] = (2, 30.0)
    for number in range(2):
        await adapter.send(op(key=f"n{number}"), CountedGuard())
    error = await failure(adapter, op(key="n3"))
    assert error.kind is RETRYABLE and error.retry_after == pytest.approx(30, abs=2)
    assert len(driver.calls("createMessage")) == 2
    await adapter.send(op(chat="7001", key="n4"), CountedGuard())


async def test_addresses_that_are_none_never_leave(adapter: DiscordAdapter, driver: DiscordDriver) -> None:
    for fields in ({"chat": "../x"}, {"reply_to": "abc"}, {"message_id": "x/y"}):
        error = await failure(adapter, op(**fields))
        assert (error.kind, error.code) == (PERMANENT, "bad_address")
    assert driver.discord.calls == []
