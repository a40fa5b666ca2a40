"""Drafts on real replicas: the answer grows in one message, and comes in a fresh one where nobody knows what that message says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from testbed.fakes.controls import Gate
from testbed.invariants import violations
from testbed.postgres import TestCluster
from testbed.replicas import eventually
from testbed.stage import OWNER_OFF, WORKER_OFF, Stage, shared_stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The test platform's Limits.edit_interval_seconds.
INTERVAL = 0.2
STATES = "SELECT kind, state FROM channel_outbox WHERE address ->> 'chat' = $1 ORDER BY lane_seq"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """One replica owns the channel, another runs the turns; each test has a chat of its own."""
    async with shared_stage(cluster) as made:
        await made.add_agent(model="fake")
        await made.add_channel(options={"drafts": "direct"})
        async with made.replicas(roles=[WORKER_OFF, OWNER_OFF]) as replicas:
            await made.owned_by(replicas[0])
            yield made
            if request.session.testsfailed:
                replicas.print_logs()


def log(stage: Stage, chat: str) -> list[dict[str, Any]]:
    return [one for one in stage.platform.log if one["chat"] == chat]


def texts(stage: Stage, chat: str) -> dict[str, str]:
    """What stands in the chat: each message with its last text."""
    return {one["message_id"]: one["text"] for one in log(stage, chat)}


async def ops(stage: Stage, chat: str) -> list[tuple[str, str]]:
    return [(row["kind"], row["state"]) for row in await stage.rows(STATES, chat)]


async def settled(stage: Stage, chat: str) -> list[tuple[str, str]]:
    """Wait for the end of the chat's turns and ops; returns the ops."""

    async def at_rest() -> bool:
        found = await ops(stage, chat)
        ended = await stage.value(
            "SELECT bool_and(finished_at IS NOT NULL) FROM agent_run WHERE reply_to ->> 'chat' = $1", chat
        )
        return bool(ended) and bool(found) and all(state not in ("pending", "sending") for _, state in found)

    await eventually(at_rest, timeout=20, what=f"chat {chat} at rest")
    return await ops(stage, chat)


async def drafted(stage: Stage, chat: str, count: int = 1) -> None:
    await eventually(
        lambda: sum(one["kind"] == "draft_update" for one in log(stage, chat)) >= count,
        timeout=20,
        what=f"{count} drafts in {chat}",
    )


def speak(stage: Stage, chat: str, text: str, *, seconds: float) -> None:
    """The model's answer to `chat`, spread over so many seconds."""
    pieces = len(text) / 4
    stage.model.script({"text": text}, match=f"for {chat}", chunk=4, delay=seconds / pieces)


def numbered(count: int) -> str:
    return " ".join(f"word{number:03}" for number in range(count))


async def test_an_answer_grows_in_its_message_and_ends_there(stage: Stage) -> None:
    answer = numbered(60)
    speak(stage, "grow", answer, seconds=3)
    await stage.say("for grow", "grow")
    await settled(stage, "grow")
    found = log(stage, "grow")
    assert [one["kind"] for one in found] == ["draft_update"] * (len(found) - 1) + ["send_reply"] and len(found) > 4
    assert texts(stage, "grow") == {found[0]["message_id"]: answer}
    assert [one["edit"] for one in found] == [False] + [True] * (len(found) - 1)
    shown = [one["text"].removesuffix(" …") for one in found]
    assert all(later.startswith(earlier) and later != earlier for earlier, later in zip(shown, shown[1:], strict=False))
    assert found[0]["reply_to"] and all(one["text"].endswith(" …") for one in found[:-1])


async def test_a_short_turn_has_no_drafts(stage: Stage) -> None:
    await stage.say("hello", "short")
    await settled(stage, "short")
    assert [one["kind"] for one in log(stage, "short")] == ["send_reply"]


async def test_many_tokens_a_second_are_at_most_one_edit_an_interval(stage: Stage) -> None:
    text = "x" * 1200
    stage.model.script({"text": text}, match="for flood", chunk=1, delay=0.0025)
    began = time.monotonic()
    await stage.say("for flood", "flood")
    await settled(stage, "flood")
    edits = sum(one["kind"] == "draft_update" for one in log(stage, "flood"))
    assert 2 <= edits <= (time.monotonic() - began) / INTERVAL
    assert list(texts(stage, "flood").values()) == [text]


async def test_a_long_answer_goes_on_below_its_first_piece(stage: Stage) -> None:
    answer = numbered(900)
    stage.model.script({"text": answer}, match="for long", chunk=50, delay=0.02)
    await stage.say("for long", "long")
    await settled(stage, "long")
    stands = list(texts(stage, "long").values())
    assert "".join(stands) == answer and len(stands) == 2
    assert max(len(one["text"]) for one in log(stage, "long")) <= 4096


def parked(stage: Stage, chat: str, text: str) -> Gate:
    """The platform holds the edit with this text, and makes it when the gate is opened."""
    return stage.platform.controls.hold(chat, {"kind": "draft_update", "chat": chat, "text": {"contains": text}})


