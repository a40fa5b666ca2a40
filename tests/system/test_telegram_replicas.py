"""Telegram channels on a whole replica, against a server that keeps the Bot API's rules: what is stored, sent, retried and never resent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from stratus.channel.text import length
from stratus.channel.values import TextUnit
from stratus.store import channel
from stratus.store.vault import Vault
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram
from testbed.fakes.telegram_bot import FakeBot
from testbed.postgres import TestCluster
from testbed.replicas import SECRET_KEY, Replica, eventually
from testbed.stage import Stage, shared_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "secret-of-the-tests"
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"
STORED = "SELECT (payload -> 'payload' ->> 'update_id')::bigint AS number FROM channel_inbox WHERE channel_id = $1"
EVENTS = "SELECT event_key, state, outcome FROM channel_inbox WHERE channel_id = $1 ORDER BY id"
OPS = "SELECT id, state, attempts, attempt_seq, error, depends_on FROM channel_outbox WHERE channel_id = $1 ORDER BY id"
ATTEMPTS = """
SELECT a.outcome, extract(epoch FROM a.started_at)::float8 AS at
  FROM outbox_attempt a JOIN channel_outbox o ON o.id = a.op_id WHERE o.channel_id = $1 ORDER BY a.attempt
"""
HEALTH = "SELECT health ->> 'state' AS state, health ->> 'cause' AS cause FROM channel WHERE id = $1"

MOVED = "SELECT 1 FROM channel_outbox WHERE channel_id = $1 AND state = 'pending' AND address ->> 'chat' = $2"
SESSIONS = "SELECT DISTINCT session_id FROM agent_run WHERE (reply_to ->> 'channel_id')::bigint = $1"


@dataclass
class Chan:
    """One channel with the bot behind it; each test has a bot and chats of its own."""

    stage: Stage
    telegram: FakeTelegram
    bot: FakeBot
    id: int
    public_id: str
    config: dict[str, Any]

    async def say(self, text: str, chat: int = 7, **fields: Any) -> dict[str, Any]:
        """A person writes in a private chat."""
        place = {"id": chat, "type": "private"}
        return await self.bot.add({"message": {"text": text, "chat": place, **fields}})

    def log(self, chat: int = 7) -> list[dict[str, Any]]:
        """What Telegram has accepted for a chat."""
        return [one for one in self.telegram.log if (one["bot"], one["chat"]) == (self.bot.id, str(chat))]

    def calls(self, method: str, chat: int = 7) -> list[dict[str, Any]]:
        return [
            one
            for one in self.telegram.calls
            if one["method"] == method and str(one["params"].get("chat_id")) == str(chat)
        ]

    async def answered(self, count: int, chat: int = 7, *, timeout: float = 20) -> list[str]:
        """Wait for so many messages in a chat."""
        await eventually(
            lambda: len(self.log(chat)) >= count, timeout=timeout, what=f"{count} answers of bot {self.bot.id}"
        )
        return [one["text"] for one in self.log(chat)]

    async def ops(self) -> list[dict[str, Any]]:
        return await self.stage.rows(OPS, self.id)

    async def states(self, *expected: str, timeout: float = 20) -> list[dict[str, Any]]:
        """Wait until the outbox is in these states, in order."""

        async def reached() -> bool:
            return [op["state"] for op in await self.ops()] == list(expected)

        await eventually(reached, timeout=timeout, what=f"ops to be {expected}")
        return await self.ops()

    async def health(self, state: str, cause: str = "", *, timeout: float = 20) -> None:
        """Wait for the channel's health."""

        async def reached() -> bool:
            return await self.stage.rows(HEALTH, self.id) == [{"state": state, "cause": cause}]

        await eventually(reached, timeout=timeout, what=f"bot {self.bot.id} to be {state} {cause}")

    async def configure(self, **options: Any) -> None:
        self.config |= options
        await channel.configure(self.stage.db, self.id, config=self.config)


@dataclass
class World:
    """A full replica, and the Telegram that its channels talk to."""

    stage: Stage
    telegram: FakeTelegram
    url: str
    replica: Replica

    async def channel(
        self, number: int, *, telegram: FakeTelegram | None = None, url: str | None = None, **options: Any
    ) -> Chan:
        """Add a channel and wait until it is connected."""
        config = {
            "api_base": url or self.url,
            "poll_seconds": 1,
            "access": {"mode": "open"},
            "drafts": "off",
            **options,
        }
        row = await self.stage.install("telegram", f"bot-{number}", config, _credentials(f"{number}:a-token"))
        made = telegram or self.telegram
        found = Chan(self.stage, made, made.bot(number), row.id, str(row.public_id), config)
        await found.health("connected")
        return found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    telegram = FakeTelegram()
    async with shared_stage(cluster) as stage, FakeServer(telegram.app) as server:
        await stage.add_agent()
        async with stage.replicas(1) as replicas:
            yield World(stage, telegram, server.url, replicas[0])
            if request.session.testsfailed:
                replicas.print_logs()


