"""The waiting that all tests do."""

from __future__ import annotations

import itertools

import pytest

from testbed.eventually import eventually
from testbed.sockets import ReservedPort, listen


async def test_it_answers_the_first_truthy_value_of_either_kind_of_check() -> None:
    numbers = itertools.count()

    async def later() -> int:
        return next(numbers)

    assert await eventually(later) == 1
    assert await eventually(lambda: next(numbers) > 3) is True


async def test_it_says_what_was_waited_for_and_what_came_last() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: rain \(last: 0\)"):
        await eventually(lambda: 0, timeout=0.05, what="rain")


def test_reserved_ports_differ_and_can_be_listened_on() -> None:
    with ReservedPort() as one, ReservedPort() as other:
        assert one.number != other.number
        listen(one.number).close()
        listen(one.number).close()
