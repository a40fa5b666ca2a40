"""Ends what was under way on channels that are disabled or deleted: no owner comes to look after it."""

from __future__ import annotations

import structlog

from stratus.store.database import Database
from stratus.store.settle import abandon

_BATCH = 500

log = structlog.get_logger(__name__)


class OffChannels:
    """`step()` settles one batch; any replica may do it. `grace` is in seconds, as in `stratus.delivery.terms.Terms.send_grace`."""

    def __init__(self, db: Database, grace: float) -> None:
        self._db = db
        self._grace = grace

    async def step(self) -> bool:
        """True when there was anything. Raises DatabaseAway."""
        states = await abandon(self._db, self._grace, _BATCH)
        for op_id, state in states.items():
            log.warning("send.abandoned", op=op_id, state=state)
        return bool(states)
