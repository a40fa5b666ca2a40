"""The web interface over replicas: two serve HTTP only and one executes only, so that every answer crosses between processes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from stratus.domain.run import RUN
from stratus.http.limits import BODY_MAX
from stratus.store import principal
from testbed.postgres import TestCluster
from testbed.replicas import Replica, ReplicaSet, eventually
from testbed.stage import HTTP_ONLY, OWNER_OFF, Heard, Stage, listen, shared_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

SSE = {"Accept": "text/event-stream"}
END = {f"run.{state}" for state in RUN.terminal()}
MAKE_USER = "INSERT INTO principal (name, role) VALUES ('ann', 'user') RETURNING id"
LOG = """
SELECT r.public_id::text || ':' || e.seq AS id, e.kind
  FROM session_event e JOIN agent_run r ON r.id = e.run_id WHERE e.session_id = $1 ORDER BY e.seq
"""


@dataclass
class Web:
    """Replicas `d` and `e` serve HTTP and do nothing else; `b` alone executes."""

    stage: Stage
    replicas: ReplicaSet
    d: Replica
    b: Replica
    e: Replica

    @contextlib.asynccontextmanager
    async def client(self, replica: Replica, token: str | None = None) -> AsyncIterator[Client]:
        """The owner's client of one replica, or that of another token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.stage.client(replica, **headers) as http:
            yield Client(http)

    async def states(self, session: str) -> list[str]:
        found = await self.stage.rows("SELECT state FROM agent_run WHERE session_id = $1 ORDER BY turn", session)
        return [row["state"] for row in found]

    async def state_is(self, session: str, state: str) -> None:
        """Wait until the session's only run is in this state."""

        async def reached() -> bool:
            return await self.states(session) == [state]

        await eventually(reached, timeout=20, what=f"the run of {session} to be {state}")

    async def log(self, session: str) -> list[tuple[str, str]]:
        """Cursor and kind of everything in the session's log."""
        return [(row["id"], row["kind"]) for row in await self.stage.rows(LOG, session)]


