"""Delegation on real replicas: the child is a run of its own, the parent waits without a worker, and every end of the child ends the wait."""

from __future__ import annotations

import json
from typing import Any

from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.stage import Stage

RUNS = """
SELECT r.session_id, r.agent_id, r.kind, r.state, r.depth, r.parent_call_id, r.traceparent, p.agent_id AS parent
  FROM agent_run r LEFT JOIN agent_run p ON p.id = r.parent_run_id ORDER BY r.id
"""


def delegate(agent: str, task: str, **more: Any) -> dict[str, Any]:
    """A call as the model makes it."""
    return {"name": "delegate", "args": {"agent": agent, "task": task, **more}}


async def boss(stage: Stage, *turns: dict[str, Any], **fields: Any) -> None:
    """An agent that may delegate to `helper` and to itself, with its script for messages that say `go`."""
    fields = {"tools": ["delegate"], "delegates": ["helper", "boss"], **fields}
    await stage.add_agent("boss", model="fake", **fields)
    await stage.add_channel("boss")
    stage.model.script(*turns, match="go")


def results(stage: Stage, text: str) -> list[str]:
    """The tool results in the last request whose last user text contains `text`."""
    body = [one.call.body for one in stage.model.calls if text in one.call.text][-1]
    told = [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    return [json.loads(one)["error"] if one.startswith('{"error"') else one for one in told]


async def test_a_child_answers_its_parent_even_with_one_worker_slot(stage: Stage) -> None:
    await boss(stage, {"tools": [delegate("helper", "count the sheep")]}, {"text": "They are 12."})
    await stage.add_agent("helper", model="fake")
    stage.model.script({"text": "12 sheep"}, match="count the sheep")
    async with stage.replicas(1, settings={"STRATUS_WORKERS": "1"}):
        await stage.say("go")
        assert await stage.answered(1) == ["They are 12."]
        await stage.settled(1)
    assert results(stage, "go") == ["12 sheep"]
    parent, child = await stage.rows(RUNS)
    assert (child["kind"], child["agent_id"], child["parent"], child["depth"]) == ("delegated", "helper", "boss", 1)
    assert child["session_id"] != parent["session_id"]
    assert {parent["state"], child["state"]} == {"completed"}
    kinds = [row["kind"] for row in await stage.rows("SELECT kind FROM session_event ORDER BY session_id DESC, seq")]
    assert kinds.index("delegate.started") < kinds.index("run.waiting") < kinds.index("delegate.done")
    assert await violations(stage.db, at_rest=True) == {}


async def test_children_of_one_message_work_at_the_same_time(stage: Stage) -> None:
    tasks = [delegate("helper", f"part {n}.") for n in range(3)]
    await boss(stage, {"tools": tasks}, {"text": "all three"})
    await stage.add_agent("helper", model="fake")
    gate = stage.model.gate("parts", match="part ")
    for n in range(3):
        stage.model.script({"text": f"answer {n}"}, match=f"part {n}.")
    async with stage.replicas(2, settings={"STRATUS_WORKERS": "2"}):
        await stage.say("go")
        await eventually(lambda: gate.entered == 3, what="all three are at the model at the same time")
        assert await stage.run_states() == ["waiting", "running", "running", "running"]
        stage.model.release("parts")
        assert await stage.answered(1) == ["all three"]
    assert results(stage, "go") == ["answer 0", "answer 1", "answer 2"]


async def test_a_child_that_fails_is_told_and_the_parent_goes_on(stage: Stage) -> None:
    await boss(stage, {"tools": [delegate("helper", "impossible")]}, {"text": "It failed, sorry."})
    await stage.add_agent("helper", model="fake")
    stage.model.fault(400, match="impossible", times=9)
    async with stage.replicas(1):
        await stage.say("go")
        assert await stage.answered(1) == ["It failed, sorry."]
    [told] = results(stage, "go")
    assert told.startswith("helper could not do it:")


async def test_bounds_are_told_to_the_model(stage: Stage) -> None:
    """An agent that may delegate to itself without end; one that delegates to a stranger; arguments that are none."""
    await boss(
        stage,
        {"tools": [delegate("stranger", "x"), {"name": "delegate", "args": {"task": 1}}, delegate("gone", "y")]},
        {"text": "refused"},
        delegates=["boss", "gone"],
    )
    stage.model.script({"tools": [delegate("boss", "deep 2")]}, {"text": "up from 1"}, match="deep 1")
    stage.model.script({"tools": [delegate("boss", "deep 3")]}, {"text": "up from 2"}, match="deep 2")
    stage.model.script({"tools": [delegate("boss", "deep 4")]}, {"text": "no deeper"}, match="deep 3")
    stage.model.script({"tools": [delegate("boss", "deep 1")]}, {"text": "deep enough"}, match="dive")
    many = [delegate("boss", f"many {n}.") for n in range(10)]
    stage.model.script({"tools": many}, {"text": "some were too many"}, match="crowd")
    async with stage.replicas(1):
        await stage.say("go")
        await stage.answered(1)
        stranger, malformed, gone = results(stage, "go")
        assert stranger == "I may not delegate to 'stranger'. I may to: boss, gone."
        assert malformed.startswith("The arguments of delegate are not valid.")
        assert gone == "gone could not do it: The agent gone is no longer available."
        await stage.say("dive", chat="c2")
        await stage.answered(2)
        assert results(stage, "deep 3") == ["Delegations may be 3 deep, and this agent works at that depth already."]
        await stage.say("crowd", chat="c3")
        await stage.answered(3)
        told = results(stage, "crowd")
        assert [one for one in told if one == "One turn may delegate 8 times, and this one has."] == told[8:]
        await stage.settled(3)
    assert await stage.value("SELECT max(depth) FROM agent_run") == 3
    assert await violations(stage.db, at_rest=True) == {}


async def test_the_trace_is_one(stage: Stage) -> None:
    await boss(stage, {"tools": [delegate("helper", "traced")]}, {"text": "done"})
    await stage.add_agent("helper", model="fake")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with stage.replicas(1) as [replica], stage.client(replica) as client:
        await client.post(
            "/sessions/traced/messages",
            json={"agent": "boss", "text": "go"},
            headers={"Idempotency-Key": "trace-0123456789abcdef", "traceparent": trace},
        )

        async def ended() -> bool:
            return await stage.run_states() == ["completed", "completed"]

        await eventually(ended, what="both have ended")
    assert [row["traceparent"] for row in await stage.rows(RUNS)] == [trace, trace]
