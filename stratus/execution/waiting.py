"""Ends questions whose time is over, asks lost ones again, and takes up waiting runs for which nothing is open any more; on any replica."""

from __future__ import annotations

from stratus.store.database import Database
from stratus.store.decision import expire
from stratus.store.hints import Hints
from stratus.store.prompts import offer_lost
from stratus.store.waiting import resume_ready

BATCH = 100


class Waiting:
    """`step()` queues one batch."""

    def __init__(self, db: Database, hints: Hints) -> None:
        self._db = db
        self._hints = hints

    async def step(self) -> bool:
        """True when there may be more."""
        expired = await expire(self._db, BATCH)
        resumed = await resume_ready(self._db, BATCH)
        asked = await offer_lost(self._db, BATCH)
        for session_id in {*expired, *resumed}:
            self._hints.send("session", session_id)
        if expired or resumed:
            self._hints.send("runs")
        if expired or asked:
            self._hints.send("outbox")
        return max(len(expired), len(resumed), asked) >= BATCH
