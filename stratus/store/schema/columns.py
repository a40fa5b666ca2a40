"""What the tables' columns are made of.

Why the storage parameters: rows of the queue tables change state a few times and are then dead weight in their blocks. Room in the block keeps
the changes that touch no index within it (HOT), and an early autovacuum keeps dead index entries out of the claims' way.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Identity, MetaData, Sequence, Text, text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP, UUID

from stratus.domain.machine import Machine

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    }
)

CHURN = {
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.01,
    "autovacuum_vacuum_threshold": 200,
    "autovacuum_vacuum_cost_delay": 0,
}
NARROW = {**CHURN, "fillfactor": 50}

EXECUTION_TOKEN = Sequence("execution_token", data_type=BigInteger, metadata=metadata)


def row_id() -> Column[Any]:
    """The identity key."""
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def public_id() -> Column[Any]:
    """The unguessable id that clients see."""
    return Column("public_id", UUID(), nullable=False, unique=True, server_default=text("gen_random_uuid()"))


def time(name: str, *, now: bool = False) -> Column[Any]:
    """A moment, written by the database; `now` makes it required, the row's own by default."""
    return Column(
        name,
        TIMESTAMP(timezone=True),
        nullable=not now,
        server_default=text("clock_timestamp()") if now else None,
    )


def json(name: str, default: str | None = None) -> Column[Any]:
    """A structured value; required when it has a default."""
    return Column(name, JSONB, nullable=default is None, server_default=text(f"'{default}'") if default else None)


def counter(name: str) -> Column[Any]:
    """A number that only rises, from 0."""
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def flag(name: str, default: bool) -> Column[Any]:
    """A required boolean."""
    return Column(name, Boolean, nullable=False, server_default=text("true" if default else "false"))


def required(name: str) -> Column[Any]:
    """A required text."""
    return Column(name, Text, nullable=False)


def checks(machine: Machine[Any, Any]) -> list[CheckConstraint]:
    """The machine's CHECKs."""
    return [
        CheckConstraint(machine.check_states(), name="state"),
        *(CheckConstraint(sql, name=column) for column, sql in machine.check_columns().items()),
    ]


def state_in(*states: str) -> Any:
    """A partial index's predicate."""
    return text(f"state IN ({', '.join(repr(state) for state in states)})")
