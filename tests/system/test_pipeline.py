"""One message, end to end, on real processes: each step once, whatever is delivered again, restarted or handed over."""

from __future__ import annotations

from testbed.replicas import eventually
from testbed.stage import OWNER_OFF, WORKER_OFF, Stage

COUNTS = """
SELECT (SELECT count(*) FROM channel_inbox) AS inbox, (SELECT count(*) FROM agent_run) AS runs,
       (SELECT count(*) FROM message) AS messages, (SELECT count(*) FROM channel_outbox WHERE state = 'sent') AS sent
"""


async def test_one_message_on_one_replica_does_each_step_once(stage: Stage) -> None:
    await stage.add_agent(model="fake")
    await stage.add_channel()
    async with stage.replicas(1):
        await stage.say("hello", id="e-1")
        assert await stage.answered(1, timeout=30) == ["echo: hello"]
        await eventually(lambda: sent_is(stage, 1), what="the receipt is stored")
        await stage.say("hello", id="e-1")  # the platform delivers it again
        await stage.say("second", id="e-2")
        assert await stage.answered(2) == ["echo: hello", "echo: second"]
        await eventually(lambda: sent_is(stage, 2), what="the second receipt is stored")
        assert await stage.rows(COUNTS) == [{"inbox": 2, "runs": 2, "messages": 4, "sent": 2}]
        assert len(stage.model.calls) == 2
        assert stage.platform.send_calls == 2


async def sent_is(stage: Stage, count: int) -> bool:
    return bool((await stage.rows(COUNTS))[0]["sent"] == count)


async def test_without_notify_polling_does_it_all(stage: Stage) -> None:
    """A hint is only a hint: here no replica can listen or notify at all."""
    await stage.add_agent()
    await stage.add_channel()
    deaf = {"STRATUS_LISTEN_URL": "postgresql://nobody@127.0.0.1:1/nowhere"}
    async with stage.replicas(2, roles=[WORKER_OFF, OWNER_OFF], settings=deaf):
        await stage.say("one")
        assert len(await stage.answered(1)) == 1
        await stage.say("two")
        assert len(await stage.answered(2)) == 2
