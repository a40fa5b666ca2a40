"""Drafts on Telegram, against a server that keeps the Bot API's rules about edits: one message, a second apart, and what each refusal leads to."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram
from testbed.postgres import TestCluster
from testbed.replicas import eventually
from testbed.stage import shared_stage
from tests.system.test_telegram_replicas import Chan, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATES = "SELECT kind, state FROM channel_outbox WHERE channel_id = $1 ORDER BY lane_seq"
ANSWER = " ".join(f"**word{number:03}**" for number in range(60))
PLAIN = ANSWER.replace("**", "")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    telegram = FakeTelegram()
    async with shared_stage(cluster) as stage, FakeServer(telegram.app) as server:
        await stage.add_agent(model="fake")
        async with stage.replicas(1) as replicas:
            yield World(stage, telegram, server.url, replicas[0])
            if request.session.testsfailed:
                replicas.print_logs()


def speak(chan: Chan, text: str, *, seconds: float) -> None:
    """The model's answer to this channel's person, spread over so many seconds."""
    chan.stage.model.script({"text": text}, match=f"for {chan.id}", chunk=5, delay=seconds * 5 / len(text))


async def ask(chan: Chan) -> None:
    """The person of this channel writes, in a chat with the bot's number."""
    await chan.say(f"for {chan.id}", chan.bot.id)


def sent(chan: Chan) -> list[dict[str, Any]]:
    return chan.log(chan.bot.id)


def calls(chan: Chan, method: str) -> list[dict[str, Any]]:
    return chan.calls(method, chan.bot.id)


def stands(chan: Chan) -> dict[int, str]:
    """What stands in the chat: each of our messages with its last text."""
    return {one["message_id"]: one["text"] for one in sent(chan)}


async def ended(chan: Chan) -> list[tuple[str, str]]:
    """Wait for the answer; returns the ops."""

    async def there() -> bool:
        return any(kind == "send_reply" and state == "sent" for kind, state in await ops(chan))

    await eventually(there, timeout=40, what=f"the answer of bot {chan.bot.id}")
    return await ops(chan)


async def ops(chan: Chan) -> list[tuple[str, str]]:
    return [(row["kind"], row["state"]) for row in await chan.stage.rows(STATES, chan.id)]


async def edits(chan: Chan, count: int) -> list[dict[str, Any]]:
    await eventually(
        lambda: len(calls(chan, "editMessageText")) >= count, timeout=30, what=f"{count} edits of bot {chan.bot.id}"
    )
    return calls(chan, "editMessageText")


async def test_an_answer_grows_in_its_message_about_an_edit_a_second(world: World) -> None:
    chan = await world.channel(601, drafts="direct")
    speak(chan, ANSWER, seconds=6)
    began = time.monotonic()
    await ask(chan)
    await ended(chan)
    seconds = time.monotonic() - began
    assert list(stands(chan).values()) == [PLAIN]
    drafts = [one["text"].removesuffix(" …") for one in sent(chan)[:-1]]
    assert 2 <= len(drafts) <= seconds, f"{len(drafts)} drafts in {seconds:.1f} s"
    settled = [draft[:-12] for draft in drafts]  # before what is half written: there `**` may still stand
    assert all(PLAIN.startswith(text) for text in settled) and sorted(settled, key=len) == settled
    assert len(calls(chan, "sendMessage")) == 1 and sent(chan)[0]["reply_to"]


async def test_not_modified_is_a_success(world: World) -> None:
    chan = await world.channel(602, drafts="direct")
    speak(chan, ANSWER, seconds=4)
    await ask(chan)
    await edits(chan, 1)
    fault = world.telegram.controls.fault(
        {"method": "editMessageText", "chat_id": chan.bot.id, "text": {"contains": "word059"}},
        400,
        detail={
            "description": "Bad Request: message is not modified: specified new message content is exactly the same"
        },
    )
    assert {state for _, state in await ended(chan)} == {"sent"}
    assert fault.hits == 1 and len(calls(chan, "sendMessage")) == 1


async def test_a_flood_wait_silences_the_drafts_and_the_answer_comes(world: World) -> None:
    chan = await world.channel(603, drafts="direct")
    speak(chan, ANSWER, seconds=5)
    await ask(chan)
    await edits(chan, 1)
    world.telegram.controls.fault({"method": "editMessageText", "chat_id": chan.bot.id}, 429, retry_after=4)
    made = len(await edits(chan, 2))
    await ended(chan)
    assert 429 in [one["status"] for one in calls(chan, "editMessageText")[made - 1 : made + 1]]
    assert list(stands(chan).values()) == [PLAIN]


async def test_a_preview_that_somebody_deleted_is_not_missed(world: World) -> None:
    chan = await world.channel(604, drafts="direct")
    speak(chan, ANSWER, seconds=5)
    await ask(chan)
    await edits(chan, 1)
    preview = sent(chan)[0]["message_id"]
    del chan.bot.messages[str(chan.bot.id), preview]
    assert ("draft_update", "failed") in await ended(chan)
    answer = [one for one in sent(chan) if one["message_id"] != preview]
    assert [(one["text"], one["edit"]) for one in answer] == [(PLAIN, False)]


async def test_a_preview_that_is_deleted_last_costs_the_answer_one_more_call(world: World) -> None:
    chan = await world.channel(605, drafts="direct")
    speak(chan, ANSWER, seconds=4)
    gate = world.telegram.controls.hold(
        "last", {"method": "editMessageText", "chat_id": chan.bot.id, "text": {"contains": "word059"}}
    )
    await ask(chan)
    await eventually(lambda: gate.entered == 1, timeout=20, what="the answer's edit")
    preview = sent(chan)[0]["message_id"]
    del chan.bot.messages[str(chan.bot.id), preview]
    world.telegram.controls.release("last")
    assert ("draft_update", "failed") not in await ended(chan)
    assert sent(chan)[-1]["message_id"] != preview and sent(chan)[-1]["text"] == PLAIN
