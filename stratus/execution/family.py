"""Ends delegated runs that nobody waits for any more, and those that have had their time."""

from __future__ import annotations

import structlog

from stratus.store.database import Database
from stratus.store.family import cancel_orphans
from stratus.store.hints import Hints

BATCH = 50

log = structlog.get_logger(__name__)


class FamilySweeper:
    """`step()` goes one generation down; it is run again at once as long as it finds any."""

    def __init__(self, db: Database, hints: Hints) -> None:
        self._db = db
        self._hints = hints

    async def step(self) -> bool:
        """True when there may be more."""
        ended = await cancel_orphans(self._db, BATCH)
        for one in ended:
            if one.running:
                self._hints.send("cancel", one.session_id)
            self._hints.send("session", one.session_id)
            log.info("run.orphan_canceled", session=one.session_id, asked=one.running)
        if ended:
            self._hints.send("runs")
            self._hints.send("waiting")
        return bool(ended)
