"""A model's answer that is broken off in the middle: by a stop, by silence, by the worker's death."""

from __future__ import annotations

from uuid import uuid4

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.stage import Stage, listen

LONG = "one two three four five six seven eight nine ten " * 8


async def test_a_stop_cancels_the_providers_request(stage: Stage) -> None:
    await stage.add_agent("demo", model="fake")
    await stage.add_channel()
    stage.model.script({"text": LONG}, match="go", chunk=4, delay=0.2)
    async with stage.replicas(1):
        await stage.say("go")
        await eventually(lambda: stage.value(STREAMED), 20, "the answer streams")
        await stage.say("/stop")
        await eventually(lambda: stage.model.calls[0].outcome == "left", 5, "the provider's request was canceled")
        await eventually(lambda: states(stage, "canceled"), what="the run is canceled")


async def test_silence_in_the_middle_fails_the_turn(stage: Stage) -> None:
    await stage.add_agent("demo", model="fake", idle_limit_seconds=8.0)
    await stage.add_channel()
    stage.model.script({"text": LONG}, match="go")
    stage.model.fault("silence", match="go")
    async with stage.replicas(1):
        await stage.say("go")
        [told] = await stage.answered(1, timeout=40)
        assert "The model said nothing for 8 seconds." in told
    assert await stage.value("SELECT error ->> 'code' FROM agent_run") == "idle"


async def test_a_watcher_sees_the_lost_attempt_superseded_on_another_replica(stage: Stage) -> None:
    await stage.add_agent("demo", model="fake")
    stage.model.script({"text": LONG}, match="go", chunk=16, delay=0.1)
    async with stage.replicas(3) as replicas:
        async with stage.client(replicas[0]) as client:
            sent = await client.post(
                "/sessions/lost/messages",
                json={"agent": "demo", "text": "go"},
                headers={"Idempotency-Key": uuid4().hex},
            )
            assert sent.status_code == 202
        await eventually(lambda: stage.value(STREAMED), 20, "the answer streams")
        name = await stage.value("SELECT worker_id FROM session_execution")
        victim = next(one for one in replicas if f":{one.pid}:" in name)
        watched = next(one for one in replicas if one is not victim)
        heard = []
        async with stage.client(watched, Accept="text/event-stream") as client:
            async with client.stream("GET", "/sessions/lost/messages") as response:
                await victim.kill()
                async for one in listen(response):
                    heard.append(one.data)
    seqs = [one["seq"] for one in heard]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "no gap and no repeat"
    kinds = [one["kind"] for one in heard]
    resumed = kinds.index("run.resumed")
    assert heard[resumed]["reason"] == "recovered"
    assert {one["attempt"] for one in heard[:resumed] if one["kind"] == "text.delta"} == {1}
    again = [one for one in heard[resumed:] if one["kind"] == "text.delta"]
    assert {one["attempt"] for one in again} == {2}
    assert "".join(one["text"] for one in again) == LONG
    assert kinds[-1] == "run.completed"
    assert await violations(stage.db, at_rest=True) == {}


STREAMED = "SELECT count(*) > 0 FROM session_event WHERE kind = 'text.delta'"


async def states(stage: Stage, wanted: str) -> bool:
    return await stage.run_states() == [wanted]
