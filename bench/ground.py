"""The ground of every workload: a PostgreSQL with fsync on, a migrated database for each, and a stage with fakes around it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from stratus.embedded import EmbeddedPostgres
from stratus.store import migrate
from stratus.store.database import Database
from testbed.stage import Stage, stage_on

_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def durable_server() -> AsyncIterator[EmbeddedPostgres]:
    """A server of its own, with the settings that people run: nothing here trades durability for speed."""
    home = Path(tempfile.mkdtemp(prefix="stratus-bench-"))
    home.chmod(0o711)
    server = await asyncio.to_thread(EmbeddedPostgres(home).start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.close)
        await asyncio.to_thread(shutil.rmtree, home)


@contextlib.asynccontextmanager
async def opened(server: EmbeddedPostgres) -> AsyncIterator[Database]:
    """The store on a fresh database."""
    name = f"bench{next(_numbers)}"
    await server.ensure_database(name)
    await migrate.upgrade(server.dsn(name))
    db = Database(server.dsn(name), main_size=8)
    await db.open()
    try:
        yield db
    finally:
        await db.close()


@contextlib.asynccontextmanager
async def stage(server: EmbeddedPostgres, **options: object) -> AsyncIterator[Stage]:
    """Fakes, an agent on the instant demo model, and a channel of the test platform with these options beside the usual ones."""
    async with opened(server) as db, stage_on(db.dsn, db) as made:
        await made.add_agent()
        await made.add_channel(options={"wait": 10, **options})
        yield made
