"""Real turns in a real browser: one that a person approves, one that hands work on, one whose worker is killed."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from testbed.postgres import TestCluster
from testbed.replicas import Replica
from testbed.stage import WORKER_OFF, Stage, shared_stage
from tests.e2e.desk import Desk, seated

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

ECHO = "I am the demo model, and I only echo."


async def ask(desk: Desk, agent: str, text: str) -> None:
    await desk.page.reload()
    await desk.page.get_by_label("Agent", exact=True).select_option(agent)
    await desk.send(text)


@pytest.mark.parametrize(("answer", "state", "words"), [("Approve", "done", "Approved"), ("Deny", "denied", "Denied")])
async def test_a_person_answers_and_the_turn_goes_on(
    browser: Browser, stage: Stage, replica: Replica, answer: str, state: str, words: str
) -> None:
    await stage.add_agent("careful", tools=["current_time"], approve=["current_time"])
    async with seated(browser, stage, replica) as desk:
        await ask(desk, "careful", "tool")
        await desk.ended(1, "waiting")
        card = desk.turns().locator(".approval")
        await expect(card.locator(".approval-question")).to_have_text("The agent asks to run current_time")
        await card.get_by_label("Note").fill("seen")
        await card.get_by_role("button", name=answer).click()
        await desk.ended(1)
        await expect(card.locator(".approval-words")).to_have_text(f"{words} by Ada: seen.")
        for _ in ("live", "reloaded"):
            await expect(desk.turns().locator(".tool .fold-state")).to_have_text(state)
            await desk.page.reload()
        assert desk.complaints == []


async def test_a_second_answer_is_told_the_first(browser: Browser, stage: Stage, replica: Replica) -> None:
    await stage.add_agent("careful", tools=["current_time"], approve=["current_time"])
    async with seated(browser, stage, replica) as desk:
        await ask(desk, "careful", "tool")
        card = desk.turns().locator(".approval")
        await expect(card.get_by_role("button", name="Deny")).to_be_visible()
        other = await desk.page.context.new_page()
        await other.goto(f"{replica.url}/ui/#/new")
        listed = other.locator("#approvals li")
        await expect(listed.locator(".approval-question")).to_have_text("careful asks to run current_time")
        await listed.get_by_role("button", name="Approve").click()
        await desk.ended(1)
        await expect(listed).to_have_count(0)
        await expect(card.locator(".approval-words")).to_have_text("Approved by Ada.")


async def test_work_that_is_handed_on_is_a_link_to_its_chat(browser: Browser, stage: Stage, replica: Replica) -> None:
    stage.model.script(
        {"tools": [{"name": "delegate", "args": {"agent": "demo", "task": "count"}}]}, {"text": "There."}
    )
    await stage.add_agent("boss", "fake", tools=["delegate"], delegates=["demo"])
    async with seated(browser, stage, replica) as desk:
        await ask(desk, "boss", "go")
        await desk.ended(1)
        await expect(desk.turns().locator(".child")).to_have_text("Handed to demo done")
        await desk.turns().locator(".child a").click()
        await expect(desk.turns("completed").locator(".answer")).to_contain_text(ECHO)
        assert await desk.asked() == ["count"]
        assert desk.complaints == []


async def test_a_turn_whose_worker_is_killed_goes_on_in_sight(browser: Browser, cluster: TestCluster) -> None:
    async with (
        shared_stage(cluster) as stage,  # of its own: the module's replica would execute the turn as well
        stage.replicas(2, roles=[WORKER_OFF, {}]) as replicas,
        seated(browser, stage, replicas[0]) as desk,
    ):
        await stage.add_agent()
        await ask(desk, "demo", "slow 8 over the loss")
        await expect(desk.turns("running").locator(".text")).to_contain_text("You")
        await replicas[1].kill()
        replicas[
            1
        ].start()  # the note is looked for from now on, not from when it is ready: the turn may have ended by then
        note = "Taken up again by another worker, attempt 2. What was unfinished is written anew."
        await expect(desk.turns().locator(".resumed")).to_have_text(note)
        await desk.ended(1)
        [answer] = await desk.answers()
        assert answer.count(ECHO) == 1 and answer.count("You said:") == 1
        await desk.page.reload()
        await desk.ended(1)
        assert [text.count(ECHO) for text in await desk.answers()] == [1]
        assert desk.serious() == []
