"""What a scrape of a real replica tells of its sends and of the channels."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stratus.store import channel
from testbed.replicas import Replica, eventually
from testbed.stage import HTTP_ONLY, Stage

pytestmark = pytest.mark.asyncio

Labels = dict[str, str]


@pytest.fixture
async def chan(stage: Stage) -> Stage:
    """A stage with an agent and a channel."""
    await stage.add_agent()
    await stage.add_channel()
    return stage


async def samples(replica: Replica, name: str) -> list[tuple[Labels, float]]:
    """The labels and values of one metric."""
    async with httpx.AsyncClient(base_url=replica.url, trust_env=False) as client:
        text = (await client.get("/metrics")).text
    return [
        (one.labels, one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name
    ]


async def test_sends_are_counted_by_platform_and_outcome(chan: Stage) -> None:
    async with chan.replicas(1) as [replica]:
        chan.platform.controls.fault({"text": {"contains": "two"}}, "store_then_reset")
        await chan.say("one")
        await chan.say("two", chat="c2")
        await chan.answered(2)

        async def counted() -> bool:
            found = {
                (one["platform"], one["outcome"]): value for one, value in await samples(replica, "stratus_sends_total")
            }
            return found == {("testchan", "sent"): 1.0, ("testchan", "unknown"): 1.0}

        await eventually(counted, timeout=15, what="one send sent, and one unknown")


async def test_channel_health_is_told_by_every_replica_while_the_channel_is_on(chan: Stage) -> None:
    async with chan.replicas(2, roles=[{}, HTTP_ONLY]) as [owner, other]:
        await chan.owned_by(owner)

        async def told(*wanted: Labels) -> bool:
            return [labels for labels, _ in await samples(other, "stratus_channel_health")] == list(wanted)

        of = {"channel": "chan", "platform": "testchan", "cause": ""}
        await eventually(
            lambda: told({**of, "state": "connected"}), timeout=15, what="connected, in the other's scrape"
        )
        await owner.kill()
        await eventually(lambda: told({**of, "state": "unowned"}), timeout=20, what="unowned, once the lease has ended")
        await channel.set_enabled(chan.db, chan.channel_id, enabled=False)
        await eventually(lambda: told(), timeout=15, what="nothing of a channel that is off")
