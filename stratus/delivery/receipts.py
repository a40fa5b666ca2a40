"""Outcomes on their way into the database: kept until they are stored, however long it is away."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import structlog

from stratus.domain.errors import DatabaseAway
from stratus.effects import Failpoints
from stratus.store import settle
from stratus.store.database import Database
from stratus.store.settle import Outcome

log = structlog.get_logger(__name__)


class Receipts:
    """A bag of outcomes, stored in batches. Storing one again is a no-op, so a lost answer costs nothing."""

    def __init__(self, db: Database, failpoints: Failpoints) -> None:
        self._db = db
        self._failpoints = failpoints
        self._waiting: dict[UUID, Outcome] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep these until they are stored."""
        self._waiting.update({one.token: one for one in outcomes})

    def take(self) -> list[Outcome]:
        """Hand over what has not been stored."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting

    async def store(self) -> list[UUID]:
        """Store what is here; returns the attempts that are settled. Raises DatabaseAway and keeps all."""
        batch = list(self._waiting.values())
        if not batch:
            return []
        await self._failpoints.hit("receipt.before_commit")
        try:
            await self._complete(batch)
        except DatabaseAway:
            raise
        except Exception:  # one bad outcome must not hold up the others for ever
            await self._one_by_one(batch)
        for outcome in batch:
            if self._waiting.get(outcome.token) is outcome:  # evidence that came meanwhile is stored next
                del self._waiting[outcome.token]
        return [outcome.token for outcome in batch]

    async def _one_by_one(self, batch: list[Outcome]) -> None:
        for outcome in batch:
            try:
                await self._complete([outcome])
            except DatabaseAway:
                raise
            except Exception as error:  # its attempt stays open and ends `unknown` past its deadline
                log.error("receipt.unstorable", op=outcome.op_id, error=type(error).__name__)

    async def _complete(self, batch: list[Outcome]) -> None:
        states = await settle.complete(self._db, batch)
        for outcome in batch:
            state = states.get(outcome.op_id)
            if state in ("unknown", "failed"):
                log.warning("send.ended", op=outcome.op_id, state=state, code=outcome.detail.get("code"))
