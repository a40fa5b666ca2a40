"""Lanes of the outbox that do not come forward, and what each waits for: for people, no decision rests on it."""

from __future__ import annotations

from dataclasses import dataclass

from stratus.store.database import Database

# The head of each lane is what the rest of it waits for; a draft is passed by what comes after it.
_STUCK = """
WITH head AS (
    SELECT DISTINCT ON (channel_id, lane) channel_id, lane, id, state, not_before, attempt_deadline, created_at, error
      FROM channel_outbox
     WHERE state IN ('pending', 'sending') AND kind <> 'draft_update'
     ORDER BY channel_id, lane, lane_seq
), stuck AS (
    SELECT DISTINCT ON (channel_id) *, count(*) OVER (PARTITION BY channel_id) AS lanes
      FROM head WHERE created_at <= stratus_now() - make_interval(secs => $1)
     ORDER BY channel_id, created_at, id
)
SELECT c.name AS channel, s.lanes, s.id AS op_id, extract(epoch FROM stratus_now() - s.created_at)::float8 AS age,
       CASE WHEN NOT c.enabled OR c.deleted_at IS NOT NULL THEN 'disabled'
            WHEN c.lease_until IS NULL OR c.lease_until <= stratus_now() THEN 'no_owner'
            WHEN s.state = 'sending' AND s.attempt_deadline <= stratus_now() THEN 'quarantine'
            WHEN s.state = 'sending' THEN 'sending'
            WHEN s.not_before > stratus_now() THEN 'not_before'
            WHEN r.next_at > stratus_now() THEN 'rate'
            ELSE 'due' END AS reason,
       CASE WHEN s.state = 'pending' THEN greatest(extract(epoch FROM greatest(s.not_before, r.next_at) - stratus_now()), 0)::float8
            ELSE 0 END AS wait,
       s.error ->> 'code' AS code
  FROM stuck s JOIN channel c ON c.id = s.channel_id
  LEFT JOIN LATERAL (SELECT max(x.next_at) AS next_at FROM channel_rate x WHERE x.channel_id = s.channel_id
                        AND x.scope IN ('', s.lane, split_part(s.lane, chr(31), 1) || chr(31))) r ON true
 ORDER BY s.created_at, s.id
"""


@dataclass(frozen=True)
class Stuck:
    """A channel with lanes that stand still: how many, and of the one that waits longest its head and why that does not go.

    `reason` is `disabled` or `no_owner` (of the channel), `quarantine` (an attempt past its deadline, perhaps a lost owner's), `sending`,
    `not_before` (a retry is due in `wait` seconds), `rate` (the chat or the bot may be sent to again in `wait` seconds) or `due` (its owner
    could send it). `code` names its last error.
    `age` is seconds since the head was written.
    """

    channel: str
    lanes: int
    op_id: int
    age: float
    reason: str
    wait: float
    code: str | None


async def stuck(db: Database, older: float) -> list[Stuck]:
    """The channels with a lane whose head is older than so many seconds, the longest first."""
    rows = await db.read(lambda c: c.fetch(_STUCK, older))
    return [Stuck(**row) for row in rows]
