"""A message under a key: its repeats, what became of it however much has happened since, and the files that came of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.tool_call import CallEvent
from stratus.domain.values import Message, RunError, TextPart, ToolCallPart
from stratus.store import agent
from stratus.store.blob import CHUNK_BYTES
from stratus.store.execution import Step, commit_step
from stratus.store.run import ClaimedRun, Ending, claim, finish
from stratus.store.steer import take_up
from stratus.store.stop import stop
from stratus.store.tool_call import CallMove, NewCall
from testbed.eventually import eventually
from tests.store.world import completion, holding_the_lease, rows, somebody_waits
from tests.system.web import Person, Web, code

KEY = "the-key-of-the-message"
TURN = f"/sessions/s1/turns/{KEY}"


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


async def claimed(web: Web) -> ClaimedRun:
    [one] = await claim(web.db, "worker", 1, 60.0)
    return one


async def turn(ann: Person, *fields: str) -> tuple[Any, ...]:
    shown = (await ann.call("GET", TURN)).json()
    return tuple(shown[field] for field in fields)


async def test_a_repeat_says_whether_its_run_is_live_or_finished(web: Web) -> None:
    ann = await web.person("ann")
    first = (await ann.say("s1", "one", key=KEY)).json()
    assert (first["repeated"], first["state"]) == (False, "live")
    run = await claimed(web)
    assert await turn(ann, "state", "standing") == ("running", "live")
    again = (await ann.say("s1", "one", key=KEY)).json()
    assert again == {**first, "repeated": True}
    await finish(web.db, [completion(run)])
    assert (await ann.say("s1", "one", key=KEY)).json() == {**first, "repeated": True, "state": "finished"}
    assert await rows(web.db, "SELECT count(*) AS n FROM agent_run") == [{"n": 1}]


async def test_a_repeat_for_another_agent_is_refused_before_its_body_is_compared(web: Web) -> None:
    ann = await web.person("ann")
    await web.agent("other")
    await ann.say("s1", "one", key=KEY)
    assert code(await ann.say("s1", "one", key=KEY, agent="other")) == (409, "agent_mismatch")
    assert code(await ann.say("s1", "two", key=KEY, agent="other")) == (409, "agent_mismatch")
    assert code(await ann.say("s1", "two", key=KEY, agent="never-heard-of")) == (409, "agent_mismatch")
    assert code(await ann.say("s1", "two", key=KEY)) == (422, "idempotency_key_reused")


async def test_a_repeat_finds_its_run_after_the_agent_has_gone(web: Web) -> None:
    ann = await web.person("ann")
    first = (await ann.say("s1", "one", key=KEY)).json()
    await agent.delete(web.db, "demo")
    assert (await ann.say("s1", "one", key=KEY)).json()["run"] == first["run"]
    assert code(await ann.say("s1", "new")) == (404, "agent_not_found")
    assert await rows(web.db, "SELECT count(*) AS n FROM agent_run") == [{"n": 1}]


async def test_a_repeat_of_an_interrupt_interrupts_nothing(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "one", key=KEY, busy="interrupt")
    await claimed(web)
    again = (await ann.say("s1", "one", key=KEY, busy="interrupt")).json()
    assert (again["repeated"], again["state"]) == (True, "live")
    assert await rows(web.db, "SELECT cancel_requested FROM session_execution") == [{"cancel_requested": False}]


async def test_an_interrupt_takes_the_leases_row_before_the_sessions(web: Web, dsn: str) -> None:
    """As every write of the turn does: the other way round the two would wait for each other."""
    ann = await web.person("ann")
    await ann.say("s1", "one")
    await claimed(web)
    async with holding_the_lease(dsn) as blocker:
        sent = asyncio.create_task(ann.say("s1", "two", busy="interrupt"))
        await eventually(lambda: somebody_waits(web.db), what="the message waits for the lease's row")
        await blocker.execute("SELECT 1 FROM session WHERE id = 's1' FOR UPDATE NOWAIT")
    assert (await sent).status_code == 202


async def test_a_repeat_of_one_that_would_be_rejected_by_now_is_answered(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "one", key=KEY, busy="reject")
    await claimed(web)
    assert (await ann.say("s1", "one", key=KEY, busy="reject")).status_code == 202
    assert code(await ann.say("s1", "two", busy="reject")) == (409, "busy")


async def test_a_turn_is_read_by_its_key_after_later_turns(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "one", key=KEY)
    await finish(web.db, [completion(await claimed(web))])
    await ann.say("s1", "two")
    failed = await claimed(web)
    error = RunError(code="internal", message="broken")
    await finish(web.db, [Ending(failed.lease, 1, 0, RunEvent.FAIL, failed.lease.holder, error=error)])
    assert await turn(ann, "state", "standing", "reply", "error") == ("completed", "finished", "done", None)


async def test_a_message_that_was_taken_up_shows_what_came_of_that_turn(web: Web) -> None:
    ann, bob = await web.person("ann"), await web.person("bob")
    first = (await ann.say("s1", "one")).json()["run"]
    await ann.say("s1", "and two", key=KEY, busy="steer")
    run = await claimed(web)
    assert len(await take_up(web.db, run.lease, run.run_seq, 1)) == 1
    shown = await turn(ann, "state", "standing", "merged_into", "reply")
    assert shown == ("merged", "live", first, "")
    assert (await ann.say("s1", "and two", key=KEY, busy="steer")).json()["state"] == "live"
    await finish(web.db, [completion(run)])
    assert await turn(ann, "state", "standing", "merged_into", "reply") == ("merged", "finished", first, "done")
    assert (await ann.say("s1", "and two", key=KEY, busy="steer")).json()["state"] == "finished"
    assert code(await bob.call("GET", f"/runs/{first}")) == (404, "not_found")


async def test_a_message_that_a_failed_turn_took_up_shows_its_failure(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "one")
    await ann.say("s1", "and two", key=KEY, busy="steer")
    run = await claimed(web)
    await take_up(web.db, run.lease, run.run_seq, 1)
    error = RunError(code="internal", message="broken")
    await finish(web.db, [Ending(run.lease, 1, 0, RunEvent.FAIL, run.lease.holder, error=error)])
    assert await turn(ann, "state", "error") == ("merged", {"code": "internal", "message": "broken"})


async def produce(web: Web, run: ClaimedRun, name: str, mime: str, data: bytes) -> str:
    """A tool call that made a file, as a turn commits it."""
    digest = hashlib.sha256(data).hexdigest()
    call = ToolCallPart(call_id="c1", name="send_file")
    file = {"name": name, "mime": mime, "size": len(data), "sha256": digest}
    said = Message(role="assistant", parts=[TextPart(text="here"), call])
    event = NewEvent("usage", {})
    propose = Step(
        run.lease,
        run.run_seq,
        1,
        1,
        [event],
        messages=[said],
        proposed=[NewCall("c1", "send_file", "{}", "idempotent")],
    )
    await commit_step(web.db, propose)
    move = CallMove("c1", CallEvent.START)
    await commit_step(web.db, Step(run.lease, run.run_seq + 1, 1, 1, [event], moves=[move]))
    outcome = {"content": "sent", "outcome": "ok", "files": [file]}
    end = CallMove("c1", CallEvent.SUCCEED, outcome)
    await commit_step(web.db, Step(run.lease, run.run_seq + 2, 1, 1, [event], moves=[end], blobs=[data]))
    return digest


@pytest.mark.parametrize("size", [0, 5, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
async def test_a_file_is_named_by_its_run_and_comes_whole(web: Web, size: int) -> None:
    ann = await web.person("ann")
    sent = (await ann.say("s1", "one", key=KEY)).json()["run"]
    data = bytes(n % 251 for n in range(size))
    digest = await produce(web, await claimed(web), 'pl"ot\r\n\u00e4.png', "image/png", data)
    [[file]] = [await turn(ann, "files")][0]
    assert file == {
        "call_id": "c1",
        "name": 'pl"ot\r\n\u00e4.png',
        "mime": "image/png",
        "size": size,
        "sha256": digest,
    }
    got = await ann.call("GET", f"/runs/{sent}/files/{digest}")
    assert (got.status_code, got.content) == (200, data)
    assert got.headers["content-type"] == "image/png"
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''pl%22ot%0D%0A%C3%A4.png"
    assert (got.headers["x-content-type-options"], got.headers["content-length"]) == ("nosniff", str(size))


async def test_files_are_for_whoever_may_read_the_run_and_of_that_run_only(web: Web) -> None:
    ann, bob = await web.person("ann"), await web.person("bob")
    sent = (await ann.say("s1", "one")).json()["run"]
    digest = await produce(web, await claimed(web), "a.html", "text/html; charset=x\r\nX-Evil: 1", b"<script>")
    other = (await ann.say("s2", "none here")).json()["run"]
    got = await ann.call("GET", f"/runs/{sent}/files/{digest}")
    assert (got.headers["content-type"], "x-evil" in got.headers) == ("application/octet-stream", False)
    for who, run, name in ((bob, sent, digest), (ann, other, digest), (ann, sent, "0" * 64), (ann, sent, "nonsense")):
        assert code(await who.call("GET", f"/runs/{run}/files/{name}")) == (404, "not_found")


async def test_a_stop_says_what_it_met(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "one")
    await claimed(web)
    await web.db.transact(lambda c: c.execute("DELETE FROM session_execution"))
    await web.db.transact(lambda c: c.execute("UPDATE agent_run SET state = 'waiting'"))
    await ann.say("s1", "two")
    met = await stop(web.db, "s1", "me", queued=True)
    assert (met.running, met.canceled, met.waiting) == (False, 2, 1)
