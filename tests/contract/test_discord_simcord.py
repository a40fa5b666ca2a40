"""Our Discord payloads against somebody else's idea of Discord: simcord, an independent backend for discord.py.

It takes discord.py's place below its routes, in this process: sockets, nonces and sessions are tested on our own fake.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import discord
import simcord

from adapters.discord import DiscordAdapter, sending
from adapters.discord.convert import Me, event_from_dispatch
from adapters.discord.interactions import COMMANDS, register
from adapters.discord.rest import Rest
from stratus.channel import Event, Op
from stratus.channel.suite import CountedGuard

LIMITS = DiscordAdapter.limits


@dataclass
class Sim:
    """A server with one channel, a member, and our bot."""

    client: discord.Client
    channel: Any
    alice: Any
    heard: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def rest(self) -> Rest:
        return cast(Rest, self.client.http)  # the same routes, ended in simcord

    @property
    def me(self) -> str:
        assert self.client.user is not None
        return str(self.client.user.id)

    def op(self, text: str = "hi", **fields: Any) -> Op:
        made = {"id": 1, "kind": "send_text", "chat": str(self.channel.id), "text": text, "key": "k1"}
        return Op.model_validate(made | fields)

    def events(self, name: str) -> list[Event | None]:
        return [event_from_dispatch(name, data, Me(self.me)) for what, data in self.heard if what == name]


@contextlib.asynccontextmanager
async def simulated() -> AsyncIterator[Sim]:
    """Not a fixture: simcord wants to be left in the task that entered it."""
    intents = discord.Intents.default()
    intents.message_content = True
    client = discord.Client(intents=intents)
    async with simcord.run(client) as env:
        guild = env.create_guild()
        made = Sim(client, guild.create_text_channel("general"), guild.add_member(env.create_user("alice")))
        parsers = client._connection.parsers
        for name in ("MESSAGE_CREATE", "MESSAGE_UPDATE"):
            parsers[name] = _heard(made, name, parsers[name])
        yield made


def _heard(sim: Sim, name: str, parse: Any) -> Any:
    def parsed(data: Any) -> None:
        sim.heard.append((name, data))
        parse(data)

    return parsed


async def test_messages_edits_buttons_files_and_reactions_are_taken() -> None:
    async with simulated() as sim:
        sent = await sending.send(sim.rest, LIMITS, sim.op("Allow?", buttons=[("Yes", "y"), ("No", "n")]))
        assert sim.channel.last_message.content == "Allow?"
        edited = sim.op("Allowed", message_id=sent.message_id, kind="edit_prompt")
        assert (await sending.edit(sim.rest, LIMITS, edited)).message_id == sent.message_id
        assert (sim.channel.last_message.content, len(sim.channel.last_message.components)) == ("Allowed", 0)
        await sending.react(sim.rest, sim.op("\U0001f44d", message_id=sent.message_id, kind="reaction"), CountedGuard())
        [reaction] = sim.channel.last_message.reactions
        assert str(reaction.emoji) == "\U0001f44d"
        await sending.react(sim.rest, sim.op("", message_id=sent.message_id, kind="reaction"), CountedGuard())
        assert sim.channel.last_message.reactions == []
        data = base64.b64encode(b"bytes").decode()
        await sending.send(sim.rest, LIMITS, sim.op("look", key="k2", attachment={"name": "a.txt", "data": data}))
        [file] = sim.channel.last_message.attachments
        assert (file.filename, file.size) == ("a.txt", 5)


async def test_what_people_write_is_understood() -> None:
    async with simulated() as sim:
        await sim.alice.send(sim.channel, "to nobody")
        await sim.alice.send(sim.channel, f"<@{sim.me}> hello")
        first, second = sim.events("MESSAGE_CREATE")
        assert first is not None and second is not None
        assert (first.kind, first.text, first.direct, first.addressed) == ("message", "to nobody", False, False)
        assert (second.text, second.addressed, second.sender.username) == ("hello", True, "alice")


async def test_our_commands_are_registered_and_then_left_alone() -> None:
    async with simulated() as sim:
        await register(sim.rest, sim.me)
        found = await sim.rest.get_global_commands(int(sim.me))
        assert {one["name"] for one in found} == {one["name"] for one in COMMANDS}
