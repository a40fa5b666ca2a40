"""What channels have to do now: ops to send, and turns whose answers are to be shown as they are written."""

from __future__ import annotations

from collections.abc import Sequence

from stratus.store.database import Database
from stratus.store.inbox import ChannelLease

# A run that answers on a channel is one whose events its owner shows.
_STIRRING = """
WITH answering AS (
    SELECT DISTINCT (r.reply_to ->> 'channel_id')::bigint AS id FROM agent_run r WHERE r.state = 'running'
)
SELECT c.id, EXISTS (SELECT 1 FROM channel_outbox o
                      WHERE o.channel_id = c.id AND o.state IN ('pending', 'sending') AND o.not_before <= stratus_now()
                        AND (o.state = 'sending'
                             OR NOT EXISTS (SELECT 1 FROM channel_rate h
                                             WHERE h.channel_id = o.channel_id AND h.next_at > stratus_now()
                                               AND h.scope IN ('', o.lane, split_part(o.lane, chr(31), 1) || chr(31))))) AS due,
       a.id IS NOT NULL AS live
  FROM unnest($1::bigint[]) AS c(id) LEFT JOIN answering a ON a.id = c.id
"""


async def stirring(db: Database, leases: Sequence[ChannelLease]) -> tuple[list[int], list[int]]:
    """Of these channels: those with an op to send now, or one under way, and those on which a running run answers; one statement for all."""
    rows = await db.read(lambda c: c.fetch(_STIRRING, [lease.channel_id for lease in leases]))
    return [row["id"] for row in rows if row["due"]], [row["id"] for row in rows if row["live"]]
