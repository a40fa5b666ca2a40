"""The question that an adapter must ask before each further call of an op, and what is known while it is being asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stratus.domain.errors import LeaseLost


class GuardRefused(LeaseLost):
    """This op may not call the platform any more."""


class OpGuard:
    """The adapter's `Guard` for one op.

    `shut` is True from the question until a yes: what came before it was proven not to have delivered the op, so as long as it is
    shut nothing of the op can be at the platform, whatever the adapter then raises.
    """

    def __init__(self, ask: Callable[[], Awaitable[bool]]) -> None:
        self._ask = ask
        self.shut = False

    async def __call__(self) -> None:
        """Raises GuardRefused, or DatabaseAway when nobody can tell."""
        self.shut = True
        if not await self._ask():
            raise GuardRefused("the channel is another's, was stopped, or the attempt's time is over")
        self.shut = False
