"""Approvals: asked for when a turn parks, bound to the arguments that were shown, decided once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from stratus.domain.approval import Approvers
from stratus.store.database import Connection

# The hash is the call's own, so that what is approved is what was shown. Lock order: the caller holds the lease's and the session's row.
_REQUEST = """
INSERT INTO approval (run_id, call_id, args_hash, state, approvers, expires_at)
SELECT c.run_id, c.call_id, c.args_hash, 'pending', a.approvers, clock_timestamp() + make_interval(secs => a.seconds)
  FROM unnest($2::text[], $3::jsonb[], $4::float8[]) WITH ORDINALITY AS a(call_id, approvers, seconds, ordinal)
  JOIN tool_call c ON c.run_id = $1 AND c.call_id = a.call_id
 ORDER BY a.ordinal
RETURNING id, public_id, call_id, encode(args_hash, 'hex') AS args_hash, expires_at
"""

_OFFERED = """
UPDATE approval a SET prompt_op_id = o.id, offers = a.offers + 1
  FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS p(id, delivery_key, channel_id)
  JOIN channel_outbox o ON o.channel_id = p.channel_id AND o.delivery_key = p.delivery_key
 WHERE a.id = p.id
"""


@dataclass(frozen=True)
class NewApproval:
    """A question to be asked about a call that awaits its answer, open for `seconds`."""

    call_id: str
    approvers: Approvers
    seconds: float


@dataclass(frozen=True)
class Requested:
    """A question as it was stored; `args_hash` is hexadecimal."""

    id: int
    public_id: UUID
    call_id: str
    args_hash: str
    expires_at: datetime


async def request(connection: Connection, run_id: int, asked: Sequence[NewApproval]) -> list[Requested]:
    """Ask about calls of a run that parks, in the park's transaction."""
    if not asked:
        return []
    rows = await connection.fetch(
        _REQUEST,
        run_id,
        [one.call_id for one in asked],
        [one.approvers.model_dump_json() for one in asked],
        [one.seconds for one in asked],
    )
    return [Requested(**dict(row)) for row in rows]


async def offered(connection: Connection, prompts: Sequence[tuple[int, int, str]]) -> None:
    """Note which op asks about which approval: (approval id, channel id, delivery key), in the transaction that planned the ops."""
    if prompts:
        await connection.execute(
            _OFFERED, [one[0] for one in prompts], [one[2] for one in prompts], [one[1] for one in prompts]
        )
