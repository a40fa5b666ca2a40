"""A channel whose bot is swapped for another, whose secret is rotated, or that is bound to another agent, on a real replica.

What one account has to answer never leaves through another, and nothing of the same account is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from stratus.store import channel
from stratus.store.vault import Vault
from testbed.fakes.server import FakeServer
from testbed.fakes.telegram import FakeTelegram
from testbed.fakes.telegram_bot import FakeBot
from testbed.postgres import TestCluster
from testbed.replicas import SECRET_KEY, Replica, eventually
from testbed.stage import Stage, shared_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPS = "SELECT account_key, state, error ->> 'code' AS code FROM channel_outbox WHERE channel_id = $1 ORDER BY id"
EVENTS = "SELECT account_key, state FROM channel_inbox WHERE channel_id = $1 ORDER BY id"
HEALTH = "SELECT health ->> 'state' AS state, health ->> 'cause' AS cause FROM channel WHERE id = $1"
PROVEN = "SELECT account_key FROM channel WHERE id = $1 AND running_revision = config_revision AND health ->> 'state' = 'connected'"


@dataclass
class World:
    """One replica, a test platform and a Telegram."""

    stage: Stage
    telegram: FakeTelegram
    telegram_url: str
    replica: Replica

    async def chan(self, bot: str, agent: str = "demo", **options: Any) -> Chan:
        """A channel of the test platform."""
        config = {
            "base_url": self.stage.platform_url,
            "bot": bot,
            "wait": 0.5,
            "access": {"mode": "open"},
            "drafts": "off",
            **options,
        }
        return await self._made("testchan", config, {"secret": "s"}, bot, agent)

    async def bot(self, number: int) -> Chan:
        """A channel of Telegram."""
        config = {"api_base": self.telegram_url, "poll_seconds": 1, "access": {"mode": "open"}, "drafts": "off"}
        return await self._made("telegram", config, {"token": f"{number}:a-token"}, str(number), "demo")

    async def _made(
        self, platform: str, config: dict[str, Any], credentials: dict[str, str], account: str, agent: str
    ) -> Chan:
        row = await self.stage.install(platform, f"{platform}-{account}", config, credentials, agent)
        made = Chan(self.stage, row.id, row.public_id, config)
        await made.runs_as(account)
        return made


@dataclass
class Chan:
    """One channel."""

    stage: Stage
    id: int
    public_id: UUID
    config: dict[str, Any] = field(default_factory=dict)

    async def swap(self, bot: str) -> None:
        self.config = {**self.config, "bot": bot}
        await channel.configure(self.stage.db, self.id, config=self.config)

    async def credentials(self, **given: str) -> None:
        await channel.configure(self.stage.db, self.id, credentials=Vault([SECRET_KEY]).seal(self.public_id, given))

    async def runs_as(self, account: str) -> None:
        async def proven() -> bool:
            return bool(await self.stage.value(PROVEN, self.id) == account)

        await eventually(proven, 20, f"channel {self.id} runs as {account}")

    async def health_is(self, state: str, cause: str) -> None:
        async def told() -> bool:
            return await self.stage.rows(HEALTH, self.id) == [{"state": state, "cause": cause}]

        await eventually(told, 20, f"channel {self.id} is {state} {cause}")

    async def ops_are(self, *expected: tuple[str, str, str | None]) -> None:
        """Wait until the ops have these accounts, states and error codes, in order."""

        async def reached() -> bool:
            found = await self.stage.rows(OPS, self.id)
            return [(one["account_key"], one["state"], one["code"]) for one in found] == list(expected)

        await eventually(reached, 20, f"ops to be {expected}")

    async def retrying(self) -> None:
        async def reached() -> bool:
            return bool(
                await self.stage.value(
                    "SELECT 1 FROM channel_outbox WHERE channel_id = $1 AND state = 'pending' AND attempt_seq > 0",
                    self.id,
                )
            )

        await eventually(reached, 20, "an op that waits to be sent again")

    async def accounts(self) -> list[tuple[str, str]]:
        return [(one["account_key"], one["state"]) for one in await self.stage.rows(EVENTS, self.id)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    telegram = FakeTelegram()
    async with shared_stage(cluster) as stage, FakeServer(telegram.app) as server:
        await stage.add_agent()
        await stage.add_agent("other", "fake")
        async with stage.replicas(1) as replicas:
            yield World(stage, telegram, server.url, replicas[0])
            if request.session.testsfailed:
                replicas.print_logs()


async def test_after_a_swap_the_old_accounts_work_fails_and_the_new_ones_is_done(world: World) -> None:
    stage = world.stage
    # It is at a place in the platform's row of events that the old account's cursor is already past.
    await stage.say("early", "s3", id="first", bot="swap-new")
    chan = await world.chan("swap-old")
    stage.platform.controls.fault({"chat": "s1"}, 429, times=None, retry_after=1)
    await stage.say("waits", "s1", bot="swap-old")
    await chan.retrying()
    await stage.say("slow 3 thinks", "s2", id="first", bot="swap-old")

    async def runs() -> bool:
        return (
            len(
                await stage.rows(
                    "SELECT 1 FROM agent_run r JOIN channel_inbox i ON i.run_id = r.id WHERE i.channel_id = $1", chan.id
                )
            )
            == 2
        )

    await eventually(runs, 20, "the turn that outlasts the swap")
    await chan.swap("swap-new")
    await chan.runs_as("swap-new")
    await stage.say("hello", "s2", id="first", bot="swap-new")  # numbered as one of the old account's
    await eventually(lambda: stage.sent("s2"), 20, "the answer to the new account's message")
    refused = ("swap-old", "failed", "account_mismatch")
    taken = ("swap-new", "sent", None)
    await eventually(lambda: stage.sent("s3"), 20, "the answer to what waited for the new account")

    async def settled() -> bool:
        found = await stage.rows(OPS, chan.id)
        return sorted((one["account_key"], one["state"], one["code"]) for one in found) == sorted(
            [refused, refused, taken, taken], key=str
        )

    await eventually(settled, 20, "each op has its end")
    [text] = stage.sent("s2")
    assert text.startswith("You said: hello") and stage.sent("s1") == []
    assert sorted(await chan.accounts()) == [("swap-new", "routed")] * 2 + [("swap-old", "routed")] * 2
    stage.platform.controls.faults.clear()


async def test_a_rotated_secret_owns_the_old_work(world: World) -> None:
    stage = world.stage
    chan = await world.chan("rotate")
    stage.platform.controls.fault({"chat": "r1"}, 429, times=1, retry_after=2)
    await stage.say("waits", "r1", bot="rotate")
    await chan.retrying()
    await chan.credentials(secret="another")
    for number in range(3):
        await stage.say(f"during {number}", "r2", bot="rotate")
    await eventually(lambda: len(stage.sent("r1") + stage.sent("r2")) == 4, 20, "all answers")
    await chan.runs_as("rotate")
    await chan.ops_are(*[("rotate", "sent", None)] * 4)
    assert await chan.accounts() == [("rotate", "routed")] * 4


async def test_a_channel_bound_to_another_agent_lets_conversations_go_on_with_theirs(world: World) -> None:
    stage = world.stage
    chan = await world.chan("rebind")
    await stage.say("slow 2 one", "b1", bot="rebind")
    await stage.say("two", "b1", bot="rebind")  # queued behind it

    async def runs() -> bool:
        return await chan.accounts() == [("rebind", "routed")] * 2

    await eventually(runs, 20, "both turns, bound to the first agent")
    await channel.configure(stage.db, chan.id, agent_id="other")
    await chan.runs_as("rebind")
    await stage.say("three", "b1", bot="rebind")
    await stage.say("four", "b2", bot="rebind")
    await stage.say("/new", "b1", bot="rebind")
    await eventually(lambda: len(stage.sent("b1")) == 4, 30, "all answers and the receipt")
    await stage.say("five", "b1", bot="rebind")
    await eventually(lambda: len(stage.sent("b1")) == 5, 20, "the last answer")
    answers = [text.split("\n")[0] for text in stage.sent("b1")]
    assert [text for text in answers if text.startswith(("You said", "echo"))] == [
        "You said: one",
        "You said: two",
        "You said: three",
        "echo: five",
    ]
    await eventually(lambda: stage.sent("b2") == ["echo: four"], 20, "the new chat's answer")


async def test_what_is_pushed_before_the_new_account_is_known_is_asked_for_again(world: World) -> None:
    """Its verifier knows the new secret already, and nobody knows yet whose bot that is."""
    stage = world.stage
    chan = await world.chan("push-old", webhook=True)
    hook = f"{world.replica.url}/hooks/{chan.public_id}"

    async def push(client: httpx.AsyncClient, secret: str, event_id: str) -> int:
        event = {"kind": "message", "chat": "p1", "id": event_id, "text": "hello", "sender": {"id": "u1"}}
        reply = await client.post(hook, json={"events": [event]}, headers={"X-Testchan-Secret": secret})
        return reply.status_code

    async with httpx.AsyncClient(trust_env=False) as client:
        assert await push(client, "s", "1") == 200
        # What the old account has not answered by the swap is refused for the new one.
        await eventually(lambda: len(stage.sent("p1")) == 1, 20, "the old account's answer")
        stage.platform.controls.fault({"call": "account", "bot": "push-new"}, 503, times=None)
        await channel.configure(
            stage.db,
            chan.id,
            config={**chan.config, "bot": "push-new"},
            credentials=Vault([SECRET_KEY]).seal(chan.public_id, {"secret": "new"}),
        )
        assert await push(client, "s", "2") == 401
        assert await push(client, "new", "1") == 503
        stage.platform.controls.faults.clear()
        await chan.runs_as("push-new")
        assert await push(client, "new", "1") == 200

    async def both() -> bool:
        return await chan.accounts() == [("push-old", "routed"), ("push-new", "routed")]

    await eventually(both, 20, "both accounts' events")
    await eventually(lambda: len(stage.sent("p1")) == 2, 20, "both answers")
    await chan.ops_are(("push-old", "sent", None), ("push-new", "sent", None))


async def test_two_channels_of_one_bot_do_not_both_run(world: World) -> None:
    stage = world.stage
    first = await world.chan("twice")
    second = await world.chan("once")
    await second.swap("twice")
    await second.health_is("failed", "account_taken")
    assert "testchan-twice" in await stage.value("SELECT last_error FROM channel WHERE id = $1", second.id)
    await stage.say("hello", "t1", bot="twice")
    await eventually(lambda: stage.sent("t1"), 20, "the answer")
    assert await second.accounts() == []
    async with stage.client(world.replica) as client:
        reply = await client.patch(f"/channels/{first.public_id}", json={"enabled": False})
        assert reply.status_code == 200
    await second.runs_as("twice")  # told by the change, not after its minute


# -- Telegram --


async def test_a_telegram_bot_swapped_for_another_reads_its_own_updates_and_answers_nothing_of_the_old(
    world: World,
) -> None:
    """Update and message numbers are each bot's own: the second bot's are the first one's again."""
    chan = await world.bot(301)
    old, new = world.telegram.bot(301), world.telegram.bot(302)
    for text in ("one", "two"):
        await _say(old, text)
    await eventually(lambda: len(_texts(world, old)) == 2, 20, "the old bot's answers")
    await eventually(lambda: not old.pending, 20, "all to be confirmed")
    await _say(old, "slow 3 late")

    async def taken() -> bool:
        return len(await chan.accounts()) == 3

    await eventually(taken, 20, "the message whose answer comes too late")
    for text in ("uno", "dos"):
        await _say(new, text)
    await chan.credentials(token="302:a-token")
    await eventually(lambda: len(_texts(world, new)) == 2, 30, "the new bot's answers")
    assert sorted(_texts(world, new)) == ["You said: dos", "You said: uno"]
    sent = [("301", "sent", None)] * 2
    expected = sorted([*sent, ("301", "failed", "account_mismatch"), *[("302", "sent", None)] * 2], key=str)

    async def ended() -> bool:
        found = await world.stage.rows(OPS, chan.id)
        return sorted(((one["account_key"], one["state"], one["code"]) for one in found), key=str) == expected

    await eventually(ended, 20, "the old bot's late answer is refused, the new one's are stored as sent")
    assert sorted(_texts(world, old)) == ["You said: one", "You said: two"]


async def test_a_telegram_token_that_was_revoked_and_rotated_loses_nothing(world: World) -> None:
    chan = await world.bot(303)
    bot = world.telegram.bot(303)
    await _say(bot, "slow 2 before")

    async def taken() -> bool:
        return len(await chan.accounts()) == 1

    await eventually(taken, 20, "the message is stored")
    bot.token = "303:a-new-token"
    await chan.health_is("failed", "credentials_refused")
    await _say(bot, "meanwhile")
    await chan.credentials(token="303:a-new-token")
    await eventually(lambda: len(_texts(world, bot)) == 2, 30, "both answers")
    assert _texts(world, bot) == ["You said: before", "You said: meanwhile"]
    await chan.ops_are(*[("303", "sent", None)] * 2)


async def _say(bot: FakeBot, text: str) -> None:
    await bot.add({"message": {"text": text, "chat": {"id": 7, "type": "private"}}})


def _texts(world: World, bot: FakeBot) -> list[str]:
    return [one["text"].split("\n")[0] for one in world.telegram.log if one["bot"] == bot.id]
