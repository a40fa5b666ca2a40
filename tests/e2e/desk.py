"""A person at the console: a browser tab with short ways to act and to look, which remembers every complaint of the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    async_playwright,
    expect,
)

from stratus.store import principal
from testbed.replicas import Replica
from testbed.stage import Stage
from tests.system.web import MAKE_PRINCIPAL, fetchrow

NETWORK = "Failed to load resource"
WAIT_MS = 20_000

expect.set_options(timeout=WAIT_MS)


class Desk:
    """One tab. `complaints` are console errors, page errors and policy violations; `foreign` are requests to other hosts.

    After `play_approvals` the gateway's answers about approvals are played: `approvals` are listed, `decisions` kept unless there is a `refusal`.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.approvals: list[dict[str, Any]] = []
        self.decisions: list[tuple[str, dict[str, Any]]] = []
        self.refusal: dict[str, Any] | None = None
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"page: {error}"))
        page.on("request", self._asked)

    async def send(self, text: str) -> None:
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.keyboard.press("Enter")

    def turns(self, state: str | None = None) -> Locator:
        return self.page.locator("article.turn" if state is None else f'article.turn[data-state="{state}"]')

    async def ended(self, count: int, state: str = "completed") -> None:
        """Wait until so many turns stand so."""
        await expect(self.turns(state)).to_have_count(count)

    async def answers(self) -> list[str]:
        """The answers' text, a turn each."""
        return await self.page.locator("article.turn .answer").all_inner_texts()

    async def asked(self) -> list[str]:
        return await self.page.locator("article.turn .asked-text").all_inner_texts()

    async def ran(self, stage: Stage, count: int) -> bool:
        """Whether the open chat has exactly so many runs in the database, all completed."""
        session = unquote(urlsplit(self.page.url).fragment.removeprefix("/s/"))
        rows = await stage.rows("SELECT state FROM agent_run WHERE session_id = $1", session)
        return [row["state"] for row in rows] == ["completed"] * count

    def link(self) -> Locator:
        return self.page.locator("#link")

    def serious(self) -> list[str]:
        """Complaints other than of the network, for a test that breaks it."""
        return [one for one in self.complaints if not one.startswith(NETWORK)]

    async def play_approvals(self) -> None:
        """Answer in the gateway's place."""

        async def listed(route: Route) -> None:
            await route.fulfill(json=self.approvals)

        async def decided(route: Route) -> None:
            if self.refusal is not None:
                await route.fulfill(status=409, json=self.refusal, content_type="application/problem+json")
                return
            approval = urlsplit(route.request.url).path.rpartition("/")[2]
            self.decisions.append((approval, route.request.post_data_json or {}))
            await route.fulfill(json={})

        await self.page.route("**/approvals", listed)
        await self.page.route("**/approvals/*", decided)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.foreign.append(request.url)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Chromium as the system has it. Only a machine that is no CI may do without."""
    path = shutil.which("chromium")
    if path is None and "CI" not in os.environ:
        pytest.skip("Chromium is not installed")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        await running.close()


async def new_code(stage: Stage, role: str = "user") -> str:
    """The code of a sign-in link for somebody new."""
    who = await fetchrow(stage.db, MAKE_PRINCIPAL, "Ada", role)
    return (await principal.create_token(stage.db, who["id"], "signin", name="e2e", ttl=900.0)).secret


@asynccontextmanager
async def seated(
    browser: Browser, stage: Stage, replica: Replica, *, role: str = "user", **options: Any
) -> AsyncIterator[Desk]:
    """A tab in a browser profile of its own, signed in as somebody of this role; `options` are the profile's."""
    context = await browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    try:
        desk = await another_tab(context, replica)
        await desk.page.goto(f"{replica.url}/ui/#signin={await new_code(stage, role)}")
        await expect(desk.page.locator("#console")).to_be_visible()
        yield desk
    finally:
        await context.close()


async def another_tab(context: BrowserContext, replica: Replica) -> Desk:
    """A further tab of a profile."""
    return Desk(await context.new_page(), replica.url)
