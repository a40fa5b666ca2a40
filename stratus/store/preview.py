"""A run's preview, the message that its drafts are shown in: which message an answer takes over, and the edit that ends one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from stratus.domain.chain import PREVIEW, SETTLES
from stratus.store.database import Connection
from stratus.store.plan import NewOp, plan

# In an attempt's detail: the platform would not edit the preview, so the op is sent as a message of its own.
REFUSED = "preview_refused"

# The preview is what the run has said last in that place. It is clean if its last edit is known: sent, or passed over before it left.
_CLEAN = """
SELECT o.id, n.message_id, n.shown
  FROM channel_outbox o
 CROSS JOIN LATERAL (
       SELECT d.kind, d.state, d.address, d.error, d.payload ->> 'shown' AS shown,
              CASE WHEN d.state = 'sent' THEN d.sent_message_id ELSE d.payload ->> 'message_id' END AS message_id
         FROM channel_outbox d
        WHERE d.run_id = o.run_id AND d.channel_id = o.channel_id AND d.lane = o.lane AND d.lane_seq < o.lane_seq
          AND d.kind NOT IN ('edit_prompt', 'reaction')
        ORDER BY d.lane_seq DESC LIMIT 1) n
 WHERE o.id = ANY($1) AND n.kind = 'draft_update' AND n.address = o.address AND n.message_id IS NOT NULL
   AND (n.state = 'sent' OR (n.state = 'canceled' AND n.error ->> 'code' = 'overtaken' AND NOT n.error ? 'resolved_by'))
   AND NOT EXISTS (SELECT 1 FROM outbox_attempt a WHERE a.op_id = o.id AND a.detail ? $2::text)
"""

_UNSETTLED = """
SELECT n.*, r.public_id, r.claims
  FROM unnest($1::bigint[]) AS g(run_id)
 CROSS JOIN LATERAL (
       SELECT d.id, d.run_id, d.channel_id, d.lane, d.kind, d.state, d.address, d.account_key FROM channel_outbox d
        WHERE d.run_id = g.run_id AND d.kind NOT IN ('edit_prompt', 'reaction')
        ORDER BY d.id DESC LIMIT 1) n
  JOIN agent_run r ON r.id = n.run_id
 WHERE n.kind = 'draft_update' AND n.state NOT IN ('unknown', 'failed')
 ORDER BY n.id
"""


async def clean(connection: Connection, takers: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    """For each of these ops (id: how it takes over) whose run has a clean preview: what that changes in its payload.

    For the transaction that has claimed them: from then on nothing of the run's is under way in their lanes.
    """
    rows = await connection.fetch(_CLEAN, list(takers), REFUSED)
    return {
        row["id"]: {"message_id": row["message_id"], **({"text": row["shown"]} if takers[row["id"]] == SETTLES else {})}
        for row in rows
    }


async def settle(connection: Connection, run_ids: Sequence[int]) -> None:
    """Plan, for runs whose rows the caller has locked and that have a preview, the edit after which it no longer says that more will come."""
    if not run_ids:
        return
    rows = await connection.fetch(_UNSETTLED, list(run_ids))
    ops = [
        NewOp(
            channel_id=row["channel_id"],
            lane=row["lane"],
            kind="send_text",
            address=orjson.loads(row["address"]),
            payload={"text": "", "markdown": True, PREVIEW: SETTLES},
            delivery_key=f"settle:{row['public_id']}:{row['claims']}",
            run_id=row["run_id"],
            account_key=row["account_key"],
        )
        for row in rows
    ]
    await plan(connection, ops)
