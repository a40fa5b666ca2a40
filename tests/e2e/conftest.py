"""A real browser and a running gateway, shared by a module's tests: each of them signs in as somebody of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from stratus.store.database import Database
from testbed.postgres import TestCluster
from testbed.replicas import Replica
from testbed.stage import Stage, stage_on
from tests.e2e.desk import chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(cluster: TestCluster) -> AsyncIterator[Stage]:
    """A database of its own, with the demo agent."""
    async with cluster.database() as dsn:
        db = Database(dsn, main_size=4, ingress_size=2)
        await db.open()
        async with stage_on(dsn, db) as made:
            await made.add_agent(tools=["current_time"])
            yield made
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(stage: Stage) -> AsyncIterator[Replica]:
    """A replica that does everything. Not for tests that break one."""
    async with stage.replicas(1) as replicas:
        yield replicas[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium."""
    async with chromium() as running:
        yield running
