"""The database accepts exactly the moves of each machine's table: every pair of states is tried."""

from __future__ import annotations

from enum import StrEnum
from itertools import product

import asyncpg
import pytest

from stratus.domain.machine import Machine
from stratus.domain.machines import MACHINES

Any2 = Machine[StrEnum, StrEnum]


async def copy_of(connection: asyncpg.Connection[asyncpg.Record], machine: Any2) -> None:
    """A bare table with the real table's state column, CHECKs and trigger, so that no other constraint hides the machine's."""
    columns = "".join(f", {column} timestamptz" for column in machine.columns)
    checks = "".join(f", CHECK ({sql})" for sql in [machine.check_states(), *machine.check_columns().values()])
    await connection.execute(f"CREATE TEMP TABLE probe (id int, state text{columns}{checks})")
    await connection.execute(
        f"CREATE TRIGGER move BEFORE UPDATE OF state ON probe FOR EACH ROW EXECUTE FUNCTION {machine.table}_move()"
    )


def assignments(machine: Any2, state: str) -> str:
    return "".join(
        f", {column} = {'clock_timestamp()' if state in {str(s) for s in states} else 'NULL'}"
        for column, states in machine.columns.items()
    )


async def attempt(connection: asyncpg.Connection[asyncpg.Record], machine: Any2, old: str, new: str) -> bool:
    await connection.execute("DELETE FROM probe")
    await connection.execute("ALTER TABLE probe DISABLE TRIGGER move")
    await connection.execute("INSERT INTO probe (id, state) SELECT 1, s FROM (SELECT NULL AS s) x")
    await connection.execute(f"UPDATE probe SET state = '{old}'{assignments(machine, old)}")
    await connection.execute("ALTER TABLE probe ENABLE TRIGGER move")
    try:
        await connection.execute(f"UPDATE probe SET state = '{new}'{assignments(machine, new)}")
    except asyncpg.PostgresError as error:
        assert error.sqlstate == "ST001", error
        return False
    return True


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
async def test_the_database_takes_exactly_the_tables_moves(dsn: str, machine: Any2) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await copy_of(connection, machine)
        states = [str(state) for state in machine.states]
        allowed = {*machine.pairs(), *((state, state) for state in states)}
        for old, new in product(states, states):
            assert await attempt(connection, machine, old, new) == ((old, new) in allowed), (old, new)
    finally:
        await connection.close()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
async def test_the_real_table_has_the_machines_trigger_and_checks(dsn: str, machine: Any2) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        triggers = await connection.fetch("SELECT tgname FROM pg_trigger WHERE tgrelid = $1::regclass", machine.table)
        checks = await connection.fetch(
            "SELECT conname FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'", machine.table
        )
        assert f"{machine.table}_move" in {row["tgname"] for row in triggers}
        wanted = {f"{machine.table}_{name}_check" for name in ["state", *machine.columns]}
        assert wanted <= {row["conname"] for row in checks}
    finally:
        await connection.close()
