"""Operators at the console in a real browser: they see what waits and what cannot be known, with its evidence, and settle it."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect

from testbed.eventually import eventually
from testbed.replicas import Replica
from testbed.stage import Stage
from tests.e2e.desk import Desk, seated

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\u202e'


async def lost(stage: Stage, chat: str, text: str = "hello") -> dict[str, Any]:
    """An answer that the platform took, and whose receipt was lost."""
    if await stage.value("SELECT count(*) FROM channel") == 0:
        await stage.add_channel()
    stage.platform.controls.fault({"chat": chat}, "store_then_reset")
    await stage.say(text, chat=chat)
    found: list[dict[str, Any]] = []

    async def unknown() -> bool:
        sql = "SELECT id FROM channel_outbox WHERE state = 'unknown' AND address ->> 'chat' = $1"
        found[:] = await stage.rows(sql, chat)
        return bool(found)

    await eventually(unknown, 20, "the answer is unknown")
    return found[0]


async def opened(desk: Desk, op: int) -> Locator:
    """The operation on the operators' page, with its evidence open."""
    await desk.page.goto(f"{desk.url}/ui/operations.html")
    item = desk.page.locator(f'li[data-op="{op}"]')
    await item.locator("summary").click()
    await expect(item.locator(".op-list")).to_be_visible()
    return item


async def test_what_cannot_be_known_is_shown_with_its_evidence_and_settled_in_one_click(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    op = (await lost(stage, "c1"))["id"]
    async with seated(browser, stage, replica, role="admin") as desk:
        await desk.page.get_by_role("link", name="Operations").click()
        await expect(desk.page.locator("#channels")).to_contain_text("connected")
        item = await opened(desk, op)
        await expect(item).to_contain_text("1. call began")
        await expect(item).to_contain_text("unknown (")
        await item.get_by_label("Note").fill("seen in the chat")
        await item.get_by_role("button", name="It was sent").click()
        await expect(item).to_have_attribute("data-state", "sent")
        await expect(item).to_contain_text("sent, unknown → sent, “seen in the chat”")
        await expect(item.get_by_role("button")).to_have_count(0)
        assert desk.complaints == [] and desk.foreign == []
    [kept] = await stage.rows("SELECT action, note FROM outbox_verdict WHERE op_id = $1", op)
    assert kept == {"action": "sent", "note": "seen in the chat"}


async def test_sending_again_asks_first_because_people_may_see_it_twice(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    op = (await lost(stage, "c2"))["id"]
    assert len(stage.sent("c2")) == 1
    async with seated(browser, stage, replica, role="admin") as desk:
        item = await opened(desk, op)
        await item.get_by_role("button", name="Send it again").click()
        await expect(item).to_contain_text("people see it twice")
        assert await stage.rows("SELECT 1 FROM outbox_verdict WHERE op_id = $1", op) == []
        await item.get_by_role("button", name="Yes, send it again").click()
        await expect(item).to_have_attribute("data-state", "sent", timeout=20_000)
    assert len(stage.sent("c2")) == 2


async def test_a_verdict_that_another_passed_meanwhile_is_told(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    op = (await lost(stage, "c3"))["id"]
    async with (
        seated(browser, stage, replica, role="admin") as first,
        seated(browser, stage, replica, role="admin") as second,
    ):
        late = await opened(second, op)
        await second.page.route("**/outbox?*", lambda route: route.abort())
        item = await opened(first, op)
        await item.get_by_role("button", name="Give it up").click()
        await expect(item).to_have_attribute("data-state", "canceled")
        await late.get_by_role("button", name="It was sent").click()
        await expect(late).to_contain_text(f"operation {op} is canceled: it was given up")


async def test_hostile_text_stays_text(browser: Browser, stage: Stage, replica: Replica) -> None:
    op = (await lost(stage, "c4", EVIL))["id"]
    async with seated(browser, stage, replica, role="admin", viewport={"width": 375, "height": 700}) as desk:
        item = await opened(desk, op)
        await expect(item).to_contain_text("<script>window.pwned=1</script>")
        await expect(item).to_contain_text("\\u{202e}")
        assert await desk.page.evaluate("window.pwned") is None
        assert await desk.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it fits a phone"
        assert desk.complaints == []


async def test_who_is_no_administrator_sees_neither_the_way_nor_the_page(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    async with seated(browser, stage, replica) as desk:
        await expect(desk.page.locator("#who")).to_have_text("Ada")
        await expect(desk.page.locator("#operations")).to_be_hidden()
        await desk.page.goto(f"{desk.url}/ui/operations.html")
        await expect(desk.page.locator("#link")).to_have_text("Only administrators see this page")
