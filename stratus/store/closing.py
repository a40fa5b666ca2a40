"""Closes what an ended run leaves open: its tool calls, its approvals and their prompts, in the transaction that ends it."""

from __future__ import annotations

from collections.abc import Sequence

from stratus.store.database import Connection
from stratus.store.prompts import close_prompts

# What had begun may have had an effect; what had not, has not.
_CLOSE_CALLS = """
UPDATE tool_call SET state = CASE WHEN state = 'started' THEN 'unknown' ELSE 'failed' END, ended_at = clock_timestamp()
 WHERE run_id = ANY($1) AND state IN ('proposed', 'awaiting', 'approved', 'started')
"""

_CLOSE_APPROVALS = """
WITH open AS (
    SELECT id, state FROM approval WHERE run_id = ANY($1) AND state IN ('pending', 'approved') ORDER BY id FOR UPDATE
), closed AS (
    UPDATE approval a SET state = 'closed', decided_at = coalesce(a.decided_at, clock_timestamp()) FROM open o WHERE a.id = o.id
)
SELECT id FROM open WHERE state = 'pending'
"""


async def close_open(connection: Connection, run_ids: Sequence[int]) -> None:
    """For a caller that holds the sessions of these runs and ends them."""
    if not run_ids:
        return
    await connection.execute(_CLOSE_CALLS, list(run_ids))
    unanswered = await connection.fetch(_CLOSE_APPROVALS, list(run_ids))
    await close_prompts(connection, [row["id"] for row in unanswered])
