"""The console's cookie: made from a sign-in code once, and good for nothing from another origin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from stratus.store import principal as principals
from tests.store.world import rows
from tests.system.web import PUBLIC_URL, Web

SSE = {"Accept": "text/event-stream"}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with Web(dsn) as running:
        await running.agent()
        yield running


@pytest.fixture
async def browser(web: Web) -> AsyncIterator[httpx.AsyncClient]:
    """Signed in as the owner. The client keeps the cookie although it is Secure, as a browser behind TLS would."""
    owner = await principals.ensure_owner(web.db)
    code = await principals.create_token(web.db, owner.id, "signin", ttl=60.0)
    async with httpx.AsyncClient(base_url=web.url) as client:
        answer = await client.post("/auth/signin", json={"code": code.secret}, headers={"Origin": web.url})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert {"httponly", "samesite=lax", "secure", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
        client.cookies.clear()
        client.headers["Cookie"] = cookie.partition(";")[0]
        yield client


async def test_a_code_signs_in_once(web: Web) -> None:
    owner = await principals.ensure_owner(web.db)
    code = await principals.create_token(web.db, owner.id, "signin", ttl=60.0)
    async with httpx.AsyncClient(base_url=web.url) as client:
        foreign = await client.post(
            "/auth/signin", json={"code": code.secret}, headers={"Origin": "https://evil.example"}
        )
        assert foreign.status_code == 403
        assert (await client.post("/auth/signin", json={"code": code.secret})).json()["role"] == "owner"
        again = await client.post("/auth/signin", json={"code": code.secret})
        assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")


async def test_the_console_sends_without_a_key_and_every_message_counts(web: Web, browser: httpx.AsyncClient) -> None:
    for _ in range(2):
        body = {"agent": "demo", "text": "hello"}
        answer = await browser.post("/sessions/s1/messages", json=body, headers={"Origin": web.url})
        assert answer.status_code == 202
    assert len(await rows(web.db, "SELECT id FROM agent_run")) == 2


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "https://evil.example",
        "http://evil.stratus.example.org",
        "https://stratus.example.org.evil.example",
        "file://",
        "::",
    ],
)
async def test_a_foreign_page_changes_nothing(web: Web, browser: httpx.AsyncClient, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    calls = [
        browser.post("/sessions/s1/messages", json={"agent": "demo", "text": "x"}, headers=headers),
        browser.patch("/sessions/s1", json={"title": "x"}, headers=headers),
        browser.put("/agents/demo", json={"source": "x"}, headers=headers),
        browser.delete("/agents/demo", headers=headers),
        browser.post("/tokens", json={"name": "x"}, headers=headers),
        browser.post("/auth/signout", headers=headers),
    ]
    for call in calls:
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert await rows(web.db, "SELECT id FROM session") == []
    assert (await browser.get("/auth/me")).status_code == 200, "still signed in"


async def test_our_own_pages_may(web: Web, browser: httpx.AsyncClient) -> None:
    for origin in (web.url, PUBLIC_URL):
        answer = await browser.post(
            "/sessions/s1/messages", json={"agent": "demo", "text": "x"}, headers={"Origin": origin}
        )
        assert answer.status_code == 202


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Referer": "https://evil.example/"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 204),
        ({"Origin": PUBLIC_URL}, 204),
        ({"Referer": f"{PUBLIC_URL}/ui/"}, 204),
    ],
)
async def test_a_stream_is_for_our_own_pages(
    web: Web, browser: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    sent = await browser.post("/sessions/s1/messages", json={"agent": "demo", "text": "x"}, headers={"Origin": web.url})
    assert sent.status_code == 202
    await browser.post("/sessions/s1/stop", headers={"Origin": web.url})
    answer = await browser.get("/sessions/s1/messages", headers={**SSE, **headers})
    assert answer.status_code == status


async def test_a_form_of_another_page_is_not_read(web: Web, browser: httpx.AsyncClient) -> None:
    body = b'{"agent": "demo", "text": "x"}'
    headers = {"Origin": web.url, "Content-Type": "text/plain"}
    answer = await browser.post("/sessions/s1/messages", content=body, headers=headers)
    assert answer.status_code == 400


async def test_signing_out_ends_the_session(web: Web, browser: httpx.AsyncClient) -> None:
    answer = await browser.post("/auth/signout", headers={"Origin": web.url})
    assert answer.status_code == 204
    assert "stratus_session=" in answer.headers["set-cookie"]
    assert (await browser.get("/auth/me")).status_code == 401
