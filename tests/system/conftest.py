"""The stage, for every system test; a scripted platform and its channel, for those of the delivery room alone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from testbed.stage import Stage, stage_on
from tests.system.delivery_rig import Platform, add_channel


@pytest.fixture
async def stage(dsn: str, db: Database) -> AsyncIterator[Stage]:
    """A fresh database with fakes around it."""
    async with stage_on(dsn, db) as made:
        yield made


@pytest.fixture
def platform() -> Platform:
    """What a scripted adapter answers, and what it was asked."""
    return Platform()


@pytest.fixture
async def row(db: Database) -> ChannelRow:
    """A channel of the scripted platform."""
    return await add_channel(db)
