"""Streams over HTTP: a run's events whole and once, over reconnects, drains, slow readers and revoked tokens."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from stratus.domain.event import NewEvent
from stratus.http import event_stream
from stratus.observe import stream as streams
from stratus.store.execution import Append, append
from stratus.store.run import ClaimedRun, claim, finish
from testbed.eventually import eventually
from tests.store.world import completion
from tests.system.web import Frame, Person, Web, fetchrow

WHOLE = ["run.queued", "run.started", "message.user", "message.assistant", "run.completed"]
SSE = {"Accept": "text/event-stream"}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


@pytest.fixture
async def ann(web: Web) -> Person:
    return await web.person("ann")


async def claimed(web: Web) -> ClaimedRun:
    [one] = await claim(web.db, "worker", 1, 60.0)
    web.hints.send("session", one.lease.session_id)
    return one


async def end(web: Web, one: ClaimedRun, run_seq: int | None = None) -> None:
    assert await finish(web.db, [completion(one, run_seq=run_seq)]) == [True]
    web.hints.send("session", one.lease.session_id)


async def turn(web: Web, ann: Person, session: str = "s1") -> str:
    """A finished turn; its run."""
    sent = (await ann.say(session, "hello")).json()
    await end(web, await claimed(web))
    run: str = sent["run"]
    return run


async def deltas(web: Web, one: ClaimedRun, count: int, text: str = "x") -> int:
    events = [NewEvent("text.delta", {"text": text})] * count
    assert await append(web.db, [Append(one.lease, one.run_seq, 1, events)]) == [True]
    web.hints.send("session", one.lease.session_id)
    return one.run_seq + count


def kinds(frames: list[Frame]) -> list[str]:
    return [frame.event for frame in frames if frame.event]


def seqs(frames: list[Frame]) -> list[int]:
    return [int(frame.fields["id"].rpartition(":")[2]) for frame in frames if "id" in frame.fields]


async def test_a_sent_message_streams_its_run_to_the_end(web: Web, ann: Person) -> None:
    key = ann.key()
    options: dict[str, Any] = {
        "method": "POST",
        "json": {"agent": "demo", "text": "hello"},
        "headers": {"Idempotency-Key": key},
    }

    async with ann.stream("/sessions/s1/messages", **options) as (response, frames):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        first = await anext(frames)
        assert first.fields == {"retry": "2000"}
        queued = await anext(frames)
        assert queued.event == "run.queued"
        await end(web, await claimed(web))
        live = [queued, *[frame async for frame in frames]]
    assert kinds(live) == WHOLE
    data = json.loads(live[1].fields["data"])
    assert {"run", "seq", "attempt", "kind", "at"} <= set(data)
    assert live[1].fields["id"] == f"{data['run']}:{data['seq']}"

    repeated = await ann.all_frames("/sessions/s1/messages", **options)
    assert repeated[1:] == live, "the same key streams the same run, also when it is over"


async def test_a_reader_resumes_where_it_was(web: Web, ann: Person) -> None:
    await ann.say("s1", "hello")
    one = await claimed(web)
    async with ann.stream("/sessions/s1/messages") as (_, frames):
        await anext(frames)
        before = [await anext(frames) for _ in range(3)]
    run_seq = await deltas(web, one, 5)
    last = before[-1].fields["id"]
    async with ann.stream("/sessions/s1/messages", headers={"Last-Event-ID": last}) as (_, frames):
        await anext(frames)
        before += [await anext(frames) for _ in range(5)]
    await end(web, one, run_seq)
    rest = await ann.all_frames(f"/sessions/s1/messages?after={before[-1].fields['id']}")
    assert seqs(before + rest) == list(range(1, 11))
    after_all = await ann.call("GET", "/sessions/s1/messages", headers={**SSE, "Last-Event-ID": rest[-1].fields["id"]})
    assert after_all.status_code == 204
    # EventSource repeats its first URL, whose cursor has grown old; the header is newer.
    both = {**SSE, "Last-Event-ID": rest[-1].fields["id"]}
    assert (await ann.call("GET", f"/sessions/s1/messages?after={last}", headers=both)).status_code == 204


async def test_nothing_open_is_204(web: Web, ann: Person) -> None:
    await turn(web, ann)
    assert (await ann.call("GET", "/sessions/s1/messages", headers=SSE)).status_code == 204


async def test_attaching_takes_the_running_run_before_the_queued_one(web: Web, ann: Person) -> None:
    await ann.say("s1", "one")
    one = await claimed(web)
    second = (await ann.say("s1", "two")).json()["run"]
    async with ann.stream("/sessions/s1/messages") as (_, frames):
        await end(web, one)
        first_run = [frame async for frame in frames]
    assert {frame.fields["id"].split(":")[0] for frame in first_run if frame.event} == {str(one.run)}
    async with ann.stream("/sessions/s1/messages", headers={"Last-Event-ID": first_run[-1].fields["id"]}) as (
        _,
        frames,
    ):
        await anext(frames)
        next_run = await anext(frames)
    assert next_run.fields["id"].split(":")[0] == second
    assert next_run.event == "run.queued"


async def test_following_a_session_goes_on_over_runs(web: Web, ann: Person) -> None:
    run = await turn(web, ann)
    async with ann.stream("/sessions/s1/messages?follow=session") as (response, frames):
        assert response.status_code == 200, "also when nothing is open"
        await anext(frames)
        await turn(web, ann)
        await turn(web, ann)
        live = [await anext(frames) for _ in range(10)]
    assert kinds(live) == WHOLE * 2
    assert seqs(live) == list(range(6, 16))
    async with ann.stream(f"/sessions/s1/messages?follow=session&after={run}:3") as (_, frames):
        await anext(frames)
        again = [await anext(frames) for _ in range(12)]
    assert seqs(again) == list(range(4, 16))


async def test_the_transcript_and_its_cursor_leave_no_gap(web: Web, ann: Person) -> None:
    await turn(web, ann)
    await ann.say("s1", "more")
    one = await claimed(web)
    page = (await ann.call("GET", "/sessions/s1/messages")).json()
    assert [message["run"] == str(one.run) for message in page["messages"]] == [False, False, True]
    assert page["open"] == {"run": str(one.run), "state": "running"}
    await end(web, one)
    frames = await ann.all_frames(f"/sessions/s1/messages?after={page['cursor']}")
    assert kinds(frames) == WHOLE, "the open run whole"
    idle = (await ann.call("GET", "/sessions/s1/messages?limit=2")).json()
    assert (len(idle["messages"]), idle["before"], idle["open"]) == (2, 3, None)
    assert (await ann.call("GET", f"/sessions/s1/messages?after={idle['cursor']}", headers=SSE)).status_code == 204


@pytest.mark.parametrize(
    "cursor",
    ["x", "1:2", "00000000-0000-0000-0000-000000000000", "a" * 5000, "00000000-0000-0000-0000-000000000000:-1"],
)
async def test_malformed_cursors_are_refused(web: Web, ann: Person, cursor: str) -> None:
    await turn(web, ann)
    answer = await ann.call("GET", f"/sessions/s1/messages?after={cursor}", headers=SSE)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor")


async def test_cursors_that_lead_nowhere(web: Web, ann: Person) -> None:
    run, other = await turn(web, ann), await turn(web, ann, "s2")
    await fetchrow(web.db, "UPDATE session SET event_floor = 3 WHERE id = 's1' RETURNING id")
    for cursor, expected in [
        (f"{other}:2", (404, "not_found")),
        ("00000000-0000-0000-0000-000000000000:1", (404, "not_found")),
        (f"{run}:2", (409, "cursor_expired")),
        (f"{run}:999999", (409, "cursor_expired")),
    ]:
        for follow in ("", "&follow=session"):
            answer = await ann.call("GET", f"/sessions/s1/messages?after={cursor}{follow}", headers=SSE)
            assert (answer.status_code, answer.json()["code"]) == expected, cursor
    kept = await ann.all_frames(f"/sessions/s1/messages?after={run}:3")
    assert seqs(kept) == [4, 5]


async def test_a_closed_stream_leaves_the_run_and_no_watch(web: Web, ann: Person) -> None:
    await ann.say("s1", "hello")
    one = await claimed(web)
    async with ann.stream("/sessions/s1/messages") as (_, frames):
        await anext(frames)
        assert web.tailer.watchers == 1
    await eventually(lambda: web.tailer.watchers == 0, what="the watch to be given up")
    await end(web, one)
    assert (await ann.call("GET", f"/runs/{one.run}")).json()["state"] == "completed"


async def test_a_quiet_stream_is_kept_alive(web: Web, ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.05)
    await ann.say("s1", "hello")
    async with ann.stream("/sessions/s1/messages") as (_, frames):
        await anext(frames)
        await anext(frames)
        quiet = [await anext(frames) for _ in range(3)]
    assert [(frame.fields, frame.comments) for frame in quiet] == [({}, [" keep-alive"])] * 3


async def test_a_revoked_token_s_stream_ends(web: Web, ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(streams, "ALLOWED_SECONDS", 0.1)
    made = (await ann.call("POST", "/tokens", json={"name": "short"})).json()
    guest = Person(web, ann.who, made["secret"])
    await ann.say("s1", "hello")
    async with guest.stream("/sessions/s1/messages") as (_, frames):
        await anext(frames)
        await ann.call("DELETE", f"/tokens/{made['id']}")
        rest = [frame async for frame in frames]
    assert 375 <= int(rest[-1].fields["retry"]) <= 625


async def test_a_drain_sends_readers_elsewhere_without_a_gap(web: Web, ann: Person, dsn: str) -> None:
    await ann.say("s1", "hello")
    one = await claimed(web)
    async with Web(dsn) as draining:
        there = Person(draining, ann.who, ann.secret)
        async with there.stream("/sessions/s1/messages") as (_, frames):
            await anext(frames)
            read = [await anext(frames) for _ in range(3)]
            draining.tailer.close()
            draining.server.stop()
            last = [frame async for frame in frames]
        assert 375 <= int(last[-1].fields["retry"]) <= 625, "and the response ends as it should"
    await end(web, one)
    rest = await ann.all_frames("/sessions/s1/messages", headers={"Last-Event-ID": read[-1].fields["id"]})
    assert kinds(read + rest) == WHOLE


async def test_a_reader_that_does_not_read_is_cut_and_others_go_on(
    web: Web, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.3)
    await ann.say("s1", "hello")
    one = await claimed(web)
    address = urlsplit(web.url)
    with socket.create_connection((address.hostname, address.port)) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = f"GET /sessions/s1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann.secret}\r\nAccept: text/event-stream\r\n\r\n"
        stuck.sendall(request.encode())
        reading = asyncio.create_task(ann.all_frames("/sessions/s1/messages"))
        await eventually(lambda: web.tailer.watchers == 2, what="both readers")
        run_seq = await deltas(web, one, 120, "x" * 100_000)
        await eventually(lambda: web.tailer.watchers == 1, what="the stuck reader to be given up")
        await end(web, one, run_seq)
        assert seqs(await reading) == list(range(1, 126))
        await eventually(lambda: not web.server._server.server_state.connections, what="its connection to be cut")


async def test_two_hundred_readers_of_one_run(web: Web, ann: Person) -> None:
    await ann.say("s1", "hello")
    reading = [asyncio.create_task(ann.all_frames("/sessions/s1/messages")) for _ in range(200)]
    await eventually(lambda: web.tailer.watchers == 200, timeout=30, what="all readers")
    await end(web, await claimed(web))
    assert {tuple(kinds(frames)) for frames in await asyncio.gather(*reading)} == {tuple(WHOLE)}
