"""What a tool wants a person to be told on the way: addressed to the chat where they are, in pieces that the platform takes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from stratus.agents.tools import Notice
from stratus.channel.registry import adapter_class
from stratus.channel.values import Limits
from stratus.domain.chain import notification, reaction
from stratus.domain.values import ReplyTo
from stratus.store.database import Database
from stratus.store.notification import KEPT_HOURS, REFUSED, fingerprint, made_before, reached_at
from stratus.store.park import asks_at
from stratus.store.plan import NewOp, Once, addressed
from stratus.store.run import ClaimedRun

_AGAIN = f"This key was used in the last {KEPT_HOURS} hours: the person knows already, so nothing was sent."


@dataclass(frozen=True)
class Told:
    """The ops of a call's notices; or why there is nowhere to send them (`problem`), or what happened `instead`."""

    ops: Sequence[NewOp] = ()
    problem: str | None = None
    instead: str | None = None


class Notifier:
    """For the person on whose behalf one run acts."""

    def __init__(self, db: Database, claimed: ClaimedRun, limits: Callable[[str], Limits]) -> None:
        self._db = db
        self._claimed = claimed
        self._limits = limits

    async def told(self, call_id: str, notices: Sequence[Notice]) -> Told:
        """Plan a call's notices. The same call makes the same ops, so that a repeat tells once."""
        ops: list[NewOp] = []
        for number, notice in enumerate(notices):
            of = f"{self._claimed.run}:{call_id}:{number}"
            told = self._reaction(notice.text, of) if notice.reaction else await self._message(notice, of)
            if told.problem is not None or told.instead is not None:
                return told
            ops += [replace(op, after=None if op.after is None else op.after + len(ops)) for op in told.ops]
        return Told(ops)

    def _reaction(self, emoji: str, of: str) -> Told:
        to = self._claimed.reply_to
        if to is None or to.message_id is None:
            return Told(problem="There is no message on a platform to react to.")
        if not hasattr(adapter_class(to.platform), "react"):
            return Told(problem=f"There are no reactions on {to.platform}.")
        return Told(addressed([reaction(emoji, to.message_id, f"react:{of}")], to, self._claimed.lease.run_id))

    async def _message(self, notice: Notice, of: str) -> Told:
        to, refused = await self._address(notice.channel)
        if to is None:
            where = f"on the channel {notice.channel!r}" if notice.channel else "on any channel"
            return Told(problem=f"The person cannot be reached {where}: they have not written there.")
        if refused:
            return Told(problem=f"The person cannot be reached: {REFUSED}.")
        limits = self._limits(to.platform)
        if notice.key is None:
            return Told(addressed(notification(notice.text, limits, f"notify:{of}"), to, self._claimed.lease.run_id))
        named = UUID(bytes=hashlib.sha256(of.encode()).digest()[:16])
        planned = notification(notice.text, limits, f"notification:{named}")
        once = Once(self._target(to), notice.key, named, fingerprint(notice.text), len(planned))
        if await made_before(self._db, once):
            return Told(instead=_AGAIN)
        ops = addressed(planned, to, self._claimed.lease.run_id)
        return Told([replace(op, once=once) for op in ops])

    def _target(self, to: ReplyTo) -> str:
        """Within which an agent's keys are told apart: its person, or where there is none the chat."""
        whom = self._claimed.principal_id or f"{to.channel_id}:{to.lane()}"
        return f"agent:{self._claimed.agent_id}:{whom}"

    async def _address(self, channel: str | None) -> tuple[ReplyTo | None, bool]:
        if channel is None and (here := await asks_at(self._db, self._claimed.lease.run_id)) is not None:
            return here, False  # they have just written there
        if self._claimed.principal_id is None:
            return None, False
        return await reached_at(self._db, self._claimed.principal_id, channel)
