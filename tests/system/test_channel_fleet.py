"""Several replicas and their channels: who runs which, and what becomes of one whose owner cannot reach the platform."""

from __future__ import annotations

from collections import Counter

from testbed.replicas import eventually
from testbed.stage import Stage, process_in

OWNED = """
SELECT runtime_replica, runtime_token FROM channel
 WHERE enabled AND lease_until > clock_timestamp() AND health ->> 'state' = 'connected'
"""


async def shares(stage: Stage) -> list[int]:
    """How many connected channels each owner has, most first."""
    found = await stage.rows(OWNED)
    return sorted(Counter(process_in(row["runtime_replica"]) for row in found).values(), reverse=True)


async def test_channels_are_spread_over_the_replicas_and_again_after_one_was_away(stage: Stage) -> None:
    await stage.add_agent()
    for number in range(9):
        await stage.add_channel(name=f"chan-{number}", options={"bot": f"bot-{number}", "wait": 1})
    async with stage.replicas(3) as replicas:

        async def even() -> bool:
            return await shares(stage) == [3, 3, 3]

        await eventually(even, 60, "three each")
        assert await replicas[0].drain() == 0

        async def all_taken() -> bool:
            return sum(await shares(stage)) == 9

        await eventually(all_taken, 30, "the two others have all")
        before = sum(row["runtime_token"] for row in await stage.rows(OWNED))
        await replicas[0].restart()
        await eventually(even, 60, "three each again")
        moved = sum(row["runtime_token"] for row in await stage.rows(OWNED)) - before
        assert moved <= 4, f"{moved} handovers to move three channels"


async def test_an_owner_that_cannot_reach_the_platform_gives_the_channel_to_one_that_can(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel(options={"wait": 1})
    async with stage.replicas(2) as replicas:
        owner = await stage.owner_among(replicas)
        [other] = [one for one in replicas if one is not owner]
        await stage.owned_by(owner)
        await owner.cut_platform(rst=True)
        await stage.say("hello")
        assert len(await stage.answered(1, timeout=60)) == 1
        assert stage.senders()[0][1] == other.pid
        assert owner.running() and "unreachable" in owner.log_text()
        token = await stage.value("SELECT runtime_token FROM channel")
        assert token == 2
        # The one that is cut off does not ask for it, nor take it, while the other has it.
        await stage.say("again")
        await stage.answered(2)
        assert stage.senders()[1][1] == other.pid
        await other.drain()
        await owner.heal()
        await stage.say("third")
        await stage.answered(3, timeout=60)
        await stage.settled(3)
        assert stage.senders()[2][1] == owner.pid
