"""How long to wait before the next attempt."""

from __future__ import annotations

_MAX_SECONDS = 60.0
_JITTER_SHARE = 0.25


def delay_seconds(attempt: int, jitter: float) -> float:
    """Seconds to wait after attempt number `attempt` (from 1): 1, 2, 4 … at most 60, and up to a quarter more.

    `jitter` is a number from 0 to 1 that the caller draws; 0 gives exactly the steps above. It only ever lengthens the
    wait, at the cap as well, so that those who failed together do not return together.
    """
    steps = min(max(attempt, 1) - 1, 6)
    return min(2.0**steps, _MAX_SECONDS) * (1 + _JITTER_SHARE * jitter)
