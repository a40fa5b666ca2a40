"""Brings a database to this release's schema, and says how far it is, without importing alembic where that is enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg

import stratus
from stratus.domain.errors import BadSetting
from stratus.store.faults import FAULTS, translate


def _migrations() -> Path:
    # In a wheel the migrations lie inside the package; in a checkout beside it.
    inside = Path(stratus.__file__).parent / "migrations"
    return inside if inside.is_dir() else Path(stratus.__file__).parent.parent / "migrations"


def head() -> str:
    """The revision that this release needs: the highest number among the migration files."""
    return max(path.name[:4] for path in (_migrations() / "versions").glob("[0-9]*.py"))


async def current(dsn: str) -> str | None:
    """The revision that the database is at; None for an empty one. Raises DatabaseAway, or Broken when the server refuses us."""
    connection = await _connect(dsn)
    try:
        if await connection.fetchval("SELECT to_regclass('stratus_version')") is None:
            return None
        revision: str | None = await connection.fetchval("SELECT max(version_num) FROM stratus_version")
        return revision
    finally:
        await connection.close()


async def reach(dsn: str) -> None:
    """Connect as the login itself, as a migration does. Raises DatabaseAway, or Broken when the server refuses us."""
    connection = await _connect(dsn)
    await connection.close()


async def require_current(dsn: str) -> None:
    """Raises BadSetting when the database is behind; one ahead is served, since each release runs on the next one's schema."""
    at = await current(dsn)
    if at is None or at < head():
        raise BadSetting(
            f"the database is at revision {at or 'none'}, this release needs {head()}: run `stratus migrate`"
        )


async def upgrade(dsn: str) -> None:
    """Migrate to `head()`. Safe to run from several replicas at once; each step commits whole or not at all.

    Raises BadSetting when the login may not do what a step needs; the message says what an administrator has to run.
    """
    await asyncio.to_thread(_upgrade, dsn)


async def _connect(dsn: str) -> asyncpg.Connection[asyncpg.Record]:
    try:
        return await asyncpg.connect(dsn, timeout=10)
    except FAULTS as error:
        raise translate(error) from error


def _upgrade(dsn: str) -> None:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy.exc import DBAPIError

    config = Config()
    config.set_main_option("script_location", str(_migrations()))
    config.set_main_option("sqlalchemy.url", dsn.replace("%", "%%"))
    try:
        command.upgrade(config, "head")
    except DBAPIError as error:
        refused = error.orig.__cause__ if error.orig is not None else None
        if isinstance(refused, asyncpg.InsufficientPrivilegeError | asyncpg.InvalidRoleSpecificationError):
            raise BadSetting(f"the database cannot be migrated: {refused}") from error
        raise
