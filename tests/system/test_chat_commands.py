"""What a chat may say to the gateway itself, who may say anything at all, and what becomes of an event that cannot be routed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from stratus.channel import Event, Sender
from stratus.domain.inbox import MAX_ROUTE_ATTEMPTS
from stratus.effects import Failpoints
from stratus.ingress.router import Router
from stratus.store import inbox
from stratus.store.database import Connection
from stratus.store.hints import Hints
from stratus.store.inbox import Arrival, ReadyEvent
from testbed.postgres import TestCluster
from testbed.replicas import eventually
from testbed.stage import Stage, shared_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = "SELECT state, outcome FROM channel_inbox WHERE channel_id = $1 ORDER BY id"
RUNS = """
SELECT r.state, r.agent_id, r.session_id FROM agent_run r JOIN channel_inbox i ON i.id = r.inbox_id
 WHERE i.channel_id = $1 ORDER BY r.id
"""
OPEN_OPS = "SELECT count(*) FROM channel_outbox WHERE channel_id = $1 AND state <> 'sent'"
HOURS = "SELECT count(DISTINCT to_char(received_at, 'YYYYMMDDHH24')) FROM channel_inbox WHERE channel_id = $1"
# What a later version may have stored: an event that this one cannot read.
UNREADABLE = """
INSERT INTO channel_inbox (channel_id, event_key, kind, version, chat_key, thread_key, sender, payload, account_key, state)
SELECT id, 'poison', 'message', 9, $2, '', '{"id": "u1", "name": "Una"}', '{"shape": "of a later version"}', account_key, 'ready'
  FROM channel WHERE id = $1
