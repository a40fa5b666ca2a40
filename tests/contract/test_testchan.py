"""The `testchan` adapter against the fake platform: the conformance suite, and what only this platform has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from adapters.testchan import TestchanAdapter
from stratus.channel import BadCredentials, ChannelConfig, Op, RawRequest, SendFailure
from stratus.channel.driver import Fault
from stratus.channel.suite import AdapterSuite, CountedGuard, Delivered, receiving
from testbed.eventually import eventually
from testbed.fakes.platform import FakePlatform
from testbed.fakes.server import FakeServer
from testbed.sockets import ReservedPort
from tests.contract import served
from tests.contract.receiver import Receiver

SECRET = "a-secret-of-tests"
ANSWERS = {**served.ANSWERS, Fault.SERVER_ERROR: {"answer": "store_then_502"}}


class PlatformDriver:
    """The fake platform under the suite."""

    chat = "c1"

    def __init__(self, url: str) -> None:
        self.platform = FakePlatform()
        self.url = url

    async def inject(self, text: str) -> None:
        await self.platform.add_event({"text": text})

    async def redeliver(self) -> None:
        """It serves everything again to whoever asks from the start."""

    async def acknowledged(self) -> int:
        return self.platform.acknowledged.get("bot", 0)

    async def arm(self, fault: Fault) -> None:
        self.platform.controls.fault({}, **ANSWERS[fault])

    async def sent(self) -> Sequence[str]:
        return [entry.get("text", "") for entry in self.platform.log]

    async def send_calls(self) -> int:
        return self.platform.send_calls

    async def revoke(self) -> None:
        for call in ("account", "poll", "send"):
            self.platform.controls.fault({"call": call}, 401, times=None)

    async def pushed(self, text: str) -> RawRequest | None:
        event = {name: value for name, value in self.platform.events[-1].items() if name != "bot"}
        body = json.dumps({"events": [event]}).encode()
        return RawRequest(method="POST", headers={"x-testchan-secret": SECRET}, body=body)


def config(url: str, **options: Any) -> ChannelConfig:
    return ChannelConfig(
        channel_id="ch",
        name="test",
        options={"base_url": url, "bot": "bot", "wait": 0.1, **options},
        credentials={"secret": SecretStr(SECRET)},
    )


@pytest.fixture
async def driver() -> AsyncIterator[PlatformDriver]:
    made = PlatformDriver("")
    async with FakeServer(made.platform.app) as server:
        made.url = server.url
        yield made


@pytest.fixture
async def adapter(driver: PlatformDriver) -> AsyncIterator[TestchanAdapter]:
    made = TestchanAdapter(config(driver.url))
    yield made
    await made.close()


@pytest.fixture
async def stranded() -> AsyncIterator[TestchanAdapter]:
    with ReservedPort() as reserved:
        made = TestchanAdapter(config(f"http://127.0.0.1:{reserved.number}"))
        yield made
        await made.close()


class TestConformance(AdapterSuite):
    """The suite, with a platform that never takes a key again."""


class TestIdempotentConformance(AdapterSuite):
    """The suite, with a platform that does."""

    @pytest.fixture
    async def adapter(self, driver: PlatformDriver) -> AsyncIterator[TestchanAdapter]:
        driver.platform.same_key_seconds = 60
        made = TestchanAdapter(config(driver.url, idempotent=60))
        yield made
        await made.close()


def op(**fields: Any) -> Op:
    return Op.model_validate({"id": 5, "kind": "send_text", "chat": "c1", "text": "hi", "key": "k5", **fields})


async def test_a_send_says_all_that_the_platform_must_know(adapter: TestchanAdapter, driver: PlatformDriver) -> None:
    attachment = {"name": "a.png", "mime": "image/png", "data": "AAEC"}
    full = op(thread="t", reply_to="m0", buttons=[("Yes", "y")], attachment=attachment, attempt=2, owner="r1")
    receipt = await adapter.send(full, CountedGuard())
    (entry,) = driver.platform.log
    assert entry == {
        "n": 1,
        "op": 5,
        "attempt": 2,
        "replica": "r1",
        "kind": "send_text",
        "chat": "c1",
        "thread": "t",
        "text": "hi",
        "reply_to": "m0",
        "buttons": [["Yes", "y"]],
        "attachment": {"name": "a.png", "mime": "image/png", "base64": "AAEC"},
        "key": "k5",
        "bot": "bot",
        "message_id": receipt.message_id,
        "edit": False,
    }


async def test_an_event_keeps_its_identity_thread_and_files(adapter: TestchanAdapter, driver: PlatformDriver) -> None:
    file = {"name": "v.ogg", "mime": "audio/ogg", "base64": "AAEC"}
    event = {"id": "x9", "chat": "g", "thread": "t", "sender": {"id": "u7", "name": "Uwe"}, "attachments": [file]}
    await driver.platform.add_event(event)
    await driver.platform.add_event({"kind": "callback", "callback": "yes", "id": "x10"})
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: len(delivered.events) == 2)
    first, second = delivered.events
    assert (first.key, first.chat, first.thread, first.sender.id, first.message_id) == ("g:t:x9", "g", "t", "u7", "x9")
    assert (first.attachments[0].kind, first.attachments[0].data, first.attachments[0].size) == ("audio", "AAEC", 3)
    assert (second.kind, second.callback) == ("callback", "yes")


@pytest.mark.parametrize(
    ("text", "kind", "command", "rest"),
    [
        ("/new x y", "command", "new", "x y"),
        ("/STOP", "command", "stop", ""),
        (" /stop", "message", None, " /stop"),
        ("/ x", "message", None, "/ x"),
        ("//x", "message", None, "//x"),
    ],
)
async def test_a_slash_makes_a_command(
    adapter: TestchanAdapter, driver: PlatformDriver, text: str, kind: str, command: str | None, rest: str
) -> None:
    await driver.inject(text)
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: bool(delivered.events))
    assert [(e.kind, e.command, e.text) for e in delivered.events] == [(kind, command, rest)]


async def test_an_edit_with_a_slash_is_no_command(adapter: TestchanAdapter, driver: PlatformDriver) -> None:
    await driver.platform.add_event({"kind": "edit", "text": "/stop"})
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: bool(delivered.events))
    assert [(e.kind, e.command) for e in delivered.events] == [("edit", None)]


async def test_a_malformed_event_does_not_block_the_others(adapter: TestchanAdapter, driver: PlatformDriver) -> None:
    await driver.platform.add_event({"sender": "nobody"})
    await driver.inject("next")
    delivered = Delivered()
    async with receiving(adapter, delivered):
        await delivered.until(lambda: len(delivered.events) == 2)
    assert [event.kind for event in delivered.events] == ["other", "message"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (403, SendFailure.PERMANENT),
        (404, SendFailure.PERMANENT),
        (500, SendFailure.UNKNOWN),
        ("reset", SendFailure.UNKNOWN),
        ("store_then_500", SendFailure.UNKNOWN),
    ],
)
async def test_each_failure_has_its_class(
    adapter: TestchanAdapter, driver: PlatformDriver, answer: int | str, kind: SendFailure
) -> None:
    driver.platform.controls.fault({"text": {"contains": "hi"}}, answer)
    error = await AdapterSuite().refusal(adapter, op())
    assert error.kind is kind
    assert len(driver.platform.log) == (1 if str(answer).startswith("store_then_") else 0)


async def test_a_gate_holds_only_matching_sends(adapter: TestchanAdapter, driver: PlatformDriver) -> None:
    async with httpx.AsyncClient(base_url=driver.url, trust_env=False) as control:
        await control.post("/control/gate", json={"name": "g", "match": {"chat": "held"}, "point": "after"})
        held = driver.platform.controls.gates["g"]
        sending = asyncio.create_task(adapter.send(op(chat="held"), CountedGuard()))
        await eventually(lambda: held.entered == 1)
        await adapter.send(op(chat="free"), CountedGuard())
        gates = (await control.get("/control/gates")).json()
        assert gates == {"g": {"entered": 1, "held": 1, "open": False}}
        assert [entry["chat"] for entry in (await control.get("/log")).json()] == ["held", "free"]
        assert not sending.done()
        await control.post("/control/gate", json={"name": "g", "action": "release"})
        assert (await sending).message_id == "m1"


async def test_pushed_events_are_pushed_until_they_are_taken(driver: PlatformDriver) -> None:
    adapter = TestchanAdapter(config(driver.url, webhook=True))
    receiver = Receiver(adapter, refusals=2)
    async with FakeServer(receiver) as server:
        await driver.inject("early")
        driver.platform.set_webhook(server.url, SECRET)
        await driver.inject("late")
        await eventually(lambda: len(receiver.texts) == 2)
    driver.platform.set_webhook("", "")
    assert receiver.texts == ["early", "late"]
    await adapter.close()


def test_what_is_needed_is_asked_for() -> None:
    for options, credentials in (
        ({"bot": "b"}, {}),
        ({"base_url": "http://x"}, {}),
        ({"base_url": "http://x", "bot": "b", "webhook": True}, {}),
    ):
        with pytest.raises(BadCredentials):
            TestchanAdapter(ChannelConfig(channel_id="c", name="n", options=options, credentials=credentials))
