"""Named points in the code where a test may kill, stop, delay or fail the process; inert unless switched on.

`STRATUS_FAILPOINTS="finish.before_commit=kill,claim.after_commit=stop"` arms them; `config.py` refuses that outside of tests.
An action may be limited to its first n hits, `name=kill*1`, and may begin at the m-th: `name=kill*1@3`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping


class FailpointError(RuntimeError):
    """What the action `raise` raises; the code under test treats it like any unexpected error."""


class Failpoints:
    """Looks up a point by name; with nothing armed a hit costs one dict lookup."""

    def __init__(self, armed: Mapping[str, str] | None = None) -> None:
        self._armed = {name: _parse(action) for name, action in (armed or {}).items()}
        self._hits: dict[str, int] = {}

    async def hit(self, name: str) -> None:
        """Carry out what is armed for `name`: kill, stop, raise, or sleep:SECONDS."""
        armed = self._armed.get(name)
        if armed is None:
            return
        action, first, last = armed
        self._hits[name] = nth = self._hits.get(name, 0) + 1
        if nth < first or (last is not None and nth > last):
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "raise":
            raise FailpointError(name)
        elif action.startswith("sleep:"):
            await asyncio.sleep(float(action.removeprefix("sleep:")))


def _parse(action: str) -> tuple[str, int, int | None]:
    """The action, and the first and last of the hits that it is for."""
    action, _, start = action.partition("@")
    name, _, times = action.partition("*")
    if name not in {"kill", "stop", "raise"} and not name.startswith("sleep:"):
        raise ValueError(f"unknown failpoint action {name!r}")
    first = int(start) if start else 1
    return name, first, first + int(times) - 1 if times else None
