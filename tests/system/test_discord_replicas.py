"""Discord channels on whole replicas, against a gateway that keeps Discord's rules: sessions that survive their owner, and sends that are one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from stratus.store import channel
from testbed.fakes.discord import FakeDiscord
from testbed.fakes.discord_bot import FakeBot, token
from testbed.fakes.server import FakeServer
from testbed.postgres import TestCluster
from testbed.replicas import Replica, ReplicaSet, eventually
from testbed.stage import Stage, process_in, shared_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = (
    "SELECT event_key, kind, state, outcome FROM channel_inbox WHERE channel_id = $1 AND kind <> 'other' ORDER BY id"
)
OPS = "SELECT state, attempts, attempt_seq, sent_message_id FROM channel_outbox WHERE channel_id = $1 ORDER BY id"
HEALTH = "SELECT health ->> 'state' AS state, health ->> 'cause' AS cause, last_error FROM channel WHERE id = $1"
OWNER = "SELECT runtime_replica FROM channel WHERE id = $1 AND lease_until > clock_timestamp()"


@dataclass
class Chan:
    """One channel with the bot behind it."""

    stage: Stage
    discord: FakeDiscord
    bot: FakeBot
    id: int
    chat: str

    async def answered(self, count: int, *, timeout: float = 30) -> list[str]:
        """Wait for so many messages in the chat; the first line of each."""
        await eventually(
            lambda: len(self.log()) >= count, timeout=timeout, what=f"{count} answers of bot {self.bot.id}"
        )
        return [entry["text"].split("\n")[0] for entry in self.log()]

    def log(self) -> list[dict[str, Any]]:
        return [one for one in self.discord.log if one["bot"] == self.bot.id]

    def starts(self) -> list[str]:
        """The sessions that were asked for, in order."""
        return [entry["what"] for entry in self.bot.gateway_log if entry["what"] != "left"]

    async def health(self, state: str, cause: str = "", *, timeout: float = 30) -> str:
        """Wait for the channel's health; its last error."""

        async def reached() -> bool:
            [row] = await self.stage.rows(HEALTH, self.id)
            return (row["state"], row["cause"]) == (state, cause)

        await eventually(reached, timeout=timeout, what=f"bot {self.bot.id} to be {state} {cause}")
        return str((await self.stage.rows(HEALTH, self.id))[0]["last_error"])

    async def states(self, *expected: str) -> list[dict[str, Any]]:
        """Wait until the outbox is in these states, in order."""

        async def reached() -> bool:
            return [op["state"] for op in await self.stage.rows(OPS, self.id)] == list(expected)

        await eventually(reached, timeout=30, what=f"ops to be {expected}")
        return await self.stage.rows(OPS, self.id)


@dataclass
class World:
    """Two full replicas, and the Discord that their channels talk to."""

    stage: Stage
    discord: FakeDiscord
    url: str
    replicas: ReplicaSet

    async def channel(self, number: int, *, healthy: bool = True, **options: Any) -> Chan:
        """Add a channel and wait until it is connected."""
        bot = self.discord.bot(str(4_200_000_000_000_000_000 + number))
        bot.beat_seconds = 2.0  # on a busy machine, an answer within 0.3 s is much to ask
        config = {"api_base": f"{self.url}/api/v10", "access": {"mode": "open"}, **options}
        row = await self.stage.install("discord", f"bot-{number}", config, {"token": token(bot.id)})
        found = Chan(self.stage, self.discord, bot, row.id, str(7000 + number))
        if healthy:
            await found.health("connected")
        return found

    async def owner(self, chan: Chan) -> Replica:
        """The replica that runs the channel."""

        async def found() -> Replica | None:
            name = await self.stage.value(OWNER, chan.id)
            return next((one for one in self.replicas if name and process_in(name) == one.pid), None)

        owner: Replica | None = await eventually(found, timeout=30, what=f"an owner of channel {chan.id}")
        assert owner is not None
        return owner


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    discord = FakeDiscord()
    async with shared_stage(cluster) as stage, FakeServer(discord.app) as server:
        await stage.add_agent()
        async with stage.replicas(2) as replicas:
            yield World(stage, discord, server.url, replicas)
            if request.session.testsfailed:
                replicas.print_logs()


