"""Which channels have something to send now."""

from __future__ import annotations

from collections.abc import Sequence

from stratus.store.database import Database
from stratus.store.inbox import ChannelLease

_DUE = """
SELECT c.id FROM unnest($1::bigint[]) AS c(id)
 WHERE EXISTS (SELECT 1 FROM channel_outbox o
                WHERE o.channel_id = c.id AND o.state IN ('pending', 'sending') AND o.not_before <= stratus_now()
                  AND (o.state = 'sending'
                       OR NOT EXISTS (SELECT 1 FROM channel_rate h
                                       WHERE h.channel_id = o.channel_id AND h.next_at > stratus_now()
                                         AND h.scope IN ('', o.lane, split_part(o.lane, chr(31), 1) || chr(31)))))
"""


async def due_channels(db: Database, leases: Sequence[ChannelLease]) -> list[int]:
    """Those of these channels that have an op to send now, or one under way; one statement for all of them."""
    rows = await db.read(lambda c: c.fetch(_DUE, [lease.channel_id for lease in leases]))
    return [row["id"] for row in rows]
