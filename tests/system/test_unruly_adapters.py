"""Adapters that do not end when they are told to: a channel, and a drain, wait for them no longer than they must."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from stratus.channel.protocol import Adapter, Cursor, Deliver, Guard
from stratus.channel.values import Op, Receipt
from stratus.store import channel
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from testbed.eventually import eventually
from tests.store.world import rows
from tests.system.delivery_rig import TERMS, Platform, Replica, Scripted, all_are, health_is, put, states

Method = Callable[..., Awaitable[object]]


async def deaf(*_: object) -> Receipt:
    """Ignores every cancellation."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


class Unruly(Platform):
    """Its adapters have `methods` of their own, until they are taken away."""

    def __init__(self, **methods: Method) -> None:
        super().__init__()
        self.methods = dict(methods)

    def adapters(self, _name: str) -> type[Adapter]:
        platform = self

        class Bound(Scripted):
            shared = platform

            async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
                await deliver((), None)
                await self._own("receive", super().receive, cursor, deliver)

            async def send(self, op: Op, guard: Guard) -> Receipt:
                self.shared.calls.append(op)
                await self._own("send", self.shared.accept, op, guard)
                return Receipt(message_id="m")

            async def close(self) -> None:
                await super().close()
                await self._own("close", _nothing)

            async def _own(self, name: str, otherwise: Method, *given: object) -> None:
                await platform.methods.get(name, otherwise)(*given)

        return Bound


async def _nothing() -> None:
    return None


@pytest.mark.parametrize("method", ["receive", "close"])
async def test_a_channel_is_given_back_whatever_its_adapter_does(db: Database, row: ChannelRow, method: str) -> None:
    platform = Unruly(**{method: deaf})
    async with Replica(db, platform) as replica:
        await health_is(db, "connected", "")
        await channel.set_enabled(db, row.id, False)
        await eventually(lambda: replica.manager.leases() == [], what="the lease is given back")
        platform.methods.clear()
        await channel.set_enabled(db, row.id, True)
        await put(db, row.id, "x")
        await all_are(db, "sent")
    assert len(platform.configs) == 2


async def test_a_send_that_ignores_its_end_is_unknown_and_holds_up_no_drain(db: Database, row: ChannelRow) -> None:
    platform = Unruly(send=deaf, receive=deaf, close=deaf)
    await put(db, row.id, "x")
    async with Replica(db, platform, replace(TERMS, send_budget=60.0)) as replica:
        await eventually(lambda: platform.calls)
        async with asyncio.timeout(12):
            await replica.manager.drain(0.2)
        assert await states(db) == ["unknown"]
        assert await rows(db, "SELECT runtime_holder FROM channel") == [{"runtime_holder": None}]


async def test_a_receive_that_returns_is_a_failed_contact(db: Database, row: ChannelRow) -> None:
    platform = Unruly(receive=lambda *_: _nothing())
    async with Replica(db, platform):
        await health_is(db, "degraded", "contact_failed")
        platform.methods.clear()
        await health_is(db, "connected", "")
