"""Drafts on Discord, against a server that keeps its rules: the answer grows in one message and ends there; one that was deleted is not missed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from testbed.fakes.discord import FakeDiscord
from testbed.fakes.discord_bot import token
from testbed.fakes.server import FakeServer
from testbed.postgres import TestCluster
from testbed.replicas import eventually
from testbed.stage import Stage, shared_stage
from tests.contract.discord_driver import BOT

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATES = "SELECT kind, state FROM channel_outbox WHERE address ->> 'chat' = $1 ORDER BY lane_seq"
ANSWER = " ".join(f"**word{number:03}**" for number in range(60))


@dataclass
class Guild:
    """A channel with its bot, on a replica that does all."""

    stage: Stage
    discord: FakeDiscord

    def ask(self, chat: str) -> None:
        self.stage.model.script({"text": ANSWER}, match=f"for {chat}", chunk=5, delay=5 * 5 / len(ANSWER))
        self.discord.bot(BOT).say(f"for {chat}", chat)

    def log(self, chat: str) -> list[dict[str, Any]]:
        return [one for one in self.discord.log if one["chat"] == chat]

    async def ended(self, chat: str) -> list[tuple[str, str]]:
        async def found() -> list[tuple[str, str]]:
            return [(row["kind"], row["state"]) for row in await self.stage.rows(STATES, chat)]

        async def there() -> bool:
            return ("send_reply", "sent") in await found()

        await eventually(there, timeout=40, what=f"the answer in {chat}")
        return await found()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guild(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[Guild]:
    discord = FakeDiscord()
    async with shared_stage(cluster) as stage, FakeServer(discord.app) as server:
        await stage.add_agent(model="fake")
        config = {"api_base": f"{server.url}/api/v10", "access": {"mode": "open"}}
        row = await stage.install("discord", "bot", config, {"token": token(BOT)})
        stage.channel_id = row.id
        async with stage.replicas(1) as replicas:
            await stage.owned_by(replicas[0])
            yield Guild(stage, discord)
            if request.session.testsfailed:
                replicas.print_logs()


async def connected(guild: Guild) -> None:
    health = "SELECT health ->> 'state' FROM channel"

    async def there() -> bool:
        return bool(await guild.stage.value(health) == "connected")

    await eventually(there, timeout=20, what="the bot is connected")


async def test_an_answer_grows_in_its_message(guild: Guild) -> None:
    await connected(guild)
    guild.ask("7001")
    assert {state for _, state in await guild.ended("7001")} == {"sent"}
    found = guild.log("7001")
    assert [one["edit"] for one in found] == [False] + [True] * (len(found) - 1) and len(found) >= 3
    assert len({one["message_id"] for one in found}) == 1 and found[-1]["text"] == ANSWER


async def test_a_preview_that_somebody_deleted_is_not_missed(guild: Guild) -> None:
    await connected(guild)
    guild.ask("7002")
    await eventually(lambda: len(guild.log("7002")) >= 1, timeout=20, what="a draft")
    guild.discord.controls.fault({"method": "editMessage", "chat": "7002"}, 404)
    await guild.ended("7002")
    found = guild.log("7002")
    assert found[-1]["edit"] is False and found[-1]["text"] == ANSWER
