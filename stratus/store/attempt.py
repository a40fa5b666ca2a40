"""Earlier attempts of ops: how long ago the platform first saw a delivery key that is about to be used again."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stratus.store.database import Database

# What marks, in an attempt's detail, a repeat that is safe only because the platform takes the same key again.
SAME_KEY = "same_key"

_FIRST_BEGUN = """
SELECT a.op_id, extract(epoch FROM clock_timestamp() - min(a.started_at))::float8 AS age
  FROM outbox_attempt a
 WHERE a.op_id = ANY($1::bigint[]) AND a.outcome = 'retryable' AND a.detail ? $2::text
   AND NOT EXISTS (SELECT 1 FROM outbox_attempt u WHERE u.op_id = a.op_id AND u.attempt > a.attempt AND u.outcome = 'unknown')
 GROUP BY a.op_id
"""

_OPEN = """
SELECT id, attempt_token FROM channel_outbox
 WHERE channel_id = $1 AND state IN ('sending', 'unknown') AND attempt_token IS NOT NULL ORDER BY id
"""


async def open_attempts(db: Database, channel_id: int) -> list[tuple[int, UUID]]:
    """The channel's ops whose end is not known, or not yet, each with the token of the attempt in question."""
    rows = await db.read(lambda c: c.fetch(_OPEN, channel_id))
    return [(row["id"], row["attempt_token"]) for row in rows]


async def same_key_ages(db: Database, op_ids: Sequence[int]) -> dict[int, float]:
    """Of ops whose outcome is open and whose key the platform takes again: seconds since the first such attempt began.

    What was tried before an operator's verdict on an `unknown` does not count.
    """
    rows = await db.read(lambda c: c.fetch(_FIRST_BEGUN, list(op_ids), SAME_KEY))
    return {row["op_id"]: row["age"] for row in rows if row["age"] is not None}
