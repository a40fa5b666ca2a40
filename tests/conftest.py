"""What tests of every folder share: one PostgreSQL server for the run, and a migrated database for each test that asks for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from stratus.store.database import Database, Timeouts
from testbed.postgres import TestCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """The shared server. Its lifecycle is blocking, so it needs no event loop of the tests'."""
    with asyncio.Runner() as runner:
        shared = TestCluster()
        runner.run(shared.__aenter__())
        try:
            yield shared
        finally:
            runner.run(shared.__aexit__(None, None, None))


@pytest.fixture
async def dsn(cluster: TestCluster) -> AsyncIterator[str]:
    """A fresh migrated database, dropped afterwards."""
    async with cluster.database() as made:
        yield made


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[Database]:
    """The store, opened on a fresh database."""
    database = Database(
        dsn, timeouts=Timeouts(statement=5.0, idle_in_transaction=5.0, lock=2.0), main_size=6, ingress_size=2
    )
    await database.open()
    yield database
    await database.close()
