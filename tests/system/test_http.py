"""The HTTP interface's answers, status by status, over a real port and a real database."""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from stratus.channel.values import WebhookReply
from stratus.domain import errors
from stratus.domain.event import parse_cursor
from stratus.http.errors import STATUS
from stratus.http.limits import BODY_MAX
from stratus.store.database import Database
from stratus.store.outbox import intend
from stratus.store.plan import NewOp, plan
from stratus.store.run import claim, finish
from tests.store.world import completion, make_channel, own, rows
from tests.system.web import PUBLIC_URL, Person, Web, fetchrow

SOUL = "---\nid: blair\nmodel: demo\n---\nYou are Blair.\n"


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


async def finish_next(db: Database) -> None:
    [claimed] = await claim(db, "worker", 1, 60.0)
    assert await finish(db, [completion(claimed)]) == [True]


def code(response: httpx.Response) -> tuple[int, str]:
    """The status and the problem's code, after the document's form was checked."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert set(document) == {"type", "title", "status", "detail", "code"}
    assert document["status"] == response.status_code
    return response.status_code, document["code"]


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


@pytest.mark.parametrize("session", ["x" * 257, "a%00b", "a%0Ab", "a%7Fb"])
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


async def test_administration_is_for_admins(web: Web) -> None:
    ann = await web.person("ann")
    for method, path, body in [
        ("PUT", "/agents/blair", {"source": SOUL}),
        ("DELETE", "/agents/demo", None),
        ("GET", "/agents/demo", None),
        ("GET", "/channels", None),
        ("POST", "/channels", {"platform": "testchan", "name": "x", "agent": "demo"}),
        ("GET", "/outbox", None),
        ("POST", "/outbox/1", {"action": "sent"}),
        ("GET", "/replicas", None),
        ("GET", "/backlog", None),
    ]:
        assert code(await ann.call(method, path, json=body)) == (403, "forbidden"), path


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
    data = base64.b64encode(b"octets").decode()
    await ann.say("s1", "see", attachments=[{"name": "a.txt", "mime": "text/plain", "data": data}])
    [claimed] = await claim(web.db, "worker", 1, 60.0)
    assert claimed.input.text == "see"
    page = (await ann.call("GET", "/sessions/s1/messages")).json()
    assert page["messages"][0]["parts"] == [
        {"kind": "text", "text": "see"},
        {"kind": "file", "name": "a.txt", "mime": "text/plain", "size": 6},
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


async def test_agents_are_written_read_and_taken_away(web: Web) -> None:
    admin = await web.person("root", "admin")
    assert (await admin.call("PUT", "/agents/blair", json={"source": SOUL})).json() == {"id": "blair", "revision": 1}
    assert code(await admin.call("PUT", "/agents/other", json={"source": SOUL})) == (400, "bad_input")
    assert code(await admin.call("PUT", "/agents/blair", json={"source": "no front matter"})) == (400, "bad_input")
    read = (await admin.call("GET", "/agents/blair")).json()
    assert read["source"] == SOUL
    listed = (await admin.call("GET", "/agents")).json()
    assert [one["id"] for one in listed["agents"]] == ["blair", "demo"]
    assert listed["providers"] == ["demo"]
    assert (await admin.call("DELETE", "/agents/blair")).status_code == 204
    assert code(await admin.call("DELETE", "/agents/blair")) == (404, "agent_not_found")


async def test_channels_are_added_changed_and_removed_without_showing_credentials(web: Web) -> None:
    admin = await web.person("root", "owner")
    secret = "123456:a-very-secret-bot-token"
    new = {
        "platform": "testchan",
        "name": "bot",
        "agent": "demo",
        "options": {"base_url": "http://127.0.0.1:1", "bot": "b1"},
        "credentials": {"token": secret},
    }
    made = await admin.call("POST", "/channels", json=new)
    assert made.status_code == 201, made.text
    channel = made.json()
    assert channel["has_credentials"] is True
    assert code(await admin.call("POST", "/channels", json=new)) == (409, "conflict")
    assert code(await admin.call("POST", "/channels", json={**new, "platform": "none"})) == (400, "bad_input")
    assert code(await admin.call("POST", "/channels", json={**new, "agent": "nobody"})) == (404, "agent_not_found")
    changed = await admin.call(
        "PATCH", f"/channels/{channel['id']}", json={"enabled": False, "credentials": {"token": "x"}}
    )
    assert (changed.json()["enabled"], changed.json()["revision"] > channel["revision"]) == (False, True)
    listed = await admin.call("GET", "/channels")
    assert "testchan" in listed.json()["platforms"]
    assert secret not in made.text + changed.text + listed.text
    stored = await rows(web.db, "SELECT row_to_json(c)::text AS text FROM channel c")
    assert secret not in str(stored)
    assert (await admin.call("DELETE", f"/channels/{channel['id']}")).status_code == 204
    assert code(await admin.call("DELETE", f"/channels/{channel['id']}")) == (404, "not_found")


async def test_an_operator_settles_what_cannot_be_known(web: Web) -> None:
    admin = await web.person("root", "admin")
    channel = await make_channel(web.db)
    ops = [NewOp(channel, f"c{n}", "send_text", {"chat": f"c{n}"}, {"text": "x"}, f"key-{n}") for n in range(4)]
    await web.db.transact(lambda c: plan(c, ops[:3]))
    intents = await intend(web.db, await own(web.db, channel), "replica", 10)
    await fetchrow(web.db, "WITH u AS (UPDATE channel_outbox SET state = 'unknown') SELECT 1 AS done")
    await web.db.transact(lambda c: plan(c, ops[3:]))
    first, second, third = (intent.op_id for intent in intents)
    unknown = (await admin.call("GET", "/outbox?state=unknown")).json()["ops"]
    assert [one["id"] for one in unknown] == [third, second, first]
    for op_id, action, state in [(first, "sent", "sent"), (second, "resend", "pending"), (third, "cancel", "canceled")]:
        settled = await admin.call("POST", f"/outbox/{op_id}", json={"action": action})
        assert settled.json() == {"id": op_id, "state": state}
    assert code(await admin.call("POST", f"/outbox/{first}", json={"action": "resend"})) == (409, "conflict")
    assert code(await admin.call("POST", f"/outbox/{second}", json={"action": "sent"})) == (409, "conflict")
    assert code(await admin.call("POST", f"/outbox/{first}", json={"action": "explode"})) == (400, "bad_input")
    assert code(await admin.call("GET", "/outbox?state=nonsense")) == (400, "bad_input")
    assert (await admin.call("GET", "/backlog")).json()["backlog"][0]["queue"] == "outbox"


async def test_tokens_are_shown_once(web: Web) -> None:
    ann = await web.person("ann")
    made = (await ann.call("POST", "/tokens", json={"name": "laptop", "days": 7})).json()
    listed = await ann.call("GET", "/tokens")
    assert made["secret"] not in listed.text
    again = Person(web, ann.who, made["secret"])
    assert (await again.call("GET", "/auth/me")).json() == {
        "principal": str(ann.who.public_id),
        "name": "ann",
        "role": "user",
    }
    assert (await again.call("DELETE", f"/tokens/{made['id']}")).status_code == 204
    assert code(await again.call("GET", "/auth/me")) == (401, "unauthenticated")


async def test_webhooks_get_the_raw_body(web: Web) -> None:
    web.hook = lambda: WebhookReply(status=200, body=b"pong", content_type="text/plain")
    channel = uuid4()
    raw = b'{ "keeps" :  "its spacing" }'
    async with httpx.AsyncClient(base_url=web.url) as client:
        answer = await client.post(f"/hooks/{channel}", content=raw, headers={"X-Signature": "abc"})
        assert (answer.status_code, answer.content) == (200, b"pong")
        [(to, request)] = web.hooked
        assert (to, request.body, request.headers["x-signature"]) == (channel, raw, "abc")

        def away() -> WebhookReply:
            raise errors.DatabaseAway("gone")

        web.hook = away
        answer = await client.post(f"/hooks/{channel}", content=raw)
        assert code(answer) == (503, "database_away")
        assert answer.headers["retry-after"] == "5"


async def test_health_readiness_and_metrics(web: Web) -> None:
    ann = await web.person("ann")
    await ann.say("s1", "hello")
    async with httpx.AsyncClient(base_url=web.url) as client:
        assert (await client.get("/healthz")).json() == {"ok": True}
        assert (await client.get("/readyz")).json() == {"ready": True, "reasons": []}
        numbers = (await client.get("/metrics")).text
        assert 'stratus_runs{state="queued"} 1.0' in numbers
        assert "stratus_database_up 1.0" in numbers
        assert 'stratus_loop_steps_total{loop="tail"}' in numbers
        assert "process_resident_memory_bytes" in numbers
        web.unready = ["loop tail stands still"]
        web.services.draining.set()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["loop tail stands still", "draining"])


async def test_metrics_count_the_backlog_at_most_once_in_a_while(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    from stratus.store import view

    counted = 0

    async def count(_db: Database) -> list[view.Waiting]:
        nonlocal counted
        counted += 1
        return []

    monkeypatch.setattr(view, "backlog", count)
    async with httpx.AsyncClient(base_url=web.url) as client:
        for _ in range(10):
            await client.get("/metrics")
    assert counted == 1


async def test_the_console_s_pages_come_with_a_strict_policy(web: Web) -> None:
    async with httpx.AsyncClient(base_url=web.url) as client:
        home = await client.get("/")
        assert (home.status_code, home.headers["location"]) == (307, "/ui/")
        for path in ("/ui/../../config.py", "/ui/%2e%2e/config.py"):
            assert (await client.get(path)).status_code == 404
        assert (await client.get("/openapi.json")).json()["info"]["title"] == "Stratus"
        assert (await client.get("/docs")).status_code == 404


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
