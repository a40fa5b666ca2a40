"""Named points in the code where a test may kill, stop, delay or fail the process; inert unless switched on.

`STRATUS_FAILPOINTS="finish.before_commit=kill,claim.after_commit=stop"` arms them; `config.py` refuses that outside of tests.
An action may be limited to its first n hits: `name=kill*1`.
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

    async def hit(self, name: str) -> None:
        """Carry out what is armed for `name`: kill, stop, raise, or sleep:SECONDS."""
        armed = self._armed.get(name)
        if armed is None:
            return
        action, left = armed
        if left == 0:
            return
        self._armed[name] = (action, left - 1)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif action == "raise":
            raise FailpointError(name)
        elif action.startswith("sleep:"):
            await asyncio.sleep(float(action.removeprefix("sleep:")))


def _parse(action: str) -> tuple[str, int]:
    name, _, times = action.partition("*")
    if name not in {"kill", "stop", "raise"} and not name.startswith("sleep:"):
        raise ValueError(f"unknown failpoint action {name!r}")
    return name, int(times) if times else -1
