"""A real browser, and the stage that its pages are served from."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright

from stratus.store.database import Database
from tests.system.stage import Stage, stage_on


@pytest.fixture
async def stage(dsn: str, db: Database) -> AsyncIterator[Stage]:
    """A fresh database with the demo agent."""
    async with stage_on(dsn, db) as made:
        await made.add_agent(tools=["current_time"])
        yield made


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Chromium as the system has it. Only a machine that is no CI may do without."""
    path = shutil.which("chromium")
    if path is None and "CI" not in os.environ:
        pytest.skip("Chromium is not installed")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        await running.close()
