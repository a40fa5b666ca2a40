"""Plans outbox ops into their lanes, in the transaction that decided on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stratus.domain.chain import PlannedOp
from stratus.domain.values import ReplyTo
from stratus.store.database import Connection
from stratus.store.log import encode

# Lock order: lanes by (channel, lane), then new rows. A lane's row lock is held to the commit, so lane order is commit order.
_PLAN = """
WITH incoming AS (
    SELECT o.*, nextval(pg_get_serial_sequence('channel_outbox', 'id')) AS id
      FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::jsonb[], $6::jsonb[], $7::text[], $8::text[], $9::int[],
                  $10::bigint[])
           WITH ORDINALITY AS o(channel_id, lane, run_id, kind, address, payload, delivery_key, account_key, after, edits, ordinal)
), numbered AS MATERIALIZED (
    SELECT i.*, row_number() OVER w AS n, count(*) OVER (PARTITION BY i.channel_id, i.lane) AS total
      FROM incoming i WINDOW w AS (PARTITION BY i.channel_id, i.lane ORDER BY i.ordinal)
), lanes AS (
    INSERT INTO outbox_lane (channel_id, lane, last_seq)
    SELECT channel_id, lane, count(*) FROM numbered GROUP BY channel_id, lane ORDER BY channel_id, lane
        ON CONFLICT (channel_id, lane) DO UPDATE SET last_seq = outbox_lane.last_seq + EXCLUDED.last_seq
    RETURNING channel_id, lane, last_seq
)
INSERT INTO channel_outbox
       (id, channel_id, lane, lane_seq, run_id, kind, address, payload, delivery_key, depends_on, account_key, state)
OVERRIDING SYSTEM VALUE
SELECT n.id, n.channel_id, n.lane, l.last_seq - n.total + n.n, n.run_id, n.kind, n.address, n.payload, n.delivery_key,
       coalesce(before.id, n.edits), n.account_key, 'pending'
  FROM numbered n
  JOIN lanes l ON l.channel_id = n.channel_id AND l.lane = n.lane
  LEFT JOIN numbered before ON before.ordinal = n.after
 ORDER BY n.ordinal
    ON CONFLICT (channel_id, delivery_key) DO NOTHING
RETURNING id, channel_id
"""


@dataclass(frozen=True)
class Once:
    """A notification that is made once for each key of a target in a day. `id` names this one, `pieces` counts its ops."""

    target: str
    key: str
    id: UUID
    body_hash: bytes
    pieces: int


@dataclass(frozen=True)
class NewOp:
    """An op to plan. `after` is the index, in the same call, of the op that it depends on.

    `edits` is the id of an earlier op of the same lane, whose message it changes.
    """

    channel_id: int
    lane: str
    kind: str
    address: Mapping[str, Any]
    payload: Mapping[str, Any]
    delivery_key: str
    run_id: int | None = None
    account_key: str | None = None
    after: int | None = None
    edits: int | None = None
    once: Once | None = None


def addressed(planned: Sequence[PlannedOp], to: ReplyTo, run_id: int | None = None) -> list[NewOp]:
    """A chain as ops for the chat that `to` names, answered by the account that it pins."""
    return [
        NewOp(
            channel_id=to.channel_id,
            lane=to.lane(),
            kind=op.kind,
            address={"chat": to.chat, "thread": to.thread},
            payload=op.payload,
            delivery_key=op.delivery_key,
            run_id=run_id,
            account_key=to.account_key,
            after=op.depends_on,
        )
        for op in planned
    ]


async def plan(connection: Connection, ops: Sequence[NewOp]) -> set[int]:
    """Put ops into their lanes in the given order; a known delivery key is a no-op. Returns the channels that got something."""
    if not ops:
        return set()
    rows = await connection.fetch(
        _PLAN,
        [op.channel_id for op in ops],
        [op.lane for op in ops],
        [op.run_id for op in ops],
        [op.kind for op in ops],
        [encode(op.address) for op in ops],
        [encode(op.payload) for op in ops],
        [op.delivery_key for op in ops],
        [op.account_key for op in ops],
        [None if op.after is None else op.after + 1 for op in ops],
        [op.edits for op in ops],
    )
    return {row["channel_id"] for row in rows}
