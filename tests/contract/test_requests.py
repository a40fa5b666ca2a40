"""A turn's model request over every wire: what is tried again, how often and after what wait, and what a person is told instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratus.domain.values import Usage
from stratus.execution import request
from stratus.execution.request import MODEL_TRIES
from testbed.eventually import eventually
from tests.contract.provider_bench import WIRES, opened, user
from tests.contract.request_bench import Requests, conversation

RETRIED: list[tuple[int | str, str]] = [
    (429, "rate_limited"),
    (529, "overloaded"),
    (503, "unavailable"),
    (500, "unavailable"),
    (502, "unavailable"),
    (408, "timeout"),
    ("cut", "connect"),
    ("error", "overloaded"),
]
TOLD: list[tuple[int, str]] = [(401, "auth"), (402, "quota"), (404, "not_found"), (400, "rejected"), (307, "not_found")]
CALLS_A_TOOL = {"tool": {"name": "add", "args": {"a": 1, "b": 2}}}


@pytest.fixture(params=WIRES)
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Requests]:
    async with opened() as bench:
        await bench.ask(
            request.param, user("warm up")
        )  # the SDK is loaded: what follows is measured against short limits
        bench.fake.calls.clear()
        yield Requests(bench, request.param)


@pytest.mark.parametrize(("fault", "code"), RETRIED)
async def test_a_passing_fault_is_tried_again_and_nobody_hears_of_it(
    asked: Requests, fault: int | str, code: str
) -> None:
    asked.bench.fake.fault(fault, times=2, detail={"at": "open"})
    done = await asked.ask()
    assert (done.message.text(), asked.notes.text) == ("echo: good day", "echo: good day")
    assert asked.calls == 3


@pytest.mark.parametrize(("fault", "code"), RETRIED)
async def test_a_lasting_fault_is_tried_four_times_and_then_told(asked: Requests, fault: int | str, code: str) -> None:
    asked.bench.fake.fault(fault, times=None, detail={"at": "open"})
    failed = await asked.fails()
    assert (failed.code, asked.calls) == (code, MODEL_TRIES)
    assert str(failed).endswith(".")
    waits = asked.clock.slept
    assert len(waits) == MODEL_TRIES - 1
    assert all(step <= wait <= step * 1.25 for step, wait in zip([1, 2, 4], waits, strict=True)), waits


@pytest.mark.parametrize(("fault", "code"), TOLD)
async def test_a_fault_that_stays_is_told_at_once(asked: Requests, fault: int, code: str) -> None:
    asked.bench.fake.fault(fault, times=None)
    failed = await asked.fails()
    assert (failed.code, asked.calls, asked.clock.slept) == (code, 1, [])


async def test_waits_of_several_are_spread(asked: Requests) -> None:
    for _ in range(2):
        asked.bench.fake.fault(529, times=3)
        await asked.ask()
    assert len(set(asked.clock.slept)) == len(asked.clock.slept)


async def test_the_provider_says_how_long_to_wait(asked: Requests) -> None:
    asked.bench.fake.fault(429, retry_after=7)
    await asked.ask()
    assert 7 <= sum(asked.clock.slept) <= 8


async def test_a_wait_of_more_than_a_minute_is_told(asked: Requests) -> None:
    asked.bench.fake.fault(429, times=None, retry_after=61)
    failed = await asked.fails()
    assert (failed.code, asked.calls, asked.clock.slept) == ("rate_limited", 1, [])
    assert "wait 61 seconds" in str(failed)


async def test_a_wait_shows_the_watchdog_that_it_is_one(asked: Requests) -> None:
    asked.limits = {"idle_limit_seconds": 8}
    asked.bench.fake.fault(429, retry_after=50)
    await asked.ask()
    assert max(asked.clock.slept) <= 2, "the turn is silent for a quarter of its limit at most"
    assert asked.notes.alive > len(asked.clock.slept)


@pytest.mark.parametrize(("fault", "code"), [("error", "overloaded"), ("cut", "connect")])
async def test_what_was_visible_is_not_said_twice(asked: Requests, fault: str, code: str) -> None:
    asked.bench.fake.fault(fault, times=None, detail={"at": "middle", "chunk": 4})
    failed = await asked.fails(user("a long text to be echoed, in several pieces"))
    assert (failed.code, asked.calls) == (code, 1)
    assert asked.notes.text and "echo: a long text to be echoed, in several pieces".startswith(asked.notes.text)
    assert str(failed).endswith("What you see of the answer is not all of it.")


@pytest.mark.parametrize("fault", ["error", "cut"])
@pytest.mark.parametrize("at", ["middle", "end"])
async def test_a_call_that_was_only_proposed_does_not_stand_in_the_way(asked: Requests, fault: str, at: str) -> None:
    asked.bench.fake.script(CALLS_A_TOOL)
    asked.bench.fake.fault(fault, detail={"at": at, "chunk": 4})
    done = await asked.ask()
    assert [call.name for call in done.message.calls()] == ["add"]
    assert (asked.calls, asked.notes.streamed) == (2, 0)
    assert done.usage.requests == 2, "the broken attempt cost something too"


async def test_a_model_that_does_not_begin_is_asked_again(asked: Requests) -> None:
    asked.limits = {"first_token_limit_seconds": 1}
    gate = asked.bench.fake.gate("g")
    asking = asyncio.create_task(asked.ask())
    await eventually(lambda: gate.entered == 2, what="the second attempt")
    asked.bench.fake.release("g")
    done = await asking
    assert (done.message.text(), asked.notes.text) == ("echo: good day", "echo: good day")
    assert done.usage.requests > done.usage.unreported > 0


async def test_a_model_that_never_begins_is_given_up(asked: Requests) -> None:
    asked.limits = {"first_token_limit_seconds": 0.2}
    asked.bench.fake.fault("silence", times=None, detail={"at": "open"})
    failed = await asked.fails()
    assert (failed.code, len(asked.clock.slept)) == ("timeout", MODEL_TRIES - 1)
    assert "did not begin to answer within 0.2 seconds" in str(failed)
    assert failed.usage == Usage(requests=4, unreported=4, unpriced=4)


async def test_silence_as_long_as_the_turns_own_limit_ends_the_turn(asked: Requests) -> None:
    asked.limits = {"idle_limit_seconds": 0.2}
    asked.bench.fake.gate("g")
    failed = await asked.fails()
    assert (failed.code, str(failed)) == ("idle", "The model said nothing for 0.2 seconds.")
    assert asked.clock.slept == [], "no second attempt"


async def test_silence_in_mid_answer_ends_the_turn(asked: Requests) -> None:
    asked.limits = {"idle_limit_seconds": 1, "first_token_limit_seconds": 30}
    asked.bench.fake.fault("silence", detail={"at": "middle", "chunk": 4})
    failed = await asked.fails()
    assert (failed.code, asked.calls) == ("idle", 1)
    assert asked.notes.text


async def test_time_that_our_own_database_takes_is_not_the_models_silence(asked: Requests) -> None:
    away = asyncio.Event()
    asked.limits = {"idle_limit_seconds": 0.8}
    asked.notes.may_write = away
    asking = asyncio.create_task(asked.ask())
    await eventually(lambda: asked.notes.streamed > 0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 1.2)
    away.set()
    assert (await asking).message.text() == "echo: good day"


@pytest.mark.parametrize("answer", [{"text": "x" * 10_000_000}, {"tool": {"name": "add", "args": "x" * 10_000_000}}])
async def test_an_answer_without_end_is_broken_off(asked: Requests, answer: dict[str, Any]) -> None:
    asked.bench.fake.script(answer, chunk=10_000_000)
    failed = await asked.fails()
    assert (failed.code, asked.calls, asked.notes.streamed) == ("answer_too_long", 1, 0)
    assert "2,000,000 characters" in str(failed)


async def test_a_history_that_is_too_long_is_shortened_between_its_pairs(asked: Requests) -> None:
    asked.bench.fake.fault("context", times=2)
    history = conversation(8)
    before = [message.model_dump_json() for message in history]
    done = await asked.ask(*history)
    assert done.message.text() == "echo: the last question", "the fake refuses what has a call without its result"
    sizes = [logged.call.messages for logged in asked.bench.fake.calls]
    assert sizes[0] > sizes[1] > sizes[2]
    assert done.left_out % 4 == 0 and 16 <= done.left_out < 32
    assert [event.kind for event in asked.notes.events] == ["history.compacted"] * 2
    assert asked.notes.events[0].payload == {"left_out": done.left_out}
    assert f"its first {done.left_out} messages were left out" in str(asked.bench.body())
    assert [message.model_dump_json() for message in history] == before
    assert asked.clock.slept == []


async def test_the_next_step_of_the_turn_does_not_begin_anew(asked: Requests) -> None:
    asked.bench.fake.fault("context", times=1)
    first = await asked.ask(*conversation(8))
    again = await asked.ask(*conversation(8), left_out=first.left_out)
    assert (asked.calls, again.left_out, len(asked.notes.events)) == (3, first.left_out, 1)


async def test_a_history_that_cannot_be_made_short_enough_is_told(asked: Requests) -> None:
    asked.bench.fake.fault("context", times=None)
    failed = await asked.fails(*conversation(40))
    assert (failed.code, asked.calls, asked.clock.slept) == ("context_overflow", 4, [])
    assert "/new" in str(failed) and "messages were left out already" in str(failed)


async def test_a_question_that_is_too_long_by_itself_is_told_at_once(asked: Requests) -> None:
    asked.bench.fake.fault("context", times=None)
    failed = await asked.fails()
    assert (failed.code, asked.calls, asked.notes.events) == ("context_overflow", 1, [])


async def test_who_waits_before_the_next_attempt_holds_up_nobody(asked: Requests) -> None:
    asked.limits = {"max_concurrent": 1}
    asked.clock.held.clear()
    asked.bench.fake.fault(529, "first")
    first = asyncio.create_task(asked.ask(user("first")))
    await eventually(lambda: bool(asked.clock.slept), what="the first one waits")
    assert (await asked.ask(user("second"))).message.text() == "echo: second"
    asked.clock.held.set()
    assert (await first).message.text() == "echo: first"


async def test_no_more_than_the_agents_own_number_are_in_flight(asked: Requests) -> None:
    asked.limits = {"max_concurrent": 2}
    gate = asked.bench.fake.gate("g")
    admission = asked.bench.pool.admission
    asking = [asyncio.create_task(asked.ask(user(f"n{n}"))) for n in range(5)]
    await eventually(lambda: gate.held == 2 and admission.waiting == 3)
    asking[4].cancel()
    await asyncio.gather(asking[4], return_exceptions=True)
    assert (gate.entered, admission.in_flight, admission.waiting) == (2, 2, 2)
    asked.bench.fake.release("g")
    assert [done.message.text() for done in await asyncio.gather(*asking[:4])] == [f"echo: n{n}" for n in range(4)]
    assert (admission.in_flight, admission.waiting) == (0, 0)


async def test_who_waits_too_long_for_a_place_is_told(asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "PERMIT_MAX_SECONDS", 0.1)
    asked.limits = {"max_concurrent": 1, "idle_limit_seconds": 0.2, "first_token_limit_seconds": 0.1}
    with asked.bench.pool.admission.ticket("a", 1):
        failed = await asked.fails()
    assert (failed.code, asked.calls) == ("busy", 0)
    assert asked.notes.alive >= 2, "a wait for a place is no silence"


async def test_a_failed_request_tells_what_it_cost(asked: Requests) -> None:
    asked.bench.fake.fault("error", detail={"at": "middle", "chunk": 4})
    failed = await asked.fails()
    assert failed.usage.requests == 1
    if asked.wire == "anthropic":  # the only one that tells before the end
        assert (failed.usage.input_tokens or 0) > 0
    else:
        assert failed.usage == Usage.unknown()


async def test_a_refused_request_cost_nothing(asked: Requests) -> None:
    asked.bench.fake.fault(429, times=2)
    done = await asked.ask()
    assert (done.usage.requests, done.usage.unreported) == (1, 0)
