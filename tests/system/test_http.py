"""The HTTP interface's answers, status by status, over a real port and a real database."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import inspect
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from stratus.domain import errors
from stratus.domain.event import parse_cursor
from stratus.http import limits
from stratus.http.errors import STATUS
from stratus.http.limits import BODY_MAX
from stratus.http.server import HttpServer
from stratus.store.database import Database
from stratus.store.run import claim, finish
from tests.store.world import completion, rows
from tests.system.web import PUBLIC_URL, Web, code


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


async def finish_next(db: Database) -> None:
    [claimed] = await claim(db, "worker", 1, 60.0)
    assert await finish(db, [completion(claimed)]) == [True]


async def test_a_message_is_taken_and_its_run_can_be_read(web: Web) -> None:
    ann = await web.person("ann")
    sent = await ann.say("s1", "hello", key="a-key-of-some-length")
    assert sent.status_code == 202
    answer = sent.json()
    cursor = parse_cursor(answer["cursor"])
    assert (answer["session"], str(cursor.run), cursor.seq) == ("s1", answer["run"], 1)
    await finish_next(web.db)
    by_id = (await ann.call("GET", f"/runs/{answer['run']}")).json()
    by_key = (await ann.call("GET", "/sessions/s1/turns/a-key-of-some-length")).json()
    assert by_id == by_key
    assert (by_id["state"], by_id["reply"], by_id["error"], by_id["agent"]) == ("completed", "done", None, "demo")
    assert "owner_id" not in by_id


async def test_the_same_key_answers_with_the_same_run(web: Web) -> None:
    ann, bob = await web.person("ann"), await web.person("bob")
    key = "one-key-for-all-of-them"
    together = await asyncio.gather(*(ann.say("s1", "hello", key=key) for _ in range(5)))
    assert {answer.status_code for answer in together} == {202}
    assert len({answer.json()["run"] for answer in together}) == 1
    assert sorted(answer.json()["repeated"] for answer in together) == [False, True, True, True, True]
    await finish_next(web.db)
    late = await ann.say("s1", "hello", key=key)
    assert late.json()["run"] == together[0].json()["run"]
    assert code(await ann.say("s1", "another", key=key)) == (422, "idempotency_key_reused")
    other = await bob.say("s2", "another", key=key)
    assert other.status_code == 202, "keys are each principal's own"


@pytest.mark.parametrize("key", [None, "short", "x" * 256, "umlaut-\u00e4-umlaut-\u00e4"])
async def test_api_clients_need_a_proper_key(web: Web, key: str | None) -> None:
    ann = await web.person("ann")
    headers = {} if key is None else {"Idempotency-Key": key.encode()}
    answer = await ann.call("POST", "/sessions/s1/messages", json={"agent": "demo", "text": "x"}, headers=headers)
    assert code(answer) == (400, "idempotency_key_required")
    assert await rows(web.db, "SELECT id FROM session") == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"agent": "demo"},
        {"agent": "demo", "text": "   "},
        {"agent": "demo", "text": 5},
        {"agent": "demo", "text": "x", "unknown": 1},
        {"agent": "demo", "text": "x", "parts": [{"kind": "text", "text": "y"}]},
        {"agent": "demo", "attachments": [{"name": "a", "mime": "text/plain", "data": "no base64!"}]},
        {"agent": "../etc", "text": "x"},
        {"agent": "demo", "text": "x", "busy": "sometimes"},
        {"text": "no agent for a new session"},
        [],
        "x",
    ],
)
async def test_bad_bodies_are_refused(web: Web, body: Any) -> None:
    ann = await web.person("ann")
    headers = {"Idempotency-Key": ann.key()}
    answer = await ann.call("POST", "/sessions/s1/messages", json=body, headers=headers)
    assert code(answer) == (400, "bad_input")
    assert await rows(web.db, "SELECT id FROM session") == []


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b'{"agent": "demo", "text": "\\ud800"}', b"\xff"])
async def test_bodies_that_are_no_json_are_refused_without_a_fault(web: Web, body: bytes) -> None:
    ann = await web.person("ann")
    headers = {"Idempotency-Key": ann.key(), "Content-Type": "application/json"}
    answer = await ann.call("POST", "/sessions/s1/messages", content=body, headers=headers)
    assert answer.status_code in {202, 400}


async def test_what_postgresql_cannot_store_is_replaced(web: Web) -> None:
    ann = await web.person("ann")
    assert (await ann.say("s1", "a\x00b")).status_code == 202
    await finish_next(web.db)
    page = (await ann.call("GET", "/sessions/s1/messages")).json()
    assert page["messages"][0]["parts"] == [{"kind": "text", "text": "a\ufffdb"}]


@pytest.mark.parametrize("session", ["x" * 257, "a%00b", "a%1Fb", "a%7Fb"])
async def test_session_ids_are_printable_and_bounded(web: Web, session: str) -> None:
    ann = await web.person("ann")
    assert code(await ann.say(session, "hello")) == (400, "bad_input")


@pytest.mark.parametrize("session", ["x" * 256, "telegram:-100/7", "caf\u00e9", "a b"])
async def test_session_ids_may_be_anything_else(web: Web, session: str) -> None:
    ann = await web.person("ann")
    assert (await ann.say(session, "hello")).json()["session"] == session
    assert (await ann.call("GET", f"/sessions/{session}/messages")).status_code == 200
    assert (await ann.call("POST", f"/sessions/{session}/stop")).json() == {"running": False, "canceled": 1}


async def test_unknown_agents_and_another_agent_s_session(web: Web) -> None:
    await web.agent("other")
    ann = await web.person("ann")
    assert code(await ann.say("s1", "x", agent="nobody")) == (404, "agent_not_found")
    assert (await ann.say("s1", "x")).status_code == 202
    assert code(await ann.say("s1", "x", agent="other")) == (409, "agent_mismatch")
    assert (await ann.say("s1", "y", agent=None)).status_code == 202, "a session keeps its agent"


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_refused_before_it_is_parsed(web: Web, announced: bool) -> None:
    ann = await web.person("ann")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BODY_MAX // 65_536 + 1):
            yield b"[" * 65_536

    content: Any = b"[" * (BODY_MAX + 1) if announced else pieces()
    answer = await ann.call("POST", "/sessions/s1/messages", content=content)
    assert code(answer) == (413, "too_large")


async def test_an_announced_size_is_refused_before_a_byte_of_it_has_come(web: Web) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(web.url.rpartition(":")[2]))
    writer.write(f"POST /sessions/s1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {BODY_MAX + 1}\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()
    await writer.wait_closed()


async def test_two_who_use_one_key_in_one_session_have_a_run_each(web: Web) -> None:
    ann, admin = await web.person("ann"), await web.person("root", "admin")
    key = "a-key-that-both-have-chosen"
    hers = (await ann.say("s1", "mine", key=key)).json()["run"]
    others = (await admin.say("s1", "the admin's", key=key)).json()["run"]
    assert hers != others
    assert (await ann.call("GET", f"/sessions/s1/turns/{key}")).json()["run"] == hers
    assert (await admin.call("GET", f"/sessions/s1/turns/{key}")).json()["run"] == others


async def test_nobody_and_nonsense_are_not_let_in(web: Web) -> None:
    ann = await web.person("ann")
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {ann.secret}"},
        {"Cookie": "stratus_session=x"},
    ):
        async with httpx.AsyncClient(base_url=web.url) as client:
            for path in (
                "/sessions",
                "/sessions/s1/messages",
                "/runs/x",
                "/agents",
                "/channels",
                "/outbox",
                "/tokens",
                "/replicas",
            ):
                answer = await client.get(path, headers=headers)
                assert code(answer) == (401, "unauthenticated"), path
                assert answer.headers["www-authenticate"] == "Bearer"


async def test_another_s_things_are_not_there(web: Web) -> None:
    ann, bob, admin = await web.person("ann"), await web.person("bob"), await web.person("root", "admin")
    run = (await ann.say("s1", "mine", key="the-key-that-ann-chose")).json()["run"]
    token = (await ann.call("POST", "/tokens", json={"name": "mine"})).json()["id"]
    key = {"Idempotency-Key": "a-key-of-the-caller"}
    message = {"agent": "demo", "text": "x"}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/sessions/{s}/messages", {"json": message, "headers": key}),
        ("GET", "/sessions/{s}/messages", {}),
        ("GET", "/sessions/{s}/messages", {"headers": {"Accept": "text/event-stream"}}),
        ("PATCH", "/sessions/{s}", {"json": {"title": "x"}}),
        ("POST", "/sessions/{s}/stop", {}),
        ("GET", "/sessions/{s}/turns/the-key-that-ann-chose", {}),
        ("GET", "/runs/{r}", {}),
        ("POST", "/runs/{r}/cancel", {}),
        ("DELETE", "/tokens/{t}", {}),
    ]
    for method, path, options in calls:
        hers = await bob.call(method, path.format(s="s1", r=run, t=token), **options)
        assert code(hers) == (404, "not_found"), path
        if "messages" in path and method == "POST":
            continue  # for him that session would be a new one
        nobodys = await bob.call(method, path.format(s="s9", r=uuid4(), t=uuid4()), **options)
        assert hers.content == nobodys.content, f"{path} tells that it is there"
    assert (await bob.call("GET", "/sessions")).json() == {"sessions": []}
    assert (await bob.call("GET", "/tokens")).json()["tokens"][0]["principal_name"] == "bob"
    assert [one["id"] for one in (await admin.call("GET", "/sessions")).json()["sessions"]] == ["s1"]
    assert (await admin.call("GET", f"/runs/{run}")).json()["state"] == "queued"
    assert (await ann.call("GET", f"/runs/{run}")).json()["state"] == "queued", "nothing of it had an effect"


async def test_malformed_ids_are_not_there(web: Web) -> None:
    admin = await web.person("root", "admin")
    for method, path in [
        ("GET", "/runs/1"),
        ("POST", "/runs/x/cancel"),
        ("DELETE", "/tokens/1"),
        ("DELETE", "/channels/x"),
        ("POST", "/hooks/x"),
    ]:
        assert code(await admin.call(method, path)) == (404, "not_found"), path
    assert code(await admin.call("GET", "/nowhere")) == (404, "not_found")
    assert code(await admin.call("PUT", "/sessions")) == (405, "method_not_allowed")


async def test_stop_and_cancel(web: Web) -> None:
    ann = await web.person("ann")
    for text in ("one", "two", "three"):
        last = (await ann.say("s1", text)).json()["run"]
    [claimed] = await claim(web.db, "worker", 1, 60.0)
    assert (await ann.call("POST", f"/runs/{last}/cancel")).json() == {"running": False, "canceled": 1}
    spared = await ann.call("POST", "/sessions/s1/stop", json={"queued": False})
    assert spared.json() == {"running": True, "canceled": 0}
    assert (await ann.call("POST", "/sessions/s1/stop")).json() == {"running": True, "canceled": 1}
    asked = await rows(web.db, "SELECT cancel_requested FROM session_execution WHERE run_id = $1", claimed.lease.run_id)
    assert asked == [{"cancel_requested": True}]


async def test_the_busy_policy_of_a_message(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "one")
    [first] = await claim(web.db, "worker", 1, 60.0)
    refused = await ann.say("s1", "two", busy="reject", key="the-key-of-a-refused-one")
    assert code(refused) == (409, "busy")
    assert (await ann.say("s1", "two", busy="interrupt")).status_code == 202
    running = await rows(web.db, "SELECT cancel_requested FROM session_execution WHERE run_id = $1", first.lease.run_id)
    assert running == [{"cancel_requested": True}]
    states = await rows(web.db, "SELECT state FROM agent_run ORDER BY turn")
    assert [row["state"] for row in states] == ["running", "queued"], "neither the refused one nor a canceled one"


async def test_files_come_with_a_message(web: Web) -> None:
    ann = await web.person("ann")
    data, digest = base64.b64encode(b"octets").decode(), hashlib.sha256(b"octets").hexdigest()
    await ann.say("s1", "see", attachments=[{"name": "a.txt", "mime": "text/plain", "data": data}])
    [claimed] = await claim(web.db, "worker", 1, 60.0)
    assert claimed.input.text == "see"
    page = (await ann.call("GET", "/sessions/s1/messages")).json()
    assert page["messages"][0]["parts"] == [
        {"kind": "text", "text": "see"},
        {"kind": "file", "name": "a.txt", "mime": "text/plain", "size": 6, "sha256": digest},
    ]


async def test_sessions_are_listed_named_and_archived(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "hello   there\nfriend")
    [one] = (await ann.call("GET", "/sessions")).json()["sessions"]
    assert (one["id"], one["title"], one["state"], one["agent"]) == ("s1", "hello there friend", "queued", "demo")
    renamed = await ann.call("PATCH", "/sessions/s1", json={"title": "new", "archived": True})
    assert renamed.json()["title"] == "new"
    assert (await ann.call("GET", "/sessions")).json() == {"sessions": []}
    [one] = (await ann.call("GET", "/sessions?archived=true&query=ne")).json()["sessions"]
    assert one["archived_at"] is not None
    assert code(await ann.call("GET", "/sessions?limit=0")) == (400, "bad_input")


async def test_an_unexpected_error_shows_nothing_of_the_inside(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratus.store import view

    async def fail(_db: Database) -> list[view.Waiting]:
        raise errors.Broken("relation agent_run has a secret name")

    monkeypatch.setattr(view, "backlog", fail)
    admin = await web.person("root", "admin")
    answer = await admin.call("GET", "/backlog")
    assert code(answer) == (500, "internal")
    assert "secret" not in answer.text


def test_every_error_has_its_row() -> None:
    ours = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.StratusError)}
    assert ours <= set(STATUS), f"without a status: {ours - set(STATUS)}"


async def test_an_outage_is_told_as_each_client_understands_it(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "hello")

    async def away(*_arguments: object, **_options: object) -> None:
        raise errors.DatabaseAway("gone")

    monkeypatch.setattr(web.db, "read", away)
    answer = await ann.call("GET", "/sessions/s1/messages")
    assert code(answer) == (503, "database_away")
    assert int(answer.headers["retry-after"]) >= 1
    stream = await ann.call("GET", "/sessions/s1/messages", headers={"Accept": "text/event-stream"})
    assert (stream.status_code, stream.text) == (200, "retry: 5000\n\n"), "503 would end an EventSource for good"
    sent = await ann.say("s1", "hello")
    assert code(sent) == (503, "database_away")
    assert PUBLIC_URL not in sent.text


async def test_a_body_that_does_not_come_is_given_up(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(web.url.rpartition(":")[2]))
    writer.write(b"POST /sessions/s1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "path", ["/sessions?query=%00", "/agents/a%00", "/sessions/s1/turns/%00", "/sessions?agent=a%00"]
)
async def test_no_address_reaches_the_database_with_a_nul(web: Web, path: str) -> None:
    admin = await web.person("root", "admin")
    assert code(await admin.call("GET", path)) == (400, "bad_input")


@pytest.mark.parametrize("text", ["\\ud800", "\\u0000"])
async def test_titles_and_names_are_text_that_can_be_stored(web: Web, text: str) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "hello")
    headers = {"Content-Type": "application/json"}
    for method, path, field in [("PATCH", "/sessions/s1", "title"), ("POST", "/tokens", "name")]:
        answer = await ann.call(method, path, content=f'{{"{field}": "{text}"}}'.encode(), headers=headers)
        assert code(answer) == (400, "bad_input")


async def test_of_two_who_make_the_same_session_one_has_it(web: Web) -> None:
    people = [await web.person(f"p{n}") for n in range(6)]
    for session in ("s1", "s2", "s3"):
        answers = await asyncio.gather(*(one.say(session, "mine") for one in people))
        assert sorted(answer.status_code for answer in answers) == [202, 404, 404, 404, 404, 404]
    owned = await rows(
        web.db,
        "SELECT count(*) AS runs FROM agent_run r JOIN session s ON s.id = r.session_id AND s.owner_id = r.principal_id",
    )
    assert owned == [{"runs": 3}]
    assert await rows(web.db, "SELECT count(*) AS runs FROM agent_run") == owned


async def test_a_port_in_use_is_one_clear_line(web: Web) -> None:
    taken = int(web.url.rpartition(":")[2])
    with pytest.raises(errors.BadSetting, match=f"STRATUS_BIND: 127.0.0.1:{taken} cannot be used"):
        HttpServer(FastAPI(), "127.0.0.1", taken).listen()
