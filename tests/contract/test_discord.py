"""The Discord adapter against the fake Discord: the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from adapters.discord import DiscordAdapter
from stratus.channel.suite import AdapterSuite
from testbed.sockets import ReservedPort
from tests.contract.discord_driver import DiscordDriver, adapter_at


@pytest.fixture
async def driver() -> AsyncIterator[DiscordDriver]:
    async with DiscordDriver() as made:
        yield made


@pytest.fixture
async def adapter(driver: DiscordDriver) -> AsyncIterator[DiscordAdapter]:
    made = adapter_at(driver.url)
    yield made
    await made.close()


@pytest.fixture
async def stranded() -> AsyncIterator[DiscordAdapter]:
    with ReservedPort() as reserved:
        made = adapter_at(f"http://127.0.0.1:{reserved.number}")
        yield made
        await made.close()


class TestConformance(AdapterSuite):
    """The suite."""
