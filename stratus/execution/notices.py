"""What a tool wants a person to be told on the way: addressed to the chat where they are, in pieces that the platform takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratus.agents.tools import Notice
from stratus.channel.values import Limits
from stratus.domain.chain import notification
from stratus.domain.values import ReplyTo
from stratus.store.database import Database
from stratus.store.park import asks_at
from stratus.store.plan import NewOp, addressed
from stratus.store.principal import reached_at
from stratus.store.run import ClaimedRun


class Notifier:
    """For the person on whose behalf one run acts."""

    def __init__(self, db: Database, claimed: ClaimedRun, limits: Callable[[str], Limits]) -> None:
        self._db = db
        self._claimed = claimed
        self._limits = limits

    async def ops(self, call_id: str, notices: Sequence[Notice]) -> tuple[list[NewOp], str | None]:
        """The ops of a call's notices, or why there is nowhere to send them. The same call makes the same ops, so that a repeat tells once."""
        ops: list[NewOp] = []
        for number, notice in enumerate(notices):
            to = await self._address(notice.channel)
            if to is None:
                where = f"on the channel {notice.channel!r}" if notice.channel else "on any channel"
                return [], f"The person cannot be reached {where}: they have not written there."
            key = f"notify:{self._claimed.run}:{call_id}:{number}"
            ops += addressed(notification(notice.text, self._limits(to.platform), key), to, self._claimed.lease.run_id)
        return ops, None

    async def _address(self, channel: str | None) -> ReplyTo | None:
        if channel is None and (here := await asks_at(self._db, self._claimed.lease.run_id)) is not None:
            return here
        if self._claimed.principal_id is None:
            return None
        return await reached_at(self._db, self._claimed.principal_id, channel)