async def test_the_session_goes_on_at_another_replica_when_its_owner_is_killed(world: World) -> None:
    chan = await world.channel(1)
    chan.bot.say("before", chan.chat)
    await chan.answered(1)
    await chan.states("sent")
    owner = await world.owner(chan)
    await owner.kill()
    try:
        for text in ("while nobody listens", "and one more"):
            chan.bot.say(text, chan.chat)
            await chan.answered(len(chan.log()) + 1)
    finally:
        await owner.restart()
    assert await chan.answered(3) == [
        "You said: before",
        "You said: while nobody listens",
        "You said: and one more",
    ]
    assert chan.starts() == ["identify", "resume"]
    assert len(await world.stage.rows(EVENTS, chan.id)) == 3
    [first, *_] = chan.log()
    assert first["reply_to"] == chan.bot.said[0]["id"]


async def test_a_session_lost_in_between_is_replaced_and_nothing_is_lost_or_doubled(world: World) -> None:
    chan = await world.channel(2)
    chan.bot.say("before", chan.chat)
    await chan.answered(1)
    await chan.states("sent")
    owner = await world.owner(chan)
    await owner.kill()
    try:
        world.discord.end(chan.bot, forget=True)
        chan.bot.say("missed", chan.chat)
        assert await chan.answered(2, timeout=60) == ["You said: before", "You said: missed"]
    finally:
        await owner.restart()
    assert [what for what in chan.starts() if what == "identify"] == ["identify"] * 2
    assert len(await world.stage.rows(EVENTS, chan.id)) == 2


@pytest.mark.parametrize(("number", "answer"), [(3, "store_then_reset"), (4, "store_then_502html")])
async def test_a_send_whose_answer_was_lost_is_one_message(world: World, number: int, answer: str) -> None:
    chan = await world.channel(number)
    world.discord.controls.fault({"chat": chan.chat}, answer)
    chan.bot.say("hello", chan.chat)
    [op] = await chan.states("sent")
    assert await chan.answered(1) == ["You said: hello"]
    assert op["sent_message_id"] == chan.log()[0]["message_id"]
    nonces = [call["params"]["nonce"] for call in world.discord.calls if call["params"].get("chat") == chan.chat]
    # The gateway shows it, or it is asked for again: whichever is first.
    assert len(nonces) in (1, 2) and len(set(nonces)) == 1


async def test_starts_that_follow_one_another_wait_and_say_so(world: World) -> None:
    chan = await world.channel(5)
    await eventually(lambda: chan.starts() == ["identify"], what="the first session")
    world.discord.end(chan.bot, code=4000, forget=True)
    assert "may start in" in await chan.health("degraded", "start_budget")
    assert chan.starts().count("identify") == 1
    await chan.health("connected")
    assert chan.starts().count("identify") == 2


async def test_a_missing_intent_is_explained_and_stops_no_other_channel(world: World) -> None:
    other = await world.channel(6)
    refused = world.discord.bot(str(4_200_000_000_000_000_007))
    refused.message_content = False
    refused.beat_seconds = 2.0
    chan = await world.channel(7, healthy=False)
    assert "MESSAGE CONTENT INTENT" in await chan.health("failed", "misconfigured")
    other.bot.say("hello", other.chat)
    assert await other.answered(1) == ["You said: hello"]
    assert chan.starts() == ["identify"]
    await channel.configure(
        world.stage.db,
        chan.id,
        config={
            "api_base": f"{world.url}/api/v10",
            "access": {"mode": "open"},
            "message_content": False,
        },
    )
    await chan.health("connected", timeout=60)
    chan.bot.say("readable", chan.chat)
    assert await chan.answered(1) == ["You said: readable"]


async def test_a_command_is_acknowledged_and_answered_as_a_message(world: World) -> None:
    chan = await world.channel(8)
    made = chan.bot.interact({"name": "whoami", "type": 1}, chan.chat)
    [text] = await chan.answered(1)
    assert "4711" in chan.log()[0]["text"], text
    await eventually(lambda: chan.bot.interactions[made["id"]]["ended"], what="the end of thinking")
    assert [row["kind"] for row in await world.stage.rows(EVENTS, chan.id)] == ["command"]


async def test_what_others_say_in_a_server_is_not_answered(world: World) -> None:
    chan = await world.channel(9)
    chan.bot.say("not for you", chan.chat, guild_id="9")
    chan.bot.say(f"<@{chan.bot.id}> for you", chan.chat, guild_id="9", mentions=[chan.bot.user()])
    [text] = await chan.answered(1)
    assert text.endswith("for you") and "not" not in text
    assert all(entry["pings"] == [] for entry in world.discord.log)
