"""The stage, for every system test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stratus.store.database import Database
from testbed.stage import Stage, stage_on


@pytest.fixture
async def stage(dsn: str, db: Database) -> AsyncIterator[Stage]:
    """A fresh database with fakes around it."""
    async with stage_on(dsn, db) as made:
        yield made
