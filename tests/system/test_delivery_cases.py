"""The named cases of delivery, on each platform, with real replicas: what is sent once, what is refused, and what is honestly not known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from testbed.invariants import violations
from testbed.postgres import TestCluster
from testbed.replicas import Replica, eventually
from testbed.sides import FILE, FLOOD_SECONDS, SIDES, Sides, sides_on
from testbed.stage import Stage, shared_stage
from tests.system.delivery_cases import Case, open_case

pytestmark = pytest.mark.asyncio(loop_scope="module")

ATTEMPTS = """
SELECT a.outcome, extract(epoch FROM a.started_at)::float8 AS at, a.replica
  FROM outbox_attempt a JOIN channel_outbox o ON o.id = a.op_id WHERE o.channel_id = $1 ORDER BY o.id, a.attempt
"""
# The lease ends early, so that the heir comes while the send may still be under way.
EXPIRE = "UPDATE channel SET lease_until = clock_timestamp() - interval '1 second' WHERE id = $1"
PATIENT = {"STRATUS_SEND_BUDGET": "6s", "STRATUS_CHANNEL_TTL": "9s"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(cluster: TestCluster, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Stage, Sides]]:
    """One replica for the cases that leave it alive."""
    async with shared_stage(cluster) as stage, sides_on(stage) as sides:
        await stage.add_agent()
        async with stage.replicas(1) as replicas:
            yield stage, sides
            if request.session.testsfailed:
                replicas.print_logs()


@pytest_asyncio.fixture(loop_scope="module")
async def alone(cluster: TestCluster) -> AsyncIterator[tuple[Stage, Sides]]:
    """A stage without replicas, for the cases that kill and stop theirs."""
    async with shared_stage(cluster) as stage, sides_on(stage) as sides:
        await stage.add_agent()
        yield stage, sides


@pytest_asyncio.fixture(loop_scope="module", params=SIDES)
async def case(shared: tuple[Stage, Sides], request: pytest.FixtureRequest) -> Case:
    stage, sides = shared
    return await open_case(stage, await sides.make(request.param))


# -- what the platform answers --


async def test_a_flood_wait_in_a_chain_repeats_only_its_link(case: Case) -> None:
    case.side.fault("flood", case.chat, "two")
    await case.put("one", "two", "three")
    await case.sent("one", "two", "three")
    ops = await case.states("sent", "sent", "sent")
    assert case.side.calls(case.chat) == ["one", "two", "two", "three"]
    assert [(op["attempts"], op["attempt_seq"]) for op in ops] == [(1, 1), (1, 2), (1, 1)]
    attempts = await _attempts(case)
    assert attempts[2]["at"] - attempts[1]["at"] >= FLOOD_SECONDS


async def test_a_refused_file_leaves_the_links_before_it_and_cancels_those_after(case: Case) -> None:
    case.side.fault("refused", case.chat, FILE)
    await case.put("one", "two", FILE, "after")
    await case.states("sent", "sent", "failed", "canceled")
    assert case.side.calls(case.chat) == ["one", "two", FILE]
    assert case.side.sent(case.chat) == ["one", "two"]


@pytest.mark.parametrize("fault", ["lost", "reset"])
async def test_an_unknown_link_lets_the_rest_go_and_is_never_there_twice(case: Case, fault: Any) -> None:
    case.side.fault(fault, case.chat, "two")
    await case.put("one", "two", "three")
    await case.states("sent", _lost(case), "sent")
    assert case.side.sent(case.chat) == ["one", "two", "three"]
    _asked_once(case, "one", "two", "three")


async def test_a_lane_goes_on_whatever_became_of_what_was_before(case: Case) -> None:
    case.side.fault("refused", case.chat, "fails")
    case.side.fault("lost", case.chat, "lost")
    await case.put("fails", "canceled")
    await case.put("lost")
    await case.put("last")
    await case.states("failed", "canceled", _lost(case), "sent")
    assert case.side.sent(case.chat) == ["lost", "last"]


# -- who may call --


@pytest.mark.parametrize("name", SIDES)
async def test_an_owner_that_loses_its_channel_in_a_batch_makes_no_further_call(
    alone: tuple[Stage, Sides], name: str
) -> None:
    stage, sides = alone
    case = await open_case(stage, await sides.make(name))
    async with stage.replicas(2, settings=PATIENT) as replicas:
        owner = await _taken_over_in_the_first_call(case, stage, replicas.replicas, "one", "two", "three")
        case.side.release("first")
        owner.resume()
        await case.sent("one", "two", "three")
        await case.states("sent", "sent", "sent")  # the first by its late receipt
        assert case.side.calls(case.chat) == ["one", "two", "three"]
        senders = [f":{owner.pid}:" in one["replica"] for one in await _attempts(case)]
        assert senders == [True, False, False]
        assert await violations(stage.db, at_rest=True) == {}


@pytest.mark.parametrize("name", SIDES)
async def test_a_takeover_with_a_send_in_flight_keeps_the_order_and_takes_the_late_receipt(
    alone: tuple[Stage, Sides], name: str
) -> None:
    stage, sides = alone
    case = await open_case(stage, await sides.make(name))
    async with stage.replicas(2, settings=PATIENT) as replicas:
        owner = await _taken_over_in_the_first_call(case, stage, replicas.replicas, "one", "two")
        await case.put("elsewhere", chat=case.side.chat(2))
        await eventually(lambda: case.side.sent(case.side.chat(2)) == ["elsewhere"], 20, "another lane goes on")
        assert case.side.calls(case.chat) == ["one"]  # the lane waits until the first cannot be under way any more
        case.side.release("first")
        await case.states(_lost(case), "sent", "sent")
        assert case.side.sent(case.chat) == ["one", "two"]
        owner.resume()
        await case.states("sent", "sent", "sent")
        _asked_once(case, "one", "two")
        assert await violations(stage.db, at_rest=True) == {}


@pytest.mark.parametrize("name", SIDES)
async def test_a_kill_between_the_platforms_yes_and_the_receipt_is_unknown_and_sent_once(
    alone: tuple[Stage, Sides], name: str
) -> None:
    stage, sides = alone
    case = await open_case(stage, await sides.make(name))
    await case.put("one", "two")
    async with stage.replicas(1, settings={"STRATUS_FAILPOINTS": "send.after_write=kill*1"}) as [owner]:
        await eventually(lambda: not owner.running(), 30, "the owner died with the platform's answer")
    async with stage.replicas(1):
        await case.states(_lost(case), "sent")
        assert case.side.sent(case.chat) == ["one", "two"]
        _asked_once(case, "one", "two")
        assert await violations(stage.db, at_rest=True) == {}


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "lost"])
async def test_the_plain_text_follows_refused_markup_only_while_the_channel_is_ours(
    alone: tuple[Stage, Sides], owned: bool
) -> None:
    stage, sides = alone
    case = await open_case(stage, await sides.make("telegram"))
    async with stage.replicas(1, settings=PATIENT) as replicas:
        await stage.owned_by(replicas[0])
        held = case.side.hold("first", case.chat, "bold")
        case.side.refuse_markup(case.chat)
        await case.put("**bold**", markdown=True)
        await eventually(lambda: held.entered == 1, what="the call with markup")
        if not owned:
            await _expire(case)
        case.side.release("first")
        [op] = await case.states("sent")
        calls = case.side.calls(case.chat)
        if owned:
            assert calls == ["<b>bold</b>", "**bold**"] and op["attempt_seq"] == 1
        else:  # the attempt ended unsent; the next tenure renders and sends anew
            assert calls == ["<b>bold</b>", "<b>bold</b>"] and op["attempt_seq"] == 2
            assert [one["outcome"] for one in await _attempts(case)] == ["not_sent", "sent"]


def _lost(case: Case) -> str:
    """What becomes of a send whose answer was lost: a platform that knows our keys tells it by an echo, or when it is asked again."""
    return "sent" if case.side.same_key else "unknown"


def _asked_once(case: Case, *texts: str) -> None:
    """The calls were these, in order; only where the platform takes a key again may one have been repeated, at once."""
    calls = case.side.calls(case.chat)
    if case.side.same_key:
        calls = [text for text, before in zip(calls, [None, *calls], strict=False) if text != before]
    assert calls == list(texts)


async def _taken_over_in_the_first_call(case: Case, stage: Stage, replicas: list[Replica], *texts: str) -> Replica:
    """The owner, paused while the platform holds its call for the first text (gate "first"); the other replica has its channel."""
    owner = await stage.owner_among(replicas)
    held = case.side.hold("first", case.chat, texts[0])
    await case.put(*texts)
    await eventually(lambda: held.entered == 1, what="the first call")
    owner.pause()
    await _expire(case)
    await stage.owned_by(next(replica for replica in replicas if replica is not owner))
    return owner


async def _expire(case: Case) -> None:
    await case.db.transact(lambda c: c.execute(EXPIRE, case.channel_id))


async def _attempts(case: Case) -> list[dict[str, Any]]:
    return [dict(row) for row in await case.db.read(lambda c: c.fetch(ATTEMPTS, case.channel_id))]
