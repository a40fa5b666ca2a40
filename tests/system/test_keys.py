"""Keys of credentials on real replicas: one that lacks a key leaves the channel to another, and a rotation stops nothing."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

from stratus.store import channel
from stratus.store.vault import Vault
from testbed.replicas import SECRET_KEY, eventually
from testbed.stage import Stage, process_in
from tests.system.commands import Command

NEW = "another-key-of-at-least-32-characters"
OWNER = "SELECT runtime_replica FROM channel WHERE id = $1 AND lease_until > clock_timestamp()"


async def test_a_replica_without_the_key_leaves_the_channel_to_one_that_has_it_until_all_is_sealed_anew(
    stage: Stage, tmp_path: Path
) -> None:
    await stage.add_agent()
    await stage.add_channel()
    public_id = uuid4()
    readable = Vault([NEW]).seal(public_id, {"secret": "s"})
    config = {"base_url": stage.platform_url, "bot": "other", "wait": 1, "access": {"mode": "open"}}
    other = await channel.create(stage.db, public_id, "testchan", "other", "demo", config, readable)
    lacks, has = {"STRATUS_SECRET_KEY": NEW}, {"STRATUS_SECRET_KEY": f"{NEW},{SECRET_KEY}"}

    async def health(channel_id: int, state: str, cause: str) -> None:
        async def told() -> bool:
            found = {row.id: row.health for row in await channel.listing(stage.db)}[channel_id]
            return (found.get("state"), found.get("cause")) == (state, cause)

        await eventually(told, 30, f"{state} {cause}")

    async with stage.replicas(2, roles=[lacks, has]) as (without, having):
        await having.kill()
        await health(stage.channel_id, "failed", "credentials_unreadable")
        await health(other.id, "connected", "")
        command = Command.on(stage.dsn, tmp_path, STRATUS_TEST_CHANNELS="on")
        checked = json.loads((await command("doctor", "--json", settings=lacks)).out)
        [found] = [one for one in checked["checks"] if one["name"] == "credentials"]
        assert not found["ok"] and found["detail"].startswith("chan: ")

        await having.restart()
        await health(stage.channel_id, "connected", "")
        assert process_in(await stage.value(OWNER, stage.channel_id)) == having.pid
        await stage.say("hello", bot="bot")
        await stage.answered(1)

        sealed = await command("channels", "reseal", "--json", settings=has)
        assert sealed.json() == {"resealed": 1, "current": 1, "unreadable": []}
        await having.drain()
        await health(stage.channel_id, "connected", "")
        await stage.say("again", bot="bot")
        await stage.answered(2, timeout=30)
        assert stage.senders()[1][1] == without.pid
        await stage.settled(2)
