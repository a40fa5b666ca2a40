"""A real browser, and the stage that its pages are served from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from stratus.store.database import Database
from tests.e2e.desk import chromium
from tests.system.stage import Stage, stage_on


@pytest.fixture
async def stage(dsn: str, db: Database) -> AsyncIterator[Stage]:
    """A fresh database with the demo agent."""
    async with stage_on(dsn, db) as made:
        await made.add_agent(tools=["current_time"])
        yield made


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A fresh browser."""
    async with chromium() as running:
        yield running