async def test_polled_messages_are_answered_and_confirmed_only_once_they_are_stored(world: World) -> None:
    early: list[int] = []
    plain = world.telegram.methods["getUpdates"]

    async def watched(bot: FakeBot, params: Mapping[str, Any], files: Mapping[str, Any]) -> Any:
        confirmed = {one["update_id"] for one in bot.history if one["update_id"] < int(params.get("offset", 0))}
        if confirmed and bot.id == 101:
            early.extend(confirmed - {row["number"] for row in await world.stage.rows(STORED, chan.id)})
        return await plain(bot, params, files)

    chan = await world.channel(101)
    world.telegram.methods["getUpdates"] = watched
    first = await chan.say("hello")
    assert (await chan.answered(1))[0].startswith("You said: hello")
    assert chan.log()[0]["reply_to"] == first["message"]["message_id"]
    for chat in (8, 9):
        await chan.say("hello too", chat)
    await chan.answered(1, 8)
    await chan.answered(1, 9)
    await eventually(lambda: not chan.bot.pending, what="everything to be confirmed")
    assert early == []
    assert await world.stage.value("SELECT account_key FROM channel WHERE id = $1", chan.id) == "101"


async def test_nothing_is_confirmed_while_the_database_is_away(world: World) -> None:
    chan = await world.channel(102)
    await chan.say("before")
    await chan.answered(1)
    await eventually(lambda: not chan.bot.pending, what="the first update to be confirmed")
    before = chan.bot.confirmed
    await world.replica.cut_database(rst=True)
    try:
        polls = _polls(world)
        for text in ("one", "two"):
            await chan.say(text)
        await eventually(lambda: _polls(world) > polls, what="a poll while the database is away")
        assert chan.bot.confirmed == before
    finally:
        await world.replica.heal()
        await world.replica.wait_ready()
    texts = await chan.answered(3, timeout=30)
    assert [text.split("\n")[0] for text in texts] == ["You said: before", "You said: one", "You said: two"]
    assert len(await world.stage.rows(EVENTS, chan.id)) == 3


async def test_pushed_messages_are_answered_and_forged_ones_leave_nothing(world: World) -> None:
    chan = await world.channel(103, mode="webhook")
    assert chan.bot.webhook is not None
    assert chan.bot.webhook.url == f"{world.replica.url}/hooks/{chan.public_id}"
    await chan.say("hello")
    assert (await chan.answered(1))[0].startswith("You said: hello")
    async with httpx.AsyncClient(trust_env=False) as client:
        for headers in ({}, {SECRET_HEADER: "a-guess"}):
            update = chan.bot.filled({"message": {"text": "forged"}})
            reply = await client.post(chan.bot.webhook.url, json=update, headers=headers)
            assert reply.status_code == 401
    assert len(await world.stage.rows(EVENTS, chan.id)) == 1
    assert chan.bot.webhook.refusals == 0


async def test_a_change_of_transport_repeats_nothing(world: World) -> None:
    chan = await world.channel(104)
    update = await chan.say("hello")
    await chan.answered(1)
    await chan.configure(mode="webhook")
    await eventually(lambda: chan.bot.webhook is not None, what="the webhook")
    await chan.bot.redeliver(update["update_id"])
    await chan.say("pushed")
    await chan.answered(2)
    await chan.configure(mode="poll")
    await eventually(lambda: chan.bot.webhook is None, what="the end of the webhook")
    await chan.bot.redeliver(None)
    await chan.say("polled")
    texts = [text.split("\n")[0] for text in await chan.answered(3)]
    assert texts == ["You said: hello", "You said: pushed", "You said: polled"]
    keys = [row["event_key"] for row in await world.stage.rows(EVENTS, chan.id)]
    assert keys == [f"7:message:{one['message']['message_id']}" for one in chan.bot.history]


