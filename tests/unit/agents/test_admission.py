"""Permits for requests in flight: in order of arrival, within both limits, and none left behind."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from stratus.agents.admission import Admission, Ticket


def admitted(*tickets: Ticket) -> list[bool]:
    return [ticket.permit.done() for ticket in tickets]


async def test_places_are_given_in_order_of_arrival() -> None:
    admission = Admission(1)
    with ExitStack() as stack:
        first = stack.enter_context(admission.ticket("a", None))
        with admission.ticket("b", None) as second:
            with admission.ticket("c", None) as third:
                assert admitted(first, second, third) == [True, False, False]
                stack.close()
                assert admitted(second, third) == [True, False]
            assert admission.waiting == 0
        assert admission.in_flight == 0


async def test_an_agent_at_its_limit_holds_up_nobody_else_and_keeps_its_place() -> None:
    admission = Admission(2)
    with admission.ticket("a", 1) as first, admission.ticket("a", 1) as second, ExitStack() as stack:
        other = stack.enter_context(admission.ticket("b", None))
        with admission.ticket("c", None) as last:
            assert admitted(first, second, other, last) == [True, False, True, False]
            stack.close()
            assert admitted(second, last) == [False, True]


async def test_who_stops_waiting_leaves_no_permit_behind() -> None:
    admission = Admission(1)

    async def wait() -> None:
        with admission.ticket("a", None) as ticket:
            while not await ticket.admitted(60):
                pass

    with admission.ticket("a", None):
        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert admission.waiting == 3
        for task in waiting[:2]:
            task.cancel()
        await asyncio.wait(waiting[:2])
        assert admission.waiting == 1
    await waiting[2]
    assert (admission.in_flight, admission.waiting) == (0, 0)


async def test_who_is_canceled_at_the_moment_of_its_turn_gives_the_permit_on() -> None:
    admission = Admission(1)
    entered = asyncio.Event()

    async def wait() -> None:
        with admission.ticket("a", None) as ticket:
            await ticket.admitted(60)
            entered.set()

    with admission.ticket("a", None):
        unlucky, next_one = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
    unlucky.cancel()  # it has the permit by now, and has not run since
    await next_one
    assert entered.is_set() and unlucky.cancelled()
    assert (admission.in_flight, admission.waiting) == (0, 0)


async def test_waiting_has_an_end() -> None:
    admission = Admission(1)
    with admission.ticket("a", None), admission.ticket("b", None) as second:
        assert not await second.admitted(0.01)
