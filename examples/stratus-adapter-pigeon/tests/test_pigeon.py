"""The adapter keeps every promise of the protocol."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pigeon import TOKEN, Pigeon
from pydantic import SecretStr
from stratus_adapter_pigeon import PigeonAdapter

from stratus.channel import BadCredentials, ChannelConfig
from stratus.channel.suite import AdapterSuite


def config(port: int, token: str = TOKEN) -> ChannelConfig:
    return ChannelConfig(
        channel_id="c",
        name="test",
        options={"host": "127.0.0.1", "port": port, "wait": 0.1},
        credentials={"token": SecretStr(token)},
    )


class TestConformance(AdapterSuite):
    """The suite that every adapter runs."""

    @pytest_asyncio.fixture
    async def driver(self) -> AsyncIterator[Pigeon]:
        async with Pigeon() as pigeon:
            yield pigeon

    @pytest_asyncio.fixture
    async def adapter(self, driver: Pigeon) -> PigeonAdapter:
        return PigeonAdapter(config(driver.port))

    @pytest_asyncio.fixture
    async def stranded(self) -> AsyncIterator[PigeonAdapter]:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
            yield PigeonAdapter(config(taken.getsockname()[1]))


def test_it_says_what_is_missing() -> None:
    with pytest.raises(BadCredentials, match="port"):
        PigeonAdapter(config(0))
