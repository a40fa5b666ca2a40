"""Schedules as people keep them: added, listed with what became of each occurrence, switched on and off, removed.

What happens when one is due is `store/occurrence.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from stratus.domain.errors import AgentMismatch, BadInput, Conflict, NotFound
from stratus.domain.schedule import CatchUp, check_names, next_after
from stratus.domain.values import ReplyTo, RunError, RunInput
from stratus.store import agent, channel
from stratus.store.database import Connection, Database

_MAKE = """
INSERT INTO schedule (public_id, name, agent_id, session_id, owner_id, cron, time_zone, input, reply_to, catch_up, next_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT DO NOTHING
"""

_CLOCK = "SELECT stratus_now()"

_SESSION_AGENT = "SELECT agent_id FROM session WHERE id = $1"

_LIST = """
SELECT s.id, s.public_id, s.name, s.agent_id, s.session_id, s.cron, s.time_zone, s.input, s.reply_to, s.enabled, s.catch_up, s.next_at,
       s.created_at, s.updated_at, p.name AS owner, c.name AS channel
  FROM schedule s JOIN principal p ON p.id = s.owner_id LEFT JOIN channel c ON c.id = (s.reply_to ->> 'channel_id')::bigint
 WHERE $1::text IS NULL OR s.name = $1 OR s.public_id::text = lower($1)
 ORDER BY s.name
"""

_OCCURRENCES = """
SELECT o.due_at, o.state, o.reason, o.at, r.public_id AS run, r.state AS run_state, r.error
  FROM schedule_occurrence o LEFT JOIN agent_run r ON r.id = o.run_id
 WHERE o.schedule_id = $1 ORDER BY o.due_at DESC LIMIT $2
"""

# Lock order: a schedule's row comes before everything else (store/occurrence.py).
_LOCK = "SELECT cron, time_zone, enabled FROM schedule WHERE id = $1 FOR UPDATE"

_SWITCH = """
UPDATE schedule SET enabled = $2::timestamptz IS NOT NULL, next_at = $2, updated_at = clock_timestamp() WHERE id = $1
"""

_FORGET_OCCURRENCES = "DELETE FROM schedule_occurrence WHERE schedule_id = $1"

_REMOVE = "DELETE FROM schedule WHERE id = $1"


@dataclass(frozen=True)
class NewSchedule:
    """A schedule to add. Without `session_id` it has a session of its own; without `reply_to` it answers into its session only."""

    public_id: UUID
    name: str
    agent_id: str
    owner_id: int
    cron: str
    time_zone: str
    input: RunInput
    catch_up: CatchUp = CatchUp.ONE
    session_id: str | None = None
    reply_to: ReplyTo | None = None


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule as it is stored. `next_at` is None while it is disabled; `channel` names the one it answers on."""

    id: int
    public_id: UUID
    name: str
    agent_id: str
    session_id: str
    owner: str
    cron: str
    time_zone: str
    input: RunInput
    channel: str | None
    reply_to: ReplyTo | None
    enabled: bool
    catch_up: str
    next_at: datetime | None
    created_at: datetime
    updated_at: datetime

    def shown(self) -> dict[str, Any]:
        """For people and programs: public ids and names only."""
        to = self.reply_to
        return {
            "id": self.public_id,
            "name": self.name,
            "agent": self.agent_id,
            "session": self.session_id,
            "owner": self.owner,
            "cron": self.cron,
            "time_zone": self.time_zone,
            "text": self.input.text,
            "channel": self.channel,
            "chat": None if to is None else to.chat,
            "thread": None if to is None else to.thread or None,
            "enabled": self.enabled,
            "catch_up": self.catch_up,
            "next_at": self.next_at,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True)
class OccurrenceRow:
    """What became of one occurrence: `run` with how it stands or ended, or the `reason` why it is none. `at` is when that was decided."""

    due_at: datetime
    state: str
    reason: str | None
    run: UUID | None
    run_state: str | None
    error: Mapping[str, Any] | None
    at: datetime


async def create(db: Database, new: NewSchedule) -> ScheduleRow:
    """Add a schedule; its first occurrence is the next one by database time. `public_id` comes from the caller.

    Raises BadInput, NotFound (the agent), Conflict (the name is in use), AgentMismatch (the session is another agent's).
    """
    session_id = f"schedule:{new.public_id}" if new.session_id is None else new.session_id
    check_names(new.name, session_id)

    async def work(connection: Connection) -> ScheduleRow:
        next_at = next_after(new.cron, new.time_zone, await connection.fetchval(_CLOCK))
        if not await agent.exists(connection, new.agent_id):
            raise NotFound(f"there is no agent {new.agent_id!r}")
        owned_by = await connection.fetchval(_SESSION_AGENT, session_id)
        if owned_by not in (None, new.agent_id):
            raise AgentMismatch(f"session {session_id} belongs to agent {owned_by}")
        await connection.execute(
            _MAKE,
            new.public_id,
            new.name,
            new.agent_id,
            session_id,
            new.owner_id,
            new.cron,
            new.time_zone,
            new.input.model_dump_json(),
            None if new.reply_to is None else new.reply_to.model_dump_json(),
            str(new.catch_up),
            next_at,
        )
        row = await connection.fetchrow(_LIST, str(new.public_id))
        if row is None:
            raise Conflict(f"there is a schedule named {new.name!r} already")
        return _schedule(row)

    return await db.transact(work, idempotent=True)


async def answer_to(db: Database, channel_key: str | None, chat: str | None, thread: str | None) -> ReplyTo | None:
    """Where a schedule answers: a chat of a channel (its name or id), or None where none is named. Raises BadInput, NotFound."""
    if not channel_key and not chat and not thread:
        return None
    if not channel_key or not chat:
        raise BadInput("channel, chat: an answer into a chat needs both, the thread is optional")
    if not f"{channel_key}{chat}{thread or ''}".isprintable():
        raise BadInput("channel, chat, thread: only printable characters are allowed")
    found = await channel.get(db, channel_key)
    return ReplyTo(channel_id=found.id, platform=found.platform, chat=chat, thread=thread or "")


async def listing(db: Database) -> list[ScheduleRow]:
    """All schedules, by name."""
    return [_schedule(row) for row in await db.read(lambda c: c.fetch(_LIST, None))]


async def get(db: Database, key: str) -> ScheduleRow:
    """One schedule by its public id or its name. Raises NotFound."""
    row = await db.read(lambda c: c.fetchrow(_LIST, key))
    if row is None:
        raise NotFound(f"there is no schedule {key!r}")
    return _schedule(row)


async def occurrences(db: Database, schedule_id: int, limit: int) -> list[OccurrenceRow]:
    """The newest occurrences, newest first."""
    rows = await db.read(lambda c: c.fetch(_OCCURRENCES, schedule_id, limit))
    return [OccurrenceRow(**{**row, "error": _error(row["error"])}) for row in rows]


async def set_enabled(db: Database, schedule_id: int, enabled: bool) -> None:
    """Switch on or off. Occurrences while it is off are none; switched on, the next one counts. Raises NotFound, BadInput."""

    async def work(connection: Connection) -> None:
        row = await connection.fetchrow(_LOCK, schedule_id)
        if row is None:
            raise NotFound("there is no such schedule")
        if row["enabled"] == enabled:
            return
        next_at = None
        if enabled:
            next_at = next_after(row["cron"], row["time_zone"], await connection.fetchval(_CLOCK))
        await connection.execute(_SWITCH, schedule_id, next_at)

    await db.transact(work, idempotent=True)


async def remove(db: Database, schedule_id: int) -> None:
    """Forget a schedule and its occurrences; its session and runs stay. One that is gone already is no error."""

    async def work(connection: Connection) -> None:
        await connection.fetchrow(_LOCK, schedule_id)
        await connection.execute(_FORGET_OCCURRENCES, schedule_id)
        await connection.execute(_REMOVE, schedule_id)

    await db.transact(work, idempotent=True)


def _schedule(row: Mapping[str, Any]) -> ScheduleRow:
    to = row["reply_to"]
    return ScheduleRow(
        **{
            **row,
            "input": RunInput.model_validate_json(row["input"]),
            "reply_to": None if to is None else ReplyTo.model_validate_json(to),
        }
    )


def _error(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    error = RunError.model_validate_json(text)
    return {"code": error.code, "message": error.message}