async def test_an_edit_that_hangs_at_the_platform_lands_only_on_the_abandoned_preview(stage: Stage) -> None:
    answer = numbered(40)
    speak(stage, "hang", answer, seconds=2)
    gate = parked(stage, "hang", "word020")
    await stage.say("for hang", "hang")
    found = await settled(stage, "hang")
    assert gate.entered == 1 and found[-2:] == [("draft_update", "unknown"), ("send_reply", "sent")]
    stage.platform.controls.release("hang")
    await eventually(lambda: log(stage, "hang")[-1]["kind"] == "draft_update", what="the late edit")
    preview, last = texts(stage, "hang").items()
    assert last[1] == answer and "word020" in preview[1] and preview[1].endswith(" …")


async def test_a_flood_wait_ends_the_drafts_and_the_answer_comes_after_it(stage: Stage) -> None:
    answer = numbered(80)
    speak(stage, "wait", answer, seconds=4)
    fault = stage.platform.controls.fault(
        {"kind": "draft_update", "chat": "wait", "text": {"contains": "word030"}}, 429, times=None, retry_after=6
    )
    await stage.say("for wait", "wait")
    found = await settled(stage, "wait")
    assert fault.hits == 1, "an edit in the time that the platform asked for"
    assert found[-2:] == [("draft_update", "canceled"), ("send_reply", "sent")]
    assert list(texts(stage, "wait").values()) == [answer]


async def test_a_preview_that_is_gone_ends_the_drafts_and_the_answer_is_a_message(stage: Stage) -> None:
    answer = numbered(60)
    speak(stage, "gone", answer, seconds=3)
    stage.platform.controls.fault({"kind": "draft_update", "chat": "gone", "text": {"contains": "word020"}}, 400)
    await stage.say("for gone", "gone")
    found = await settled(stage, "gone")
    assert found[-2:] == [("draft_update", "failed"), ("send_reply", "sent")]
    assert log(stage, "gone")[-1]["edit"] is False and list(texts(stage, "gone").values())[-1] == answer


async def test_an_answer_that_may_not_edit_its_preview_is_a_message(stage: Stage) -> None:
    answer = numbered(40)
    speak(stage, "late", answer, seconds=2)
    stage.platform.controls.fault({"kind": "send_reply", "chat": "late"}, 400)
    await stage.say("for late", "late")
    assert (await settled(stage, "late"))[-1] == ("send_reply", "sent")
    assert log(stage, "late")[-1]["edit"] is False and list(texts(stage, "late").values())[-1] == answer


async def test_a_group_has_no_drafts_by_default(stage: Stage) -> None:
    speak(stage, "group", numbered(40), seconds=2)
    await stage.say("for group", "group", direct=False, addressed=True)
    await settled(stage, "group")
    assert [one["kind"] for one in log(stage, "group")] == ["send_group_reply"]


async def test_a_turn_that_is_stopped_leaves_no_preview_that_seems_to_go_on(stage: Stage) -> None:
    speak(stage, "stop", numbered(400), seconds=20)
    await stage.say("for stop", "stop")
    await drafted(stage, "stop", 2)
    await stage.say("/stop", "stop")
    await settled(stage, "stop")
    preview = next(iter(texts(stage, "stop").values()))
    assert preview.startswith("word000") and not preview.endswith("…")


async def test_nothing_is_violated_at_rest(stage: Stage) -> None:
    assert await violations(stage.db, at_rest=True) == {}


async def test_owners_that_die_are_followed_in_the_same_message_and_fenced_in_the_middle_of_an_edit(
    cluster: TestCluster,
) -> None:
    async with shared_stage(cluster) as stage:
        await stage.add_agent(model="fake")
        await stage.add_channel(options={"drafts": "direct"})
        async with stage.replicas(roles=[OWNER_OFF, WORKER_OFF, WORKER_OFF, WORKER_OFF]) as replicas:
            owners = list(replicas)[1:]
            first = await stage.owner_among(owners)
            answer = numbered(300)
            speak(stage, "die", answer, seconds=20)
            await stage.say("for die", "die")
            await drafted(stage, "die", 2)
            await first.kill()
            before = len(log(stage, "die"))
            owners.remove(first)
            second = await stage.owner_among(owners)
            await drafted(stage, "die", before + 2)
            assert len(texts(stage, "die")) == 1, "the new owner goes on in the same message"

            gate = stage.platform.controls.hold("die", {"kind": "draft_update", "chat": "die"})
            await eventually(lambda: gate.entered == 1, what="an edit parked at the platform")
            await second.kill()
            owners.remove(second)
            await stage.owned_by(owners[0])
            found = await settled(stage, "die")
            assert found[-2:] == [("draft_update", "unknown"), ("send_reply", "sent")]
            stage.platform.controls.release("die")
            await eventually(lambda: log(stage, "die")[-1]["kind"] == "draft_update", what="the late edit")
            preview, last = list(texts(stage, "die").values())
            assert last == answer and preview.endswith(" …")
            shown = [one["text"].removesuffix(" …") for one in log(stage, "die")[:-1]]
            assert all(later.startswith(earlier) for earlier, later in zip(shown, shown[1:], strict=False))
            assert await violations(stage.db, at_rest=True) == {}
