"""The runner of every loop: a step may ask for the next one sooner than the poll would come."""

from __future__ import annotations

import asyncio

from stratus.effects import Loop
from testbed.eventually import eventually


async def test_a_step_that_knows_when_there_is_work_is_repeated_by_then() -> None:
    steps = 0

    async def step() -> bool:
        nonlocal steps
        steps += 1
        if steps < 4:
            loop.wake_within(0.02)
        return False

    loop = Loop("test", step, poll_seconds=3600)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(loop.run())
        await eventually(lambda: steps == 4, timeout=5, what="four steps, and none of them waited for the poll")
        await asyncio.sleep(0.1)
        assert steps == 4, "what an earlier step asked for counts no more"
        loop.stop()
        await running
