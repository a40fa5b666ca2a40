"""The outbox as operators see it: pages of ops, and one op with all the evidence that there is of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from stratus.domain.errors import NotFound
from stratus.store.database import Connection, Database

_TEXT_CHARS = 400
_PAGE_CHARS = 80

_PAGE = """
SELECT o.id, c.public_id AS channel, c.name AS channel_name, c.platform, o.kind, o.state, o.attempts, o.lane, o.lane_seq, o.created_at,
       o.not_before, o.settled_at, o.sent_message_id, o.error, o.delivery_key, o.depends_on,
       r.public_id AS run, r.session_id AS session, r.agent_id AS agent, left(o.payload ->> 'text', $7) AS text
  FROM channel_outbox o JOIN channel c ON c.id = o.channel_id LEFT JOIN agent_run r ON r.id = o.run_id
 WHERE ($1::text IS NULL OR o.state = $1)
   AND ($2::text IS NULL OR c.public_id::text = $2 OR c.name = $2)
   AND ($3::uuid IS NULL OR r.public_id = $3)
   AND ($4::float8 IS NULL OR o.created_at <= stratus_now() - make_interval(secs => $4))
   AND ($5::bigint IS NULL OR o.id < $5)
 ORDER BY o.id DESC LIMIT $6
"""

_REST = """
SELECT o.payload -> 'attachment' ->> 'name' AS attachment, o.address, o.account_key, c.account_key AS channel_account, o.receipt,
       o.attempt_deadline
  FROM channel_outbox o JOIN channel c ON c.id = o.channel_id WHERE o.id = $1
"""

_ATTEMPTS = """
SELECT attempt, replica, created_at, started_at, deadline, ended_at, outcome, detail, started_at IS NOT NULL AS begun
  FROM outbox_attempt WHERE op_id = $1 ORDER BY attempt
"""

_VERDICTS = "SELECT action, by, at, from_state, to_state, note FROM outbox_verdict WHERE op_id = $1 ORDER BY id"

# What people see around it, in the order of the lane.
_AROUND = """
SELECT n.id, n.lane_seq, n.kind, n.state, n.depends_on FROM channel_outbox o
  JOIN channel_outbox n ON n.channel_id = o.channel_id AND n.lane = o.lane AND n.lane_seq BETWEEN o.lane_seq - 3 AND o.lane_seq + 5
 WHERE o.id = $1 AND n.id <> o.id ORDER BY n.lane_seq
"""


@dataclass(frozen=True)
class Filter:
    """Which ops: `channel` is a public id or a name, `run` a public id, `older` in seconds; `before` continues a page after its last id."""

    state: str | None = None
    channel: str | None = None
    run: str | None = None
    older: float | None = None
    before: int | None = None
    limit: int = 100


async def listing(db: Database, which: Filter) -> list[dict[str, Any]]:
    """The newest ops, at most `limit`, each with the beginning of its text."""
    return await db.read(partial(_page, which=which, chars=_PAGE_CHARS))


async def evidence(db: Database, op_id: int) -> dict[str, Any]:
    """One op with its attempts, verdicts and neighbours in the lane. Raises NotFound."""

    async def look(connection: Connection) -> dict[str, Any] | None:
        found = await _page(connection, Filter(before=op_id + 1, limit=1), _TEXT_CHARS)
        if not found or found[0]["id"] != op_id:
            return None
        return {
            **found[0],
            **_told(await connection.fetchrow(_REST, op_id)),
            "attempts_made": [_told(one) for one in await connection.fetch(_ATTEMPTS, op_id)],
            "verdicts": [dict(one) for one in await connection.fetch(_VERDICTS, op_id)],
            "around": [dict(one) for one in await connection.fetch(_AROUND, op_id)],
        }

    found = await db.read(look)
    if found is None:
        raise NotFound(f"there is no operation {op_id}")
    return found


async def _page(connection: Connection, which: Filter, chars: int) -> list[dict[str, Any]]:
    rows = await connection.fetch(
        _PAGE, which.state, which.channel, which.run, which.older, which.before, which.limit, chars
    )
    return [_told(row) for row in rows]


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    structured = ("error", "detail", "address", "receipt")
    return {
        name: orjson.loads(value) if name in structured and value is not None else value
        for name, value in dict(row).items()
    }