RETURNING id
"""
DUE_AGAIN = "UPDATE channel_inbox SET not_before = clock_timestamp() WHERE id = $1 AND state = 'ready'"


@dataclass
class Room:
    """One channel, with a bot and with chats of its own."""

    stage: Stage
    id: int
    bot: str
    name: str = field(default_factory=lambda: uuid4().hex[:8])

    async def say(self, text: str, chat: str = "", **fields: Any) -> dict[str, Any]:
        """A person writes in the room's chat, or in another."""
        return await self.stage.say(text, self.chat(chat), bot=self.bot, id=uuid4().hex, **fields)

    def chat(self, name: str = "") -> str:
        return f"{self.name}{name}"

    async def told(self, count: int, chat: str = "", *, timeout: float = 15) -> list[str]:
        """Wait for so many messages in a chat, and for nothing else to be under way."""
        place = self.chat(chat)
        await eventually(
            lambda: len(self.stage.sent(place)) >= count, timeout=timeout, what=f"{count} messages in {place}"
        )
        return self.stage.sent(place)

    async def ask(self, text: str, chat: str = "", **fields: Any) -> str:
        """Say something, and answer the first line of what comes back."""
        before = len(self.stage.sent(self.chat(chat)))
        await self.say(text, chat, **fields)
        return (await self.told(before + 1, chat))[-1].split("\n")[0]

    async def settled(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many events are routed, or are otherwise done with, and all that follows is sent."""

        async def done() -> bool:
            rows = await self.events()
            open_ops = await self.stage.value(OPEN_OPS, self.id)
            return len(rows) == count and all(row["state"] != "ready" for row in rows) and not open_ops

        await eventually(done, timeout=15, what=f"{count} events to be settled")
        return await self.events()

    async def events(self) -> list[dict[str, Any]]:
        return await self.stage.rows(EVENTS, self.id)

    async def runs(self) -> list[dict[str, Any]]:
        return await self.stage.rows(RUNS, self.id)

    async def run_states(self, *expected: str) -> None:
        """Wait until the room's runs are in these states, in order."""

        async def reached() -> bool:
            return [run["state"] for run in await self.runs()] == list(expected)

        await eventually(reached, timeout=15, what=f"runs to be {expected}")


async def room(stage: Stage, *, configured: bool = True, **access: Any) -> Room:
    """A new channel; without `access` everybody may talk, unless nothing is `configured`."""
    name = f"bot-{uuid4().hex[:8]}"
    options = {"bot": name, "wait": 1, "access": (access or {"mode": "open"}) if configured else None}
    return Room(stage, await stage.add_channel(name=name, options=options), name)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with shared_stage(cluster) as made:
        await made.add_agent()
        await made.add_agent("other")
        async with made.replicas(1) as replicas:
            yield made
            if request.session.testsfailed:
                replicas.print_logs()


async def test_strangers_are_refused_once_an_hour_however_often_they_write(stage: Stage) -> None:
    here = await room(stage, mode="allowlist")
    refusal = await here.ask("hello")
    assert "u1" in refusal
    for text in ("hello?", "/new", "/stop", "/status", "/help"):
        await here.say(text)
    await here.say("and elsewhere", "-2")
    events = await here.settled(7)
    assert {event["state"] for event in events} == {"rejected"}
    assert await here.runs() == []
    hours = await stage.value(HOURS, here.id)
    assert len(stage.sent(here.chat())) + len(stage.sent(here.chat("-2"))) <= hours
    other = {"id": "u2", "name": "Una"}
    assert "u2" in await here.ask("hello", "-3", sender=other), "each stranger is told"


async def test_access_that_was_never_configured_is_for_nobody(stage: Stage) -> None:
    here = await room(stage, configured=False)
    await here.ask("hello")
    assert await here.runs() == []


async def test_whoami_tells_everybody_who_they_are_and_why_they_are_ignored(stage: Stage) -> None:
    here = await room(stage, mode="allowlist", allow=["u2"])
    stranger = await here.ask("/whoami")
    assert "id u1" in stranger and "not on this channel's list" in stranger
    known = await here.ask("/whoami", "-2", sender={"id": "u2", "name": "Uta"})
    assert "Uta with the id u2" in known and "demo answers" in known


async def test_the_list_lets_in_by_id_and_not_by_name(stage: Stage) -> None:
    here = await room(stage, mode="allowlist", allow=["u2", "Una"])
    assert (await here.ask("hello", sender={"id": "u2", "name": "Anybody"})).startswith("You said: hello")
    assert "u1" in await here.ask("hello", "-2", sender={"id": "u1", "name": "Una"})
    assert len(await here.runs()) == 1


async def test_new_begins_another_conversation_also_with_another_agent(stage: Stage) -> None:
    here = await room(stage)
    await here.ask("one")
    assert await here.ask("/new") == "A new conversation with demo begins here."
    await here.ask("two")
    assert await here.ask("/new other") == "A new conversation with other begins here."
    await here.ask("three")
    assert await here.ask("/new nobody") == "There is no agent called nobody. /agents lists them."
    assert "You wrote 1 message" in (await _whole(here, "four"))
    runs = await here.runs()
    assert [run["agent_id"] for run in runs] == ["demo", "demo", "other", "other"]
    assert len({run["session_id"] for run in runs}) == 3
    assert runs[2]["session_id"] == runs[3]["session_id"], "a refused /new changes nothing"


async def test_agents_are_listed_and_changed_by_name(stage: Stage) -> None:
    here = await room(stage)
    listed = await _whole(here, "/agents")
    assert "- demo\n- other\n" in listed
    assert await _whole(here, "/agent") == listed
    assert await here.ask("/agent other") == "A new conversation with other begins here."
    await here.ask("hello")
    assert [run["agent_id"] for run in await here.runs()] == ["other"]


async def test_stop_ends_the_turn_in_the_making_and_drops_what_waits(stage: Stage) -> None:
    here = await room(stage)
    await here.say("slow 60 hello")
    await here.run_states("running")
    await here.say("queued")
    await here.say("queued as well")
    await here.run_states("running", "queued", "queued")
    assert "1 running" in await here.ask("/status") and "2 queued" in stage.sent(here.chat())[-1]
    assert await here.ask("/stop") == "Stopping. 2 waiting message(s) dropped."
    await here.run_states("canceled", "canceled", "canceled")
    assert await here.ask("/stop") == "Nothing is running."
    assert (await here.ask("hello")).startswith("You said: hello")
    assert len(stage.sent(here.chat())) == 4, "the stopped ones are not answered"


async def test_a_stop_in_one_chat_is_for_that_chat_alone(stage: Stage) -> None:
    here = await room(stage)
    await here.say("slow 2 hello", "-2")
    await here.run_states("running")
    assert await here.ask("/stop") == "Nothing is running."
    assert (await here.told(1, "-2"))[0].startswith("You said: hello")


async def test_help_and_status_and_commands_that_do_not_exist(stage: Stage) -> None:
    here = await room(stage)
    await here.say("/help")
    [text] = await here.told(1)
    assert all(f"/{name}" in text for name in ("new", "stop", "status", "agents", "agent NAME", "whoami", "help"))
    assert await here.ask("/status") == "Agent demo, conversation 1: nothing is going on."
    assert await here.ask("/frobnicate now") == "I do not know this command. /help lists what I know."
    assert (await here.ask("not a /new command")).startswith("You said: not a /new command")
    assert [event["state"] for event in await here.settled(4)] == ["routed"] * 4
    assert len(await here.runs()) == 1


async def test_a_command_in_an_edit_does_nothing(stage: Stage) -> None:
    here = await room(stage)
    await here.ask("hello")
    await here.say("slow 2 again")
    await here.run_states("completed", "running")
    for text in ("/stop", "/new"):
        await here.say(text, kind="edit")
    await here.run_states("completed", "completed")
    events = await here.settled(4)
    assert [event["state"] for event in events] == ["routed", "routed", "ignored", "ignored"]
    assert await here.ask("/status") == "Agent demo, conversation 1: nothing is going on."


async def test_a_group_is_answered_only_when_it_speaks_to_the_bot(stage: Stage) -> None:
    here = await room(stage)
    for text in ("among ourselves", "/stop", "/whoami"):
        await here.say(text, direct=False, addressed=False)
    assert (await here.ask("hello", direct=False)).startswith("You said: Una: hello")
    assert "In this group I only read what is addressed to me." in await here.ask("/whoami", direct=False)
    events = await here.settled(5)
    assert [event["state"] for event in events] == ["ignored", "ignored", "ignored", "routed", "routed"]
    assert len(await here.runs()) == 1


async def test_an_event_that_cannot_be_read_is_buried_and_told_of_and_holds_up_nobody(stage: Stage) -> None:
    here = await room(stage)
    await here.ask("hello")
    poison: int = await stage.db.transact(lambda c: c.fetchval(UNREADABLE, here.id, here.chat("-1")))
    await here.say("behind it", "-1")
    assert (await here.ask("beside it", "-2")).startswith("You said: beside it")

    async def buried() -> bool:
        await stage.db.transact(lambda c: c.execute(DUE_AGAIN, poison))
        return bool(await stage.value("SELECT state = 'dead' FROM channel_inbox WHERE id = $1", poison))

    await eventually(buried, timeout=20, what="the event to be given up")
    assert await stage.value("SELECT attempts FROM channel_inbox WHERE id = $1", poison) == MAX_ROUTE_ATTEMPTS
    sorry, answer = await here.told(2, "-1")
    assert "could not take in a message of yours" in sorry
    assert answer.startswith("You said: behind it")
    await here.settled(4)
    assert len(stage.sent(here.chat("-1"))) == 2


async def test_an_event_that_fails_for_a_while_is_tried_again_by_itself(cluster: TestCluster) -> None:
    # The first hit is that of the batch, the second is the event's own first try.
    failing = {"STRATUS_FAILPOINTS": "route.rule=raise*2", "STRATUS_POLL": "0.1s"}
    async with shared_stage(cluster) as stage, stage.replicas(1, settings=failing):
        await stage.add_agent()
        here = await room(stage)
        await here.say("hello")
        await eventually(lambda: stage.value("SELECT attempts = 1 FROM channel_inbox"), what="the first try to fail")
        assert (await here.ask("beside it", "-2")).startswith("You said: beside it")
        assert (await here.told(1))[0].startswith("You said: hello")
        assert [event["state"] for event in await here.settled(2)] == ["routed", "routed"]


async def test_a_channel_whose_routing_fails_holds_up_no_other(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = inbox.take_batch

    async def failing(connection: Connection, channel_id: int, limit: int) -> list[ReadyEvent] | None:
        if channel_id == first:
            raise RuntimeError("on purpose")
        return await plain(connection, channel_id, limit)

    async with shared_stage(cluster) as stage:
        await stage.add_agent()
        first, second = (await room(stage)).id, (await room(stage)).id
        event = Event(key="1", kind="message", chat="c", sender=Sender(id="u1"), text="hello")
        await inbox.intake(stage.db, [Arrival(first, event), Arrival(second, event)])
        monkeypatch.setattr(inbox, "take_batch", failing)
        router = Router(stage.db, Hints(stage.dsn, stage.db.timeouts, "test"), Failpoints())
        with pytest.raises(RuntimeError, match="on purpose"):
            await router.step()
        states = await stage.rows("SELECT channel_id, state FROM channel_inbox ORDER BY channel_id")
        assert [row["state"] for row in states] == ["ready", "routed"]


async def _whole(here: Room, text: str) -> str:
    before = len(here.stage.sent(here.chat()))
    await here.say(text)
    return (await here.told(before + 1))[-1]
