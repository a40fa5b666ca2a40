"""Administration over HTTP: agents, channels, tokens, the outbox, webhooks, health and the console's pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest

from stratus.agents.souls import parse
from stratus.channel.values import WebhookReply
from stratus.domain import errors
from stratus.store.database import Database
from stratus.store.intent import intend
from stratus.store.plan import NewOp, plan
from tests.store.world import make_channel, own, rows
from tests.system.web import Person, Web, code, fetchrow

SOUL = "---\nid: blair\nmodel: demo\n---\nYou are Blair.\n"


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


async def test_administration_is_for_admins(web: Web) -> None:
    ann = await web.person("ann")
    for method, path, body in [
        ("PUT", "/agents/blair", {"source": SOUL}),
        ("DELETE", "/agents/demo", None),
        ("GET", "/agents/demo", None),
        ("GET", "/channels", None),
        ("POST", "/channels", {"platform": "testchan", "name": "x", "agent": "demo"}),
        ("GET", "/outbox", None),
        ("GET", "/outbox/1", None),
        ("POST", "/outbox/1", {"action": "sent"}),
        ("GET", "/replicas", None),
        ("GET", "/backlog", None),
    ]:
        assert code(await ann.call(method, path, json=body)) == (403, "forbidden"), path


async def test_agents_are_written_read_and_taken_away(web: Web) -> None:
    admin = await web.person("root", "admin")
    assert (await admin.call("PUT", "/agents/blair", json={"source": SOUL})).json() == {"id": "blair", "revision": 1}
    assert code(await admin.call("PUT", "/agents/other", json={"source": SOUL})) == (400, "bad_input")
    assert code(await admin.call("PUT", "/agents/blair", json={"source": "no front matter"})) == (400, "bad_input")
    read = (await admin.call("GET", "/agents/blair")).json()
    assert parse(read["source"], source="read").model_dump_json() == parse(SOUL, source="written").model_dump_json()
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
    intents = (await intend(web.db, await own(web.db, channel), "replica", 10)).intents
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
    strange = {"action": "cancel", "message_id": "7"}
    assert code(await admin.call("POST", f"/outbox/{third}", json=strange)) == (400, "bad_input")
    shown = (await admin.call("GET", f"/outbox/{second}")).json()
    assert [(one["action"], one["by"]) for one in shown["verdicts"]] == [("resend", str(admin.who.public_id))]
    assert [one["attempt"] for one in shown["attempts_made"]] == [1]
    assert code(await admin.call("GET", "/outbox/999")) == (404, "not_found")
    page = (await admin.call("GET", "/outbox?limit=2")).json()
    assert page["next"] == page["ops"][-1]["id"]
    rest = (await admin.call("GET", f"/outbox?before={page['next']}")).json()
    assert ([one["id"] for one in rest["ops"]], rest["next"]) == ([second, first], None)
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
            text = (await client.get("/metrics")).text
    assert counted == 1
    told = [line for line in text.splitlines() if "# HELP stratus_" in line and "whole database" in line]
    assert len(told) == 6, "who sums these over the replicas counts everything several times"


async def test_the_console_s_pages_come_with_a_strict_policy(web: Web) -> None:
    async with httpx.AsyncClient(base_url=web.url) as client:
        home = await client.get("/")
        assert (home.status_code, home.headers["location"]) == (307, "/ui/")
        for path in ("/ui/../../config.py", "/ui/%2e%2e/config.py"):
            assert (await client.get(path)).status_code == 404
        assert (await client.get("/openapi.json")).json()["info"]["title"] == "Stratus"
        assert (await client.get("/docs")).status_code == 404
