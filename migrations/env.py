"""Alembic's entry: one transaction for all steps, one migrator at a time, short lock waits so that live statements never queue behind DDL."""

import asyncio
import os

from alembic import context
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

# Any fixed number will do: it only has to be the same in every migrator.
MIGRATION_LOCK = 7_305_801_001


def _migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=None, version_table="stratus_version")
    with context.begin_transaction():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        connection.execute(
            text("SET LOCAL ROLE NONE")
        )  # a pooler may be told to make every connection the replicas' role
        connection.execute(text("SET LOCAL lock_timeout = '2s'"))
        connection.execute(text("SET LOCAL statement_timeout = '60s'"))
        context.get_context()._ensure_version_table()  # inside the lock: two first migrators must not race for it
        context.run_migrations()


async def _online() -> None:
    url = context.config.get_main_option("sqlalchemy.url") or os.environ["STRATUS_DATABASE_URL"]
    dsn = url.replace("%%", "%")
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=lambda: _connect(dsn))
    async with engine.connect() as connection:
        await connection.run_sync(_migrate)
        await connection.commit()
    await engine.dispose()


async def _connect(dsn: str):  # type: ignore[no-untyped-def]
    import asyncpg

    return await asyncpg.connect(dsn, timeout=10)


asyncio.run(_online())
