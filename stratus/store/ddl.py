"""The whole schema as SQL text: tables, the clock function, one move trigger a machine, and rights. Migrations freeze what this prints."""

from __future__ import annotations

from sqlalchemy import create_mock_engine
from sqlalchemy.schema import CreateIndex, CreateSequence, CreateTable

from stratus.domain.machines import MACHINES
from stratus.store import isolation
from stratus.store.schema import EXECUTION_TOKEN, metadata

# STABLE and of the statement's start, so that the planner may use it as an index condition (a volatile clock forces a sequential scan).
STRATUS_NOW = "CREATE OR REPLACE FUNCTION stratus_now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT statement_timestamp() $$"


def statements() -> list[str]:
    """Every statement that makes the declared schema on an empty database, in order."""
    dialect = create_mock_engine("postgresql+asyncpg://", lambda *_, **__: None).dialect
    made = [STRATUS_NOW, str(CreateSequence(EXECUTION_TOKEN).compile(dialect=dialect))]
    for table in metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        made += [
            str(CreateIndex(index).compile(dialect=dialect))
            for index in sorted(table.indexes, key=lambda index: str(index.name))
        ]
    for machine in MACHINES:
        made += [machine.trigger_function(), machine.trigger()]
    return [*made, *isolation.statements()]