async def test_a_second_poller_is_a_passing_fault(world: World) -> None:
    chan = await world.channel(105)
    async with httpx.AsyncClient(base_url=world.url, trust_env=False) as client, asyncio.TaskGroup() as group:
        rival = group.create_task(_poll_for_ever(client, chan))
        await chan.health("degraded", "poll_conflict")
        rival.cancel()
    await chan.say("hello")
    await chan.health("connected")
    await chan.answered(1)
    assert len(await world.stage.rows(EVENTS, chan.id)) == 1


async def test_a_flood_wait_is_waited_for_and_costs_no_attempt(world: World) -> None:
    chan = await world.channel(106)
    world.telegram.controls.fault({"chat": "1061"}, 429, retry_after=2)
    await chan.say("hello", 1061)
    await chan.answered(1, 1061)
    [op] = await chan.states("sent")
    assert (op["attempts"], op["attempt_seq"]) == (1, 2)
    limited, sent = await world.stage.rows(ATTEMPTS, chan.id)
    assert (limited["outcome"], sent["outcome"]) == ("retryable", "sent")
    assert sent["at"] - limited["at"] >= 2


async def test_a_person_who_blocked_the_bot_holds_up_nobody(world: World) -> None:
    chan = await world.channel(107)
    world.telegram.controls.fault({"chat": "1071"}, "blocked")
    await chan.say("hello", 1071)
    [op] = await chan.states("failed")
    assert '"blocked"' in op["error"]
    await chan.say("hello", 1072)
    await chan.answered(1, 1072)
    await chan.say("unblocked", 1071)
    assert (await chan.answered(1, 1071))[0].startswith("You said: unblocked")
    await chan.states("failed", "sent", "sent")


async def test_formatting_that_is_refused_is_sent_plain(world: World) -> None:
    chan = await world.channel(108)
    world.telegram.controls.fault({"chat": "1081"}, "parse")
    await chan.say("markdown", 1081)
    [text] = await chan.answered(1, 1081)
    assert text.startswith("# A sample\n\nSome *emphasis*")
    assert [call["params"].get("parse_mode") for call in chan.calls("sendMessage", 1081)] == ["HTML", None]
    [op] = await chan.states("sent")
    assert op["attempt_seq"] == 1


@pytest.mark.parametrize(("number", "answer"), [(109, "store_then_502html"), (110, "store_then_hang")])
async def test_a_send_whose_end_is_not_known_is_never_repeated(world: World, number: int, answer: str) -> None:
    chan, chat = await world.channel(number), number * 10
    world.telegram.controls.fault({"chat": str(chat)}, answer)
    await chan.say("first", chat)
    await chan.states("unknown")
    await chan.say("second", chat)
    texts = [text.split("\n")[0] for text in await chan.answered(2, chat)]
    assert texts == ["You said: first", "You said: second"]
    await chan.states("unknown", "sent")
    assert len(chan.calls("sendMessage", chat)) == 2


async def test_a_server_that_is_down_for_a_moment_gets_the_answer_later(world: World) -> None:
    telegram = FakeTelegram()
    async with FakeServer(telegram.app) as server:
        chan = await world.channel(111, telegram=telegram, url=server.url)
        await chan.say("slow 2 hello")
        await eventually(lambda: _runs(world, chan), what="the run")
        port = server.port
    failed = await eventually(lambda: _attempts(world, chan, "retryable"), timeout=20, what="a refused connection")
    assert failed[0]["outcome"] == "retryable"
    async with FakeServer(telegram.app, port=port):
        assert (await chan.answered(1, timeout=30))[0].startswith("You said: hello")
        [op] = await chan.states("sent")
        await chan.health("connected")
    assert op["attempts"] > 1
    assert len(chan.log()) == 1
    await channel.set_enabled(world.stage.db, chan.id, False)


async def test_a_long_answer_comes_in_order_and_in_pieces_that_telegram_takes(world: World) -> None:
    chan = await world.channel(112)
    asked = await chan.say("long 9000")
    texts = await chan.answered(3)
    assert len(texts) == 3
    assert all(length(text, TextUnit.UTF16) <= 4096 for text in texts)
    whole = await world.stage.value(
        "SELECT m.parts -> 0 ->> 'text' FROM message m JOIN channel_inbox i ON i.run_id = m.run_id"
        " WHERE i.channel_id = $1 AND m.role = 'assistant'",
        chan.id,
    )
    assert "".join("".join(texts).split()) == "".join(whole.split())
    assert [one["reply_to"] for one in chan.log()] == [asked["message"]["message_id"], None, None]
    ops = await chan.states("sent", "sent", "sent")
    assert [op["depends_on"] for op in ops] == [None, ops[0]["id"], ops[1]["id"]]


