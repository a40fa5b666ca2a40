"""Schedules, and one row for each time that one was due."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import TIMESTAMP

from stratus.domain.schedule import CatchUp, OccurrenceState, SkipReason
from stratus.store.schema.columns import NARROW, flag, json, metadata, public_id, required, row_id, time


def _one_of(column: str, values: type[CatchUp] | type[OccurrenceState] | type[SkipReason]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(str(value)) for value in values)})", name=column)


schedule = Table(
    "schedule",
    metadata,
    row_id(),
    public_id(),
    Column("name", Text, nullable=False, unique=True),
    # No foreign keys here: an agent may go, and a session is made by the first run; both end in a stated skip where they do not fit.
    required("agent_id"),
    required("session_id"),
    Column("owner_id", BigInteger, ForeignKey("principal.id"), nullable=False),
    required("cron"),
    required("time_zone"),
    json("input", "{}"),
    json("reply_to"),
    flag("enabled", True),
    required("catch_up"),
    time("next_at"),
    time("created_at", now=True),
    time("updated_at", now=True),
    _one_of("catch_up", CatchUp),
    CheckConstraint("enabled = (next_at IS NOT NULL)", name="next_at"),
    CheckConstraint("length(session_id) BETWEEN 1 AND 256", name="session_id"),
    Index("schedule_due", "next_at", postgresql_where=text("enabled")),
    postgresql_with=NARROW,
)

schedule_occurrence = Table(
    "schedule_occurrence",
    metadata,
    Column("schedule_id", BigInteger, ForeignKey("schedule.id"), nullable=False),
    Column("due_at", TIMESTAMP(timezone=True), nullable=False),
    required("state"),
    Column("run_id", BigInteger, ForeignKey("agent_run.id")),
    Column("reason", Text),
    time("at", now=True),
    PrimaryKeyConstraint("schedule_id", "due_at"),
    UniqueConstraint("run_id"),
    _one_of("state", OccurrenceState),
    _one_of("reason", SkipReason),
    CheckConstraint("(state = 'run') = (run_id IS NOT NULL)", name="run_id"),
    CheckConstraint("(state = 'skipped') = (reason IS NOT NULL)", name="skipped"),
)
