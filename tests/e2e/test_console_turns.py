"""Turns that are lost, parked, handed on or merged, as a person sees them in a real browser. The tests play the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from testbed.replicas import Replica
from testbed.stage import HTTP_ONLY, Stage
from tests.e2e.desk import Desk, seated
from tests.system.player import Player

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

EVIL = """<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>"'`</pre></summary>"""
REORDERED = "rm -rf /safe\u202egnp.exe\u200b"
APPROVAL = str(uuid4())
HASH = "0a" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(stage: Stage) -> AsyncIterator[Replica]:
    """A replica that answers over HTTP only."""
    async with stage.replicas(1, roles=[HTTP_ONLY]) as replicas:
        yield replicas[0]


def call(call_id: str, name: str, args: str = "{}") -> list[NewEvent]:
    shown = {"call_id": call_id, "name": name}
    return [
        NewEvent("message.assistant", {"text": "", "calls": [call_id]}),
        NewEvent("tool.proposed", {**shown, "args": args}),
    ]


def asks(call_id: str, name: str, args: str, approval: str = APPROVAL) -> list[NewEvent]:
    request = {
        "id": approval,
        "call_id": call_id,
        "name": name,
        "args": args,
        "args_hash": HASH,
        "approvers": ["owner"],
    }
    return [
        *call(call_id, name, args),
        NewEvent("approval.requested", {**request, "expires_at": "2030-01-01T12:00:00+00:00"}),
        NewEvent("run.waiting", {"for": [{"approval": approval, "call_id": call_id}]}),
    ]


def row(session: str, name: str, args: str, approval: str = APPROVAL, *, may: bool = True) -> dict[str, Any]:
    return {
        "id": approval,
        "session": session,
        "run": str(uuid4()),
        "agent": "demo",
        "call_id": "c1",
        "name": name,
        "args": args,
        "args_hash": HASH,
        "state": "pending",
        "requested_at": "2030-01-01T11:50:00+00:00",
        "expires_at": "2030-01-01T12:00:00+00:00",
        "may_decide": may,
    }


async def begun(desk: Desk, stage: Stage, text: str = "go") -> Player:
    await desk.play_approvals()
    await desk.send(text)
    return await Player.next(stage.db)


async def harmless(desk: Desk, shown: Locator) -> None:
    """Nothing of what is shown became markup or ran."""
    assert await desk.page.evaluate("window.pwned") is None
    assert await shown.locator("script, img, iframe, style, object, embed").count() == 0
    handlers = "nodes => nodes.flatMap((node) => node.getAttributeNames()).filter((name) => name.startsWith('on'))"
    assert await shown.locator("*").evaluate_all(handlers) == []


