"""A channel that is switched off, or deleted, while a send of its dead owner is under way: nothing waits for ever."""

from __future__ import annotations

import pytest

from stratus.store import channel
from testbed.invariants import violations
from testbed.replicas import eventually
from testbed.stage import OWNER_OFF, Stage

pytestmark = pytest.mark.asyncio

STATES = "SELECT state FROM channel_outbox ORDER BY id"


@pytest.mark.parametrize("deleted", [False, True])
async def test_what_its_dead_owner_was_sending_is_unknown_and_the_rest_is_told(stage: Stage, deleted: bool) -> None:
    await stage.add_agent()
    await stage.add_channel()
    stage.platform.controls.hold("send", {"text": {"contains": "one"}})
    async with stage.replicas(2, roles=[{}, OWNER_OFF]) as [owner, _other]:
        await stage.owned_by(owner)
        await stage.say("one")
        await eventually(lambda: stage.platform.controls.gates["send"].held == 1, timeout=15, what="the send under way")
        await stage.say("two")
        await eventually(lambda: states(stage, "sending", "pending"), timeout=15, what="the second waits behind it")
        await owner.kill()
        if deleted:
            await channel.delete(stage.db, stage.channel_id)
        else:
            await channel.set_enabled(stage.db, stage.channel_id, False)
        left = "canceled" if deleted else "pending"
        await eventually(lambda: states(stage, "unknown", left), timeout=30, what="an honest end")
    assert stage.platform.log == [] and await violations(stage.db, at_rest=False) == {}


async def states(stage: Stage, *wanted: str) -> bool:
    return [row["state"] for row in await stage.rows(STATES)] == list(wanted)
