"""One message handed from process to process: every step is done once, by whoever may, whatever is killed or delivered again."""

from __future__ import annotations

from testbed.replicas import Replica, eventually
from testbed.stage import HTTP_ONLY, OWNER_OFF, WORKER_OFF, Stage, listen, process_in

RUNS = "SELECT session_id, state, attempts, worker_id FROM agent_run ORDER BY id"


async def test_an_answer_that_was_committed_is_sent_after_a_restart_without_another_model_call(stage: Stage) -> None:
    await stage.add_agent(model="fake")
    await stage.add_channel()
    async with stage.replicas(1, settings={"STRATUS_FAILPOINTS": "finish.after_commit=kill*1"}) as replicas:
        [replica] = replicas
        await stage.say("hello")
        await eventually(lambda: not replica.running(), 30, "the owner died right after the finish")
        assert await stage.run_states() == ["completed"]
        assert stage.platform.send_calls == 0
        await replica.restart()
        assert await stage.answered(1) == ["echo: hello"]
        await stage.settled(1)
        assert await stage.counts() == {"inbox": 1, "runs": 1, "messages": 2, "ops": 1, "sent": 1}
    assert len(stage.model.calls) == 1
    assert stage.platform.send_calls == 1


async def test_each_step_is_done_by_a_replica_whose_roles_allow_it(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(4, roles=[WORKER_OFF, WORKER_OFF, OWNER_OFF, HTTP_ONLY]) as replicas:
        worker, api = replicas[2], replicas[3]
        owner = await stage.owner_among(replicas)
        waiting = replicas[1] if owner is replicas[0] else replicas[0]
        before = owner.pid
        await stage.say("one")
        await stage.answered(1)
        await owner.kill()
        await stage.say("two")
        await stage.answered(2)
        await owner.restart()
        await stage.say("three")
        await stage.answered(3)
        assert [pid for _, pid in stage.senders()] == [before, waiting.pid, waiting.pid]
        assert await asked_over_http(stage, api) == "run.completed"
        runs = await stage.rows(RUNS)
        assert {process_in(run["worker_id"]) for run in runs} == {worker.pid}
        assert [(run["state"], run["attempts"]) for run in runs] == [("completed", 1)] * 4


async def asked_over_http(stage: Stage, api: Replica) -> str:
    """Sends a message to this replica and watches it there; the last event that came."""
    last = ""
    headers = {"Accept": "text/event-stream", "Idempotency-Key": "asked-over-http-1"}
    async with (
        stage.client(api, **headers) as client,
        client.stream("POST", "/sessions/web/messages", json={"agent": "demo", "text": "hi"}) as response,
    ):
        async for heard in listen(response):
            last = heard.kind
    return last


async def test_a_turn_outlives_the_owner_that_received_its_message(stage: Stage) -> None:
    await stage.add_agent(model="fake")
    await stage.add_channel()
    parked = stage.model.gate("parked")
    async with stage.replicas(3, roles=[WORKER_OFF, WORKER_OFF, OWNER_OFF]) as replicas:
        worker = replicas[2]
        owner = await stage.owner_among(replicas)
        waiting = replicas[1] if owner is replicas[0] else replicas[0]
        await stage.say("hello")
        await eventually(lambda: parked.entered == 1, 30, "the worker is in the model call")
        await owner.kill()
        await stage.owned_by(waiting)
        stage.model.release("parked")
        assert await stage.answered(1) == ["echo: hello"]
        await stage.settled(1)
        assert stage.senders() == [("echo: hello", waiting.pid)]
        [run] = await stage.rows(RUNS)
        assert (run["state"], run["attempts"], process_in(run["worker_id"])) == ("completed", 1, worker.pid)
        assert await stage.counts() == {"inbox": 1, "runs": 1, "messages": 2, "ops": 1, "sent": 1}
    assert len(stage.model.calls) == 1
    assert stage.platform.send_calls == 1


async def test_new_rotates_once_however_often_and_wherever_it_is_delivered(stage: Stage) -> None:
    await stage.add_agent()
    await stage.add_channel()
    async with stage.replicas(2) as replicas:
        first = await stage.owner_among(replicas)
        second = replicas[1] if first is replicas[0] else replicas[0]
        await stage.say("one", id="e-1")
        await stage.say("/new", id="e-2")
        await stage.say("/new", id="e-2")  # the platform delivers it again
        await stage.say("two", id="e-3")
        await stage.answered(3)
        await stage.settled(3)
        await first.kill()
        polls = len(stage.platform.polls)
        # A cursor that is lost makes the next owner read everything anew.
        await stage.db.transact(lambda c: c.execute("UPDATE channel SET cursor = NULL"))
        await stage.owned_by(second)
        await stage.say("three", id="e-4")
        await stage.answered(4)
        await stage.settled(4)
        assert any(poll["after"] == 0 for poll in stage.platform.polls[polls:]), "nothing was delivered again"
        sessions = [run["session_id"] for run in await stage.rows(RUNS)]
        assert len(sessions) == 3
        assert sessions[0] != sessions[1] == sessions[2]
        assert await stage.rows("SELECT revision, session_id FROM binding") == [
            {"revision": 2, "session_id": sessions[2]}
        ]
        assert await stage.counts() == {"inbox": 4, "runs": 3, "messages": 6, "ops": 4, "sent": 4}
    assert stage.platform.send_calls == 4
