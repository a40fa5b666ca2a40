"""The steps of the backoff and what jitter may do to them."""

from __future__ import annotations

import pytest

from stratus.domain.retry import delay_seconds


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (6, 32), (7, 60), (8, 60), (10_000, 60), (0, 1), (-3, 1)]
)
def test_doubles_up_to_a_minute(attempt: int, seconds: float) -> None:
    assert delay_seconds(attempt, 0.0) == seconds


@pytest.mark.parametrize("attempt", [1, 5, 50])
def test_jitter_lengthens_by_up_to_a_quarter(attempt: int) -> None:
    base = delay_seconds(attempt, 0.0)
    assert delay_seconds(attempt, 0.5) == base * 1.125
    assert delay_seconds(attempt, 1.0) == base * 1.25
