"""Occurrences of schedules: those that are due are taken by one replica, and each gets its one row, with the schedule moved on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from stratus.domain.schedule import CatchUp, OccurrenceState, SkipReason
from stratus.domain.values import Actor, ReplyTo, RunInput
from stratus.store.database import Connection, Database

# Lock order: schedules come before every other row, so whoever holds one may go on to sessions and runs (enqueue), never the other way round.
# SKIP LOCKED: what another replica works on is its own, so nobody waits here.
_TAKE = """
SELECT s.id FROM schedule s WHERE s.enabled AND s.next_at <= stratus_now() ORDER BY s.next_at, s.id LIMIT $1 FOR UPDATE SKIP LOCKED
"""

# A new snapshot: what the transaction before ours on the same schedule has written (its run, which may be open) is found here.
_FACTS = """
SELECT s.id, s.public_id, s.name, s.agent_id, s.session_id, s.owner_id, s.cron, s.time_zone, s.input, s.reply_to, s.catch_up,
       s.next_at, stratus_now() AS now, p.public_id AS owner, p.name AS owner_name, p.disabled_at IS NOT NULL AS owner_disabled,
       NOT EXISTS (SELECT 1 FROM agent a WHERE a.id = s.agent_id AND a.enabled) AS agent_gone,
       EXISTS (SELECT 1 FROM session x WHERE x.id = s.session_id AND x.agent_id <> s.agent_id) AS other_agent,
       s.reply_to IS NOT NULL AND c.id IS NULL AS channel_off, c.account_key,
       EXISTS (SELECT 1 FROM agent_run r JOIN schedule_occurrence o ON o.run_id = r.id
                WHERE r.session_id = s.session_id AND r.state IN ('queued', 'running', 'waiting') AND o.schedule_id = s.id) AS overlap
  FROM schedule s
  JOIN principal p ON p.id = s.owner_id
  LEFT JOIN channel c ON c.id = (s.reply_to ->> 'channel_id')::bigint AND c.enabled AND c.deleted_at IS NULL
 WHERE s.id = ANY($1)
 ORDER BY s.id
"""

_KNOWN = """
SELECT o.schedule_id, o.due_at FROM schedule_occurrence o
  JOIN unnest($1::bigint[], $2::timestamptz[]) AS g(schedule_id, due_at) ON g.schedule_id = o.schedule_id AND g.due_at = o.due_at
"""

_RECORD = """
INSERT INTO schedule_occurrence (schedule_id, due_at, state, run_id, reason)
SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::bigint[], $5::text[])
"""

# A schedule without a next occurrence is disabled.
_ADVANCE = """
UPDATE schedule s SET next_at = n.next_at, enabled = n.next_at IS NOT NULL, updated_at = clock_timestamp()
  FROM unnest($1::bigint[], $2::timestamptz[]) AS n(id, next_at) WHERE s.id = n.id
"""

_SECONDS_LEFT = "SELECT extract(epoch FROM min(next_at) - stratus_now())::float8 FROM schedule WHERE enabled"


@dataclass(frozen=True)
class DueSchedule:
    """A schedule that is due, locked, at the database's time `now`. `obstacle` is what keeps it from running, if anything does."""

    id: int
    public_id: UUID
    name: str
    agent_id: str
    session_id: str
    owner_id: int
    actor: Actor
    cron: str
    time_zone: str
    input: RunInput
    reply_to: ReplyTo | None
    catch_up: CatchUp
    next_at: datetime
    now: datetime
    obstacle: SkipReason | None


@dataclass(frozen=True)
class Decided:
    """How an occurrence ends: as `run_id`, or skipped for a `reason`."""

    schedule_id: int
    due_at: datetime
    run_id: int | None = None
    reason: SkipReason | None = None


async def take_due(connection: Connection, limit: int) -> list[DueSchedule]:
    """Lock schedules that are due and that nobody else works on, the longest due first; they come back by id."""
    ids = [row["id"] for row in await connection.fetch(_TAKE, limit)]
    return [_due(row) for row in await connection.fetch(_FACTS, ids)] if ids else []


async def known(connection: Connection, asked: Sequence[tuple[int, datetime]]) -> set[tuple[int, datetime]]:
    """Which of these (schedule, due time) have their row already, as after a clock that was set back."""
    rows = await connection.fetch(_KNOWN, [one for one, _ in asked], [at for _, at in asked])
    return {(row["schedule_id"], row["due_at"]) for row in rows}


async def record(connection: Connection, decided: Sequence[Decided], next_at: Mapping[int, datetime | None]) -> None:
    """Write what became of occurrences, and move their schedules on; None as the next time disables one. The caller holds the schedules."""
    await connection.execute(
        _RECORD,
        [one.schedule_id for one in decided],
        [one.due_at for one in decided],
        [str(OccurrenceState.SKIPPED if one.run_id is None else OccurrenceState.RUN) for one in decided],
        [one.run_id for one in decided],
        [None if one.reason is None else str(one.reason) for one in decided],
    )
    await connection.execute(_ADVANCE, list(next_at), list(next_at.values()))


async def seconds_left(db: Database) -> float | None:
    """How long until some schedule is due; negative when one is, None when there is none."""
    left: float | None = await db.read(lambda c: c.fetchval(_SECONDS_LEFT))
    return left


# The first that holds is the reason.
_OBSTACLES = {
    "owner_disabled": SkipReason.OWNER_DISABLED,
    "agent_gone": SkipReason.AGENT_GONE,
    "other_agent": SkipReason.OTHER_AGENT,
    "channel_off": SkipReason.CHANNEL_OFF,
    "overlap": SkipReason.OVERLAP,
}


def _due(row: Mapping[str, Any]) -> DueSchedule:
    to = None if row["reply_to"] is None else ReplyTo.model_validate_json(row["reply_to"])
    return DueSchedule(
        id=row["id"],
        public_id=row["public_id"],
        name=row["name"],
        agent_id=row["agent_id"],
        session_id=row["session_id"],
        owner_id=row["owner_id"],
        actor=Actor(principal=str(row["owner"]), name=row["owner_name"], platform="schedule"),
        cron=row["cron"],
        time_zone=row["time_zone"],
        input=RunInput.model_validate_json(row["input"]),
        # The account that answers is the one that the channel has when the schedule is due.
        reply_to=None if to is None else to.model_copy(update={"account_key": row["account_key"]}),
        catch_up=CatchUp(row["catch_up"]),
        next_at=row["next_at"],
        now=row["now"],
        obstacle=next((reason for flag, reason in _OBSTACLES.items() if row[flag]), None),
    )