async def test_text_of_a_lost_attempt_disappears_with_a_note(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        await player.say(["The lost ", "beginning"])
        await expect(desk.turns().locator(".text")).to_have_text("The lost beginning")
        await player.resume("recovered")
        await expect(desk.turns().locator(".resumed")).to_have_text(
            "Taken up again by another worker, attempt 2. What was unfinished is written anew."
        )
        await expect(desk.turns().locator(".text")).to_have_count(0)
        player.attempt = 1
        await player.event("text.delta", part=0, text="a late word of the lost one")
        player.attempt = 2
        await player.say(["The whole answer"])
        for _ in ("live", "reloaded"):
            await expect(desk.turns().locator(".text")).to_have_text("The whole answer")
            await expect(desk.turns().locator(".resumed")).to_have_count(1)
            await desk.page.reload()
        await player.end()
        await desk.ended(1)
        await expect(desk.turns().locator(".text")).to_have_text("The whole answer")
        assert desk.complaints == []


async def test_an_unknown_outcome_is_marked_and_what_was_committed_stays(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        await player.tell(*call("c1", "pay", '{"sum": 1}'))
        await player.event("tool.started", call_id="c1", name="pay")
        await player.event("tool.output", call_id="c1", text="sending")
        tool = desk.turns().locator(".tool")
        await tool.locator("summary").click()
        await expect(tool.locator(".result")).to_have_text("sending")
        await expect(tool.get_by_text("it was not run again")).to_be_hidden()
        await player.resume("recovered")
        lost = {"call_id": "c1", "name": "pay", "outcome": "unknown", "content": "It is not known.", "truncated": False}
        await player.event("tool.failed", **lost)
        await expect(tool.locator(".fold-state")).to_have_text("outcome unknown")
        await expect(tool).to_have_attribute("data-outcome", "unknown")
        await expect(tool.get_by_text("it was not run again")).to_be_visible()
        await player.end()


async def test_an_approval_is_answered_with_its_arguments_in_sight(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        desk.approvals = [row(player.session, "write_file", '{"path": "/a"}')]
        await player.tell(*asks("c1", "write_file", '{"path": "/a"}'))
        card = desk.turns().locator(".approval")
        await expect(card.locator(".args")).to_have_text('{\n  "path": "/a"\n}')
        await expect(desk.turns("waiting").locator(".words")).to_have_text("Waiting for an approval: write_file")
        await expect(card.locator(".approval-words")).to_contain_text("Waits for your answer, until")
        await expect(desk.page.locator("#announcer")).to_contain_text("asks to run write_file")
        await expect(desk.page.locator("#approvals li")).to_have_count(0)

        desk.refusal = {"status": 409, "code": "decided", "detail": "Ben has denied it already."}
        await card.get_by_role("button", name="Deny").click()
        await expect(card.locator(".approval-words")).to_have_text("That did not work. Ben has denied it already.")
        desk.refusal = None
        await card.get_by_label("Note").fill(" only once ")
        await card.get_by_role("button", name="Approve").click()
        await expect(card.get_by_role("button", name="Approve")).to_be_disabled()
        assert desk.decisions == [(APPROVAL, {"decision": "approve", "note": "only once", "args_hash": HASH})]

        await player.event("approval.resolved", id=APPROVAL, call_id="c1", state="approved", by="Ada", note="only once")
        await expect(card.locator(".approval-words")).to_have_text("Approved by Ada: only once.")
        await expect(card.get_by_role("button")).to_have_count(0)
        await expect(desk.turns("waiting").locator(".words")).to_have_text("Waiting for a worker")
        await player.resume("answered")
        await expect(desk.turns("running")).to_have_count(1)
        await expect(desk.turns().locator(".resumed")).to_have_count(0)
        await player.end()
        await desk.ended(1)
        assert desk.serious() == []


async def test_only_who_may_answer_is_offered_the_buttons(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        desk.approvals = [row(player.session, "pay", "{}", may=False)]
        await player.tell(*asks("c1", "pay", "{}"))
        card = desk.turns().locator(".approval")
        await expect(card.locator(".approval-words")).to_contain_text("Waits for somebody else’s answer")
        await expect(card.get_by_role("button")).to_have_count(0)
        await player.end(RunEvent.CANCEL)
        await expect(card.locator(".approval-words")).to_have_text("Not needed any more.")
        assert desk.complaints == []


async def test_what_waits_in_another_chat_is_answered_from_the_list(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    async with seated(browser, stage, replica) as desk:
        await desk.play_approvals()
        desk.approvals = [
            row("another/chat #1", EVIL, f'{{"a": "{REORDERED}"}}'),
            row("x", "not_mine", "{}", str(uuid4()), may=False),
        ]
        await desk.page.reload()
        listed = desk.page.locator("#approvals li")
        await expect(listed).to_have_count(1)
        await expect(desk.page.get_by_role("heading", name="Waiting for your answer")).to_be_visible()
        await expect(listed.locator(".approval-question")).to_have_text(f"demo asks to run {EVIL}")
        await expect(listed.locator(".args")).to_contain_text(r"rm -rf /safe\u{202e}gnp.exe\u{200b}")
        await harmless(desk, listed)
        address = await listed.get_by_role("link").get_attribute("href")
        assert address == "#/s/another%2Fchat%20%231"
        await listed.get_by_role("button", name="Deny").click()
        desk.approvals = []
        await expect(listed).to_have_count(0)
        assert desk.decisions == [(APPROVAL, {"decision": "deny", "args_hash": HASH})]
        assert desk.complaints == []


async def test_hostile_names_and_arguments_stay_text(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        args = '{"path": "' + REORDERED + '", "x": "<script>window.pwned=1</script>"}'
        await player.tell(*asks("c1", EVIL, args))
        await player.event("tool.output", call_id="c1", text=EVIL)
        evil = {"call_id": "c1", "agent": EVIL, "run": str(uuid4()), "session": f"javascript:{EVIL}"}
        await player.event("delegate.started", **evil)
        await player.event("file.produced", call_id="c1", name=EVIL, mime="text/html", size=3, sha256='"><script>')
        await player.event("approval.resolved", id=APPROVAL, call_id="c1", state="denied", by=EVIL, note=EVIL)
        await player.event("history.compacted", left_out=EVIL)
        answer = desk.turns().locator(".answer")
        await expect(answer.locator(".approval-question")).to_have_text(f"The agent asks to run {EVIL}")
        for shown in (answer.locator(".approval .args"), answer.locator(".tool .args")):
            await expect(shown).to_contain_text(r"rm -rf /safe\u{202e}gnp.exe\u{200b}")
        await expect(answer.locator(".approval-words")).to_have_text(f"Denied by {EVIL}: {EVIL}.")
        await expect(answer.locator(".tool .result")).to_have_text(EVIL)
        await expect(answer.locator(".files li")).to_contain_text(EVIL)
        assert await answer.locator(".files a").count() == 0, "no address from what is no hash"
        await expect(answer.locator(".child a")).to_have_text(EVIL)
        assert (await answer.locator(".child a").get_attribute("href") or "").startswith("#/s/javascript%3A")
        await expect(answer.locator(".aside")).to_contain_text(EVIL)
        await harmless(desk, answer)
        await player.end()
        assert desk.complaints == [] and desk.foreign == []


async def test_children_and_files_are_links(browser: Browser, stage: Stage, replica: Replica) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        child = str(uuid4())
        await player.tell(*call("c1", "delegate"))
        await player.event("delegate.started", call_id="c1", agent="researcher", run=child, session="child 1")
        await player.event("run.waiting", **{"for": [{"run": child, "agent": "researcher", "call_id": "c1"}]})
        shown = desk.turns().locator(".child")
        await expect(shown).to_have_text("Handed to researcher working")
        await expect(desk.turns("waiting").locator(".words")).to_have_text("Waiting for another agent: researcher")
        assert await shown.get_by_role("link").get_attribute("href") == "#/s/child%201"
        await player.event("delegate.done", call_id="c1", run=child, outcome="failed")
        await expect(shown).to_have_text("Handed to researcher failed")
        await player.resume("answered")
        sha256 = "0f" * 32
        await player.event("file.produced", call_id="c1", name="plan.txt", mime="text/plain", size=3, sha256=sha256)
        link = desk.turns().locator(".files").get_by_role("link", name="plan.txt")
        assert await link.get_attribute("href") == f"/runs/{player.run}/files/{sha256}"
        assert await link.get_attribute("download") == "plan.txt"
        await player.end()
        assert desk.complaints == []


async def test_a_message_that_the_running_turn_takes_up_is_shown_in_it(
    browser: Browser, stage: Stage, replica: Replica
) -> None:
    async with seated(browser, stage, replica) as desk:
        player = await begun(desk, stage)
        await player.tell(*call("c1", "clock"))
        await desk.send("and hurry")
        await desk.ended(1, "queued")
        await player.merged()
        await expect(desk.turns()).to_have_count(1)
        assert await desk.asked() == ["go", "and hurry"]
        await player.say(["At once."])
        await player.end()
        await desk.ended(1)
        assert desk.complaints == []
