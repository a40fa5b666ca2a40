"""The half of the conformance suite that receives: polls and webhooks."""

from __future__ import annotations

import asyncio

import pytest

from stratus.channel.driver import Driver
from stratus.channel.errors import AccountStopped
from stratus.channel.protocol import Adapter
from stratus.channel.suite_rig import PATIENCE_SECONDS, Delivered, Interrupted, receiving, until
from stratus.channel.values import RawRequest


@pytest.mark.asyncio
class ReceivingSuite:
    """Events arrive once, in order, and are acknowledged only when they are stored."""

    async def test_events_arrive_once_and_in_order(self, adapter: Adapter, driver: Driver) -> None:
        delivered = Delivered()
        async with receiving(adapter, delivered):
            for text in ("one", "two", "three"):
                await driver.inject(text)
            await delivered.until(lambda: len(delivered.events) >= 3)
        assert [event.text for event in delivered.events] == ["one", "two", "three"]
        assert len({event.key for event in delivered.events}) == 3
        assert {event.chat for event in delivered.events} == {driver.chat}
        assert all(event.kind == "message" and event.sender.id for event in delivered.events)

    async def test_nothing_is_acknowledged_before_it_is_stored(self, adapter: Adapter, driver: Driver) -> None:
        await driver.inject("keep me")
        with pytest.raises(Interrupted):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await adapter.receive(None, Delivered(fail=Interrupted()))
        assert await driver.acknowledged() == 0
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await delivered.until(lambda: bool(delivered.events))
            await until(lambda: _reached(driver, 1))
        assert [event.text for event in delivered.events] == ["keep me"]

    async def test_a_redelivered_event_has_the_same_key(self, adapter: Adapter, driver: Driver) -> None:
        delivered = Delivered()
        await driver.inject("again")
        async with receiving(adapter, delivered):
            await delivered.until(lambda: len(delivered.events) == 1)
        await driver.redeliver()
        async with receiving(adapter, delivered, None):
            await delivered.until(lambda: len(delivered.events) >= 2)
        assert len({event.key for event in delivered.events}) == 1

    async def test_it_goes_on_from_the_cursor(self, adapter: Adapter, driver: Driver) -> None:
        first, second = Delivered(), Delivered()
        await driver.inject("old")
        async with receiving(adapter, first):
            await first.until(lambda: bool(first.events))
        await driver.inject("new")
        async with receiving(adapter, second, first.cursor):
            await second.until(lambda: bool(second.events))
        assert [event.text for event in second.events] == ["new"]

    async def test_a_quiet_poll_is_told_as_progress(self, adapter: Adapter) -> None:
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await delivered.until(lambda: delivered.batches >= 2)
        assert delivered.events == []

    async def test_receive_stops_when_the_credentials_are_refused(self, adapter: Adapter, driver: Driver) -> None:
        await driver.revoke()
        await _stopped(adapter, Delivered())

    async def test_credentials_refused_later_stop_a_running_receive(self, adapter: Adapter, driver: Driver) -> None:
        delivered = Delivered()
        async with asyncio.TaskGroup() as group:
            group.create_task(_stopped(adapter, delivered))
            await delivered.until(lambda: delivered.batches >= 1)
            await driver.revoke()

    async def test_an_unreachable_platform_ends_receive_with_an_error(self, stranded: Adapter) -> None:
        with pytest.raises(Exception) as caught:  # noqa: B017, PT011 - any error that is no verdict on the account
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stranded.receive(None, Delivered())
        assert not isinstance(caught.value, AccountStopped | TimeoutError)

    async def test_a_cancelled_receive_leaves_nothing_behind(self, adapter: Adapter, driver: Driver) -> None:
        before = asyncio.all_tasks()
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await delivered.until(lambda: delivered.batches >= 1)
        await until(lambda: _no_more_tasks_than(before))
        await driver.inject("still there")
        async with receiving(adapter, delivered, delivered.cursor):
            await delivered.until(lambda: bool(delivered.events))

    async def test_hostile_text_arrives_storable(self, adapter: Adapter, driver: Driver) -> None:
        delivered = Delivered()
        await driver.inject("a\x00b\ud83dc")
        async with receiving(adapter, delivered):
            await delivered.until(lambda: bool(delivered.events))
        assert delivered.events[0].text == "a\ufffdb\ufffdc"
        assert "\\u0000" not in (stored := delivered.events[0].model_dump_json())
        stored.encode()

    # -- webhook --

    async def test_a_webhook_makes_the_key_that_polling_makes(self, adapter: Adapter, driver: Driver) -> None:
        request = await self._pushed(driver)
        await adapter.account()
        reply = await adapter.webhook(request)
        delivered = Delivered()
        async with receiving(adapter, delivered):
            await delivered.until(lambda: bool(delivered.events))
        assert reply.status == 200
        assert list(reply.events) == delivered.events

    async def test_an_unproven_webhook_is_refused(self, adapter: Adapter, driver: Driver) -> None:
        request = await self._pushed(driver)
        forged = [{}, *({**request.headers, name: value[:-1]} for name, value in request.headers.items())]
        forged += [{**request.headers, name: value + "x"} for name, value in request.headers.items()]
        for headers in forged:
            reply = await adapter.webhook(request.model_copy(update={"headers": headers}))
            assert (reply.status, list(reply.events)) == (401, [])

    async def test_an_unreadable_webhook_is_taken_and_stored(self, adapter: Adapter, driver: Driver) -> None:
        request = await self._pushed(driver)
        for body in (b"", b"{", b"null", b"[1]", b'{"a": ' + b"[" * 100_000, b"\xff\xfe"):
            garbage = request.model_copy(update={"body": body})
            first, again = await adapter.webhook(garbage), await adapter.webhook(garbage)
            assert first.status == 200
            assert [event.kind for event in first.events] == ["other"]
            assert [event.key for event in first.events] == [event.key for event in again.events]

    async def _pushed(self, driver: Driver) -> RawRequest:
        await driver.inject("pushed")
        request = await driver.pushed("pushed")
        if request is None:
            pytest.skip("the platform has no webhooks")
        return request


async def _stopped(adapter: Adapter, delivered: Delivered) -> None:
    with pytest.raises(AccountStopped):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await adapter.receive(None, delivered)


async def _reached(driver: Driver, count: int) -> bool:
    return await driver.acknowledged() >= count


async def _no_more_tasks_than(before: set[asyncio.Task[object]]) -> bool:
    return asyncio.all_tasks() <= before