class Client:
    """What an API client does in a session."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def send(self, session: str, text: str, *, key: str | None = None, agent: str = "demo") -> httpx.Response:
        return await self.http.post(_path(session), json={"agent": agent, "text": text}, headers=_key(key))

    async def run(self, session: str, text: str) -> str:
        """Send, and answer the run's id."""
        sent = await self.send(session, text)
        assert sent.status_code == 202, sent.text
        return str(sent.json()["run"])

    @contextlib.asynccontextmanager
    async def ask(self, session: str, text: str, *, key: str | None = None, agent: str = "demo") -> Any:
        """Send, and stream the run."""
        body, headers = {"agent": agent, "text": text}, {**SSE, **_key(key)}
        async with self.http.stream("POST", _path(session), json=body, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield listen(response)

    @contextlib.asynccontextmanager
    async def attach(self, session: str, query: str = "", **headers: str) -> Any:
        """Stream what is open, or what follows a cursor."""
        async with self.http.stream("GET", _path(session) + query, headers={**SSE, **headers}) as response:
            assert response.status_code == 200, await response.aread()
            yield listen(response)

    async def refused(self, session: str, query: str = "") -> tuple[int, str]:
        """Status and code of a stream that is not given."""
        answer = await self.http.get(_path(session) + query, headers=SSE)
        return answer.status_code, answer.json()["code"] if answer.content else ""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def web(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[Web]:
    async with shared_stage(cluster) as stage:
        await stage.add_agent()
        await stage.add_agent("clock", tools=["current_time"])
        async with stage.replicas(roles=[HTTP_ONLY, OWNER_OFF, HTTP_ONLY], n=3) as replicas:
            yield Web(stage, replicas, *replicas.replicas)
            if request.session.testsfailed:
                replicas.print_logs()


@pytest_asyncio.fixture(loop_scope="module")
async def d(web: Web) -> AsyncIterator[Client]:
    async with web.client(web.d) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def e(web: Web) -> AsyncIterator[Client]:
    async with web.client(web.e) as client:
        yield client


async def test_a_message_runs_on_another_replica_and_streams_on_the_one_that_took_it(web: Web, d: Client) -> None:
    async with d.ask("crossing", "hello") as heard:
        events = await _all(heard)
    assert [(event.id, event.kind) for event in events] == await web.log("crossing")
    assert (events[0].kind, events[-1].kind) == ("run.queued", "run.completed")
    assert "".join(event.data["text"] for event in events if event.kind == "text.delta").startswith("You said: hello")
    worker = await web.stage.value("SELECT worker_id FROM agent_run WHERE session_id = 'crossing'")
    assert f":{web.b.pid}:" in worker


async def test_a_key_names_one_run_on_every_replica_while_it_runs_and_afterwards(
    web: Web, d: Client, e: Client
) -> None:
    key = f"key-{uuid4()}"
    first = await d.send("twice", "slow 2 hello", key=key)
    run = first.json()["run"]
    assert (first.status_code, first.json()["repeated"]) == (202, False)
    async with e.ask("twice", "slow 2 hello", key=key) as heard:
        live = await _all(heard)
    assert {event.data["run"] for event in live} == {run}
    assert live[-1].kind == "run.completed"
    late = await e.send("twice", "slow 2 hello", key=key)
    assert (late.status_code, late.json()["run"], late.json()["repeated"]) == (202, run, True)
    async with d.ask("twice", "slow 2 hello", key=key) as heard:
        assert await _all(heard) == live
    assert await web.states("twice") == ["completed"]
    other = await d.send("twice", "something else", key=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    bare = await d.http.post(_path("twice"), json={"agent": "demo", "text": "no key"})
    assert (bare.status_code, bare.json()["code"]) == (400, "idempotency_key_required")
    assert await web.states("twice") == ["completed"]


async def test_a_stop_reaches_the_turn_on_the_replica_that_executes_it(web: Web, d: Client) -> None:
    async with d.ask("stopped", "slow 60 hello") as heard:
        await _until(heard, "text.delta")
        await d.run("stopped", "queued behind it")
        answer = await d.http.post("/sessions/stopped/stop")
        assert answer.json() == {"running": True, "canceled": 1}
        rest = await _all(heard)
    assert rest[-1].kind == "run.canceled"
    assert await web.states("stopped") == ["canceled", "canceled"]


async def test_a_reader_goes_on_elsewhere_when_its_replica_is_killed(web: Web, d: Client, e: Client) -> None:
    read: list[Heard] = []
    try:
        with pytest.raises(httpx.TransportError):
            async with d.ask("killed", "slow 4 a reader sees all of this once") as heard:
                async for event in heard:
                    read.append(event)
                    if len(read) == 8:
                        await web.d.kill()
        assert read[-1].kind == "text.delta"
        async with e.attach("killed", **{"Last-Event-ID": read[-1].id or ""}) as heard:
            rest = await _all(heard)
    finally:
        await web.d.restart()
    assert [(event.id, event.kind) for event in read + rest] == await web.log("killed")
    assert rest[-1].kind == "run.completed"


async def test_following_a_session_tells_of_every_run(web: Web, d: Client, e: Client) -> None:
    await d.run("followed", "slow 1 one")
    async with e.attach("followed", "?follow=session") as heard:
        first = await _until(heard, *END)
        await d.run("followed", "two")
        second = await _until(heard, *END)
    assert [(event.id, event.kind) for event in first + second] == await web.log("followed")
    assert len({event.data["run"] for event in first + second}) == 2


async def test_a_reader_without_a_cursor_gets_the_open_run_whole_and_none_when_nothing_is_open(
    web: Web, d: Client, e: Client
) -> None:
    await d.run("reloaded", "before")
    await web.state_is("reloaded", "completed")
    assert await e.refused("reloaded") == (204, "")
    run = await d.run("reloaded", "slow 2 now")
    async with e.attach("reloaded") as heard:
        await _until(heard, "text.delta")
        async with d.attach("reloaded") as later:
            events = await _all(later)
    assert {event.data["run"] for event in events} == {run}
    assert [(event.id, event.kind) for event in events] == (await web.log("reloaded"))[-len(events) :]
    assert (events[0].kind, events[-1].kind) == ("run.queued", "run.completed")
    assert await d.refused("reloaded") == (204, "")


async def test_cursors_that_cannot_be_followed_say_why(web: Web, d: Client) -> None:
    run, foreign = await d.run("cursors", "hello"), await d.run("elsewhere", "hello")
    await web.state_is("cursors", "completed")
    assert await d.refused("cursors", "?after=nonsense") == (400, "bad_cursor")
    assert await d.refused("cursors", f"?after={foreign}:1") == (404, "not_found")
    assert await d.refused("no-such-session") == (404, "not_found")
    async with d.attach("cursors", f"?after={run}:1") as heard:
        assert [event.data["seq"] for event in await _all(heard)][0] == 2
    await web.stage.db.transact(lambda c: c.execute("UPDATE session SET event_floor = 3 WHERE id = 'cursors'"))
    assert await d.refused("cursors", f"?after={run}:1") == (409, "cursor_expired")
    page = (await d.http.get(_path("cursors"))).json()
    assert await d.refused("cursors", f"?after={page['cursor']}") == (204, ""), "the transcript leads on"


async def test_another_s_session_is_not_there(web: Web, d: Client) -> None:
    await d.run("private", "hello")
    user: int = await web.stage.db.transact(lambda c: c.fetchval(MAKE_USER))
    token = await principal.create_token(web.stage.db, user, "api", name="ann")
    async with web.client(web.e, token.secret) as ann:
        for answer in (
            await ann.http.get(_path("private")),
            await ann.http.get(_path("private"), headers=SSE),
            await ann.http.post("/sessions/private/stop"),
            await ann.send("private", "let me in"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert (await ann.send("ann-s", "hello")).status_code == 202
    await web.state_is("private", "completed")


async def test_a_transcript_of_a_running_turn_continues_without_a_gap(web: Web, d: Client, e: Client) -> None:
    await d.run("paged", "first")
    await web.state_is("paged", "completed")
    async with d.ask("paged", "slow 3 second") as heard:
        await _until(heard, "text.delta")
        page = (await e.http.get(_path("paged"))).json()
        async with e.attach("paged", f"?after={page['cursor']}") as onward:
            events = await _all(onward)
    run, _, seq = page["cursor"].rpartition(":")
    assert page["open"] == {"run": run, "state": "running"}
    assert [event.data["seq"] for event in events] == list(range(int(seq) + 1, int(seq) + 1 + len(events)))
    assert events[-1].kind == "run.completed"
    told = [event.data["text"] for event in events if event.kind in ("message.user", "message.assistant")]
    done = [_text(message) for message in page["messages"] if message["run"] != run]
    whole = (await d.http.get(_path("paged"))).json()
    assert done + told == [_text(message) for message in whole["messages"]]


async def test_a_reader_that_leaves_does_not_end_the_turn(web: Web, d: Client) -> None:
    async with d.ask("left", "slow 2 hello") as heard:
        await _until(heard, "text.delta")
    assert await web.states("left") == ["running"]
    await web.state_is("left", "completed")


async def test_tool_calls_and_thoughts_can_be_watched(d: Client) -> None:
    async with d.ask("tools", "think tool", agent="clock") as heard:
        events = await _all(heard)
    kinds = [event.kind for event in events]
    assert "thinking.delta" in kinds
    calls = [event for event in events if event.kind.startswith("tool.")]
    assert [event.kind for event in calls] == ["tool.proposed", "tool.started", "tool.done"]
    assert len({event.data["call_id"] for event in calls}) == 1
    assert calls[0].data["name"] == "current_time"
    assert kinds[-1] == "run.completed"


async def test_a_slow_session_holds_up_no_other(web: Web, d: Client) -> None:
    async with d.ask("slow", "slow 60 hello") as heard:
        await _until(heard, "text.delta")
        async with d.ask("quick", "hello") as other:
            assert (await _all(other))[-1].kind == "run.completed"
        assert await web.states("slow") == ["running"]
        await d.http.post("/sessions/slow/stop")
        assert (await _all(heard))[-1].kind == "run.canceled"


async def test_what_cannot_be_stored_is_replaced_and_answered(web: Web, d: Client) -> None:
    body = json.dumps({"agent": "demo", "text": "a\x00b\ud800c"})
    headers = {"Content-Type": "application/json", **SSE, **_key(None)}
    async with d.http.stream("POST", _path("odd"), content=body, headers=headers) as response:
        events = await _all(listen(response))
    page = (await d.http.get(_path("odd"))).json()
    asked, answered = [_text(message) for message in page["messages"]]
    assert asked == "a\ufffdb\ufffdc"
    assert answered.startswith("You said: a\ufffdb\ufffdc")
    assert events[-1].kind == "run.completed"


async def test_requests_that_are_refused_leave_nothing(web: Web, d: Client) -> None:
    before = await web.stage.value("SELECT count(*) FROM agent_run")
    unknown = await d.send("nobody", "hello", agent="nobody")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "agent_not_found")
    large = await d.send("large", "x" * BODY_MAX)
    assert (large.status_code, large.json()["code"]) == (413, "too_large")
    assert await web.stage.value("SELECT count(*) FROM agent_run") == before


async def test_a_channel_whose_access_says_nothing_is_refused(d: Client) -> None:
    bad = {"base_url": "http://127.0.0.1:9", "bot": "b", "access": {"mode": "everybody"}}
    new = {"platform": "testchan", "name": "odd", "agent": "demo", "options": {**bad, "access": {"allow": []}}}
    made = await d.http.post("/channels", json=new)
    for answer in (
        await d.http.post("/channels", json={**new, "name": "odder", "options": bad}),
        await d.http.patch(f"/channels/{made.json()['id']}", json={"options": bad}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_input")
        assert "access" in answer.json()["detail"]
    assert [one["name"] for one in (await d.http.get("/channels")).json()["channels"]] == ["odd"]


async def test_operators_see_health_and_numbers_and_a_lost_database(web: Web, e: Client) -> None:
    assert (await e.http.get("/healthz")).json() == {"ok": True}
    assert (await e.http.get("/readyz")).json() == {"ready": True, "reasons": []}
    metrics = (await e.http.get("/metrics", headers={"Authorization": ""})).text
    for name in ("stratus_database_up 1.0", "stratus_runs", "stratus_inbox", "stratus_outbox", "stratus_oldest_age"):
        assert name in metrics, metrics
    await web.e.cut_database(rst=True)
    try:
        unready = await eventually(lambda: _unready(e), timeout=20, what="the replica to be unready")
        assert any(reason.startswith("loop ") for reason in unready)
        assert (await e.http.get("/healthz")).status_code == 200
    finally:
        await web.e.heal()
        await web.e.wait_ready()


async def _unready(client: Client) -> list[str]:
    answer = await client.http.get("/readyz")
    reasons: list[str] = answer.json()["reasons"]
    return reasons if answer.status_code == 503 else []


def _path(session: str) -> str:
    return f"/sessions/{session}/messages"


def _key(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key or f"key-{uuid4()}"}


def _text(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["parts"] if part["kind"] == "text")


async def _all(heard: AsyncIterator[Heard]) -> list[Heard]:
    return [event async for event in heard]


async def _until(heard: AsyncIterator[Heard], *kinds: str) -> list[Heard]:
    """Read up to the first event of these kinds."""
    read = []
    async for event in heard:
        read.append(event)
        if event.kind in kinds:
            return read
    raise AssertionError(f"the stream ended without {kinds}: {[event.kind for event in read]}")