async def test_a_revoked_token_stops_its_channel_alone_until_it_is_mended(world: World) -> None:
    chan, other = await world.channel(113), await world.channel(114)
    chan.bot.token = "113:another-token"
    await chan.health("failed", "credentials_refused")
    await other.say("hello")
    await other.answered(1)
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{world.replica.url}/readyz")).status_code == 200
    row = await channel.get(world.stage.db, chan.public_id)
    await channel.configure(
        world.stage.db, chan.id, credentials=Vault([SECRET_KEY]).seal(row.public_id, _credentials("113:another-token"))
    )
    await chan.say("hello again")
    await chan.answered(1)
    await chan.health("connected")


@pytest.mark.parametrize("told_first", [True, False])
async def test_a_group_that_becomes_a_supergroup_goes_on_there(world: World, told_first: bool) -> None:
    number = 116 + told_first
    chan, old, new, name = await world.channel(number), -number, -1000 - number, f"@bot{number}_bot"
    meant = {"entities": [{"type": "mention", "offset": 0, "length": len(name)}]}
    held = world.telegram.controls.hold("upgrade", {"chat": str(old)})
    for text in ("one", "two"):
        await chan.bot.add({"message": {"text": f"{name} {text}", "chat": {"id": old, "type": "group"}, **meant}})
    await eventually(lambda: held.entered == 1, 20, "the answer is on its way to the old chat")
    await chan.states("sending", "pending")
    await chan.bot.upgrade(old, new, tell=told_first)
    if told_first:
        await eventually(lambda: world.stage.rows(MOVED, chan.id, str(new)), 20, "the chat has moved")
    world.telegram.controls.release("upgrade")
    said = [text.splitlines()[0] for text in await chan.answered(2, new)]
    assert said == [f"You said: Una: {name} {n}" for n in ("one", "two")]
    sent = await chan.states("sent", "sent")
    assert [op["attempt_seq"] for op in sent] == [2, 1], "only the call that was refused is made again"
    await chan.bot.add({"message": {"text": f"{name} three", "chat": {"id": new, "type": "supergroup"}, **meant}})
    await chan.answered(3, new)
    assert len(await world.stage.rows(SESSIONS, chan.id)) == 1


async def test_groups_are_answered_where_the_bot_is_meant_and_bots_never(world: World) -> None:
    chan = await world.channel(115)
    group = {"id": -1007, "type": "supergroup", "title": "A group"}
    mention = {"type": "mention", "offset": 0, "length": len("@bot115_bot")}
    await chan.bot.add({"message": {"text": "among ourselves", "chat": group}})
    robot = {"id": 99, "is_bot": True, "first_name": "Robot"}
    await chan.bot.add({"message": {"text": "@bot115_bot hi", "chat": group, "from": robot, "entities": [mention]}})
    await chan.bot.add({"message": {"text": "beep", "from": robot}})
    await chan.bot.add({"message": {"text": "@bot115_bot hello", "chat": group, "entities": [mention]}})
    assert len(await chan.answered(1, -1007)) == 1
    outcomes = [(row["state"], row["outcome"]) for row in await world.stage.rows(EVENTS, chan.id)]
    assert [state for state, _ in outcomes] == ["ignored", "ignored", "ignored", "routed"]
    assert "not addressed" in outcomes[0][1]
    assert all("bot" in outcome for _, outcome in outcomes[1:3])
    assert chan.log() == []


def _credentials(token: str) -> dict[str, str]:
    return {"token": token, "secret": SECRET}


def _polls(world: World) -> int:
    return sum(call["method"] == "getUpdates" for call in world.telegram.calls)


async def _runs(world: World, chan: Chan) -> list[dict[str, Any]]:
    return await world.stage.rows(
        "SELECT r.id FROM agent_run r JOIN channel_inbox i ON i.run_id = r.id WHERE i.channel_id = $1", chan.id
    )


async def _attempts(world: World, chan: Chan, outcome: str) -> list[dict[str, Any]]:
    return [one for one in await world.stage.rows(ATTEMPTS, chan.id) if one["outcome"] == outcome]


async def _poll_for_ever(client: httpx.AsyncClient, chan: Chan) -> None:
    """Somebody else with the same token, who confirms nothing."""
    with contextlib.suppress(httpx.TransportError):
        while True:
            await client.get(f"/bot{chan.bot.token}/getUpdates", params={"timeout": 1}, timeout=5)
