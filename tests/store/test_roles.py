"""The roles are made by a migration, whoever else makes them at that moment; a login that may not make them is told what to ask for."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator

import asyncpg
import pytest

from stratus.domain.errors import BadSetting
from stratus.store import migrate
from stratus.store.database import Database
from stratus.store.isolation import APP, TURN
from stratus.store.rows import StoredRows
from stratus.store.stalled import end_stalled
from testbed.postgres import ROOT, PrivateServer, with_database
from tests.store.world import as_owner, new_run, queue

LOGIN = "plain"


@pytest.fixture
async def bare() -> AsyncIterator[PrivateServer]:
    """A server that has never seen Stratus's roles."""
    async with PrivateServer() as server:
        yield server


async def without_powers(server: PrivateServer) -> str:
    """The DSN of a database whose owner may make no roles."""
    admin = server.dsn("postgres")
    await as_owner(admin, f"CREATE ROLE {LOGIN} LOGIN PASSWORD 'word'")
    await as_owner(admin, f"CREATE DATABASE {LOGIN} OWNER {LOGIN}")
    return re.sub(r"//[^@]*@", f"//{LOGIN}:word@", with_database(admin, LOGIN))


async def migrated_elsewhere(dsn: str) -> None:
    """In a process of its own: alembic keeps its context in a module."""
    code = "import asyncio, sys; from stratus.store import migrate; asyncio.run(migrate.upgrade(sys.argv[1]))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, dsn, cwd=ROOT)
    assert await process.wait() == 0


async def test_two_databases_of_a_server_are_migrated_at_once(bare: PrivateServer) -> None:
    dsns = [bare.dsn(name) for name in ("one", "two", "three")]
    for dsn in dsns:
        await as_owner(bare.dsn("postgres"), f"CREATE DATABASE {dsn.partition('@/')[2].partition('?')[0]}")
    await asyncio.gather(*map(migrated_elsewhere, dsns))
    assert [await migrate.current(dsn) for dsn in dsns] == [migrate.head()] * 3


async def test_a_login_that_may_make_no_roles_is_told_what_an_administrator_runs(bare: PrivateServer) -> None:
    dsn = await without_powers(bare)
    with pytest.raises(BadSetting) as refused:
        await migrate.upgrade(dsn)
    lines = [line.strip() for line in str(refused.value).splitlines() if line.startswith("  ")]
    assert lines == [f"CREATE ROLE {APP} NOLOGIN; CREATE ROLE {TURN} NOLOGIN;", f"GRANT {APP}, {TURN} TO {LOGIN};"]
    for line in lines:
        await as_owner(bare.dsn("postgres"), line)
    await migrate.upgrade(dsn)
    db = Database(dsn)
    await db.open()
    await queue(db, new_run("sa", agent="a"), new_run("sb", agent="b"))
    assert await StoredRows(db, "a").fetch("SELECT id FROM session") == [{"id": "sa"}]
    assert await end_stalled(db) == 0
    await db.close()


async def test_a_login_that_may_make_roles_needs_nobody(bare: PrivateServer) -> None:
    dsn = await without_powers(bare)
    await as_owner(bare.dsn("postgres"), f"ALTER ROLE {LOGIN} CREATEROLE")
    await migrate.upgrade(dsn)
    db = Database(dsn)
    await db.open()
    await db.close()


@pytest.mark.parametrize(
    "power", [f"ALTER ROLE {TURN} BYPASSRLS", f"GRANT {APP} TO {TURN}", f"ALTER ROLE {APP} SUPERUSER"]
)
async def test_roles_that_could_see_more_are_refused(bare: PrivateServer, power: str) -> None:
    admin = bare.dsn("postgres")
    await as_owner(admin, f"CREATE ROLE {APP} NOLOGIN; CREATE ROLE {TURN} NOLOGIN; {power}")
    with pytest.raises(BadSetting, match="must be no superusers"):
        await migrate.upgrade(admin)


async def test_a_database_without_the_roles_says_to_migrate(bare: PrivateServer) -> None:
    with pytest.raises(BadSetting, match="run `stratus migrate`"):
        await Database(bare.dsn("postgres")).open()


async def test_a_migration_through_a_pooler_that_sets_the_role_runs_as_the_login(dsn: str) -> None:
    """`ALTER ROLE … SET role` does to every connection what a pooler's first statement does."""
    owner = await asyncpg.connect(dsn)
    name, login = await owner.fetchval("SELECT current_database()"), await owner.fetchval("SELECT current_user")
    await owner.execute(f'ALTER ROLE "{login}" IN DATABASE "{name}" SET role = {APP}')
    await owner.close()
    try:
        await migrate.upgrade(dsn)
        db = Database(dsn)
        await db.open()
        assert await StoredRows(db, "a").fetch("SELECT current_user") == [{"current_user": TURN}]
        await db.close()
    finally:
        again = await asyncpg.connect(dsn)
        await again.execute(f'SET ROLE NONE; ALTER ROLE "{login}" IN DATABASE "{name}" RESET role')
        await again.close()
