"""The conformance suite: what every adapter must do, as tests that its own contract tests subclass.

Imported by tests only. A subclass gives three fixtures: `driver`, `adapter` and `stranded`; see docs/adapter-guide.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from stratus.channel.driver import RETRY_AFTER_SECONDS, Driver, Fault
from stratus.channel.errors import AccountStopped, SendError, SendFailure
from stratus.channel.protocol import Adapter, CanEdit, Cursor
from stratus.channel.text import length
from stratus.channel.values import Event, Op, RawRequest

PATIENCE_SECONDS = 10


class Delivered:
    """A `Deliver` that keeps what it was given; `fail` makes it raise instead of store."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.events: list[Event] = []
        self.cursor: Cursor | None = None
        self.batches = 0
        self._fail = fail
        self._changed = asyncio.Condition()

    async def __call__(self, events: Sequence[Event], cursor: Cursor | None) -> None:
        if self._fail is not None and events:
            raise self._fail
        async with self._changed:
            self.events.extend(events)
            self.cursor = cursor if cursor is not None else self.cursor
            self.batches += 1
            self._changed.notify_all()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, asked after each batch."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(done)


class CountedGuard:
    """A guard that counts; with `refusal` it raises that."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.asked = 0
        self._refusal = refusal

    async def __call__(self) -> None:
        self.asked += 1
        if self._refusal is not None:
            raise self._refusal


class Interrupted(Exception):
    """What the suite's own `Deliver` and `Guard` raise."""


@contextlib.asynccontextmanager
async def receiving(adapter: Adapter, deliver: Delivered, cursor: Cursor | None = None) -> AsyncIterator[None]:
    """`adapter.receive` runs while the block does, and must then end by its cancellation."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(adapter.receive(cursor, deliver))
        try:
            yield
        finally:
            task.cancel()
    assert task.cancelled()


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the platform's state is as `check` wants it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await check():  # noqa: ASYNC110 - the platform is another program and tells nobody
            await asyncio.sleep(0.01)  # noqa: TID251 - between two looks at it


@pytest.mark.asyncio
class AdapterSuite:
    """Subclass it and give the fixtures. `stranded` is an adapter whose platform cannot be reached (nothing listens)."""

    def op(self, driver: Driver, text: str = "hello", number: int = 1, **fields: object) -> Op:
        """An op for the driver's chat."""
        return Op.model_validate(
            {"id": number, "kind": "send_text", "chat": driver.chat, "text": text, "key": f"k{number}"} | fields
        )

    async def refusal(self, adapter: Adapter, op: Op) -> SendError:
        """The error that the op's send must raise."""
        with pytest.raises(SendError) as caught:
            await adapter.send(op, CountedGuard())
        return caught.value

    # -- what it says of itself --

    async def test_limits_are_sane(self, adapter: Adapter) -> None:
        limits = adapter.limits
        assert 0 < limits.caption_max <= limits.text_max
        assert limits.attachment_bytes_max > 0
        assert limits.edit_interval_seconds >= 0 and limits.chat_rate > 0 and limits.bot_rate >= limits.chat_rate
        assert adapter.platform == adapter.platform.lower() != ""

    async def test_account_is_always_the_same(self, adapter: Adapter) -> None:
        assert await adapter.account() == await adapter.account() != ""

    async def test_account_stops_when_the_credentials_are_refused(self, adapter: Adapter, driver: Driver) -> None:
        await driver.revoke()
        with pytest.raises(AccountStopped):
            await adapter.account()

    # -- receiving --

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

    # -- sending --

    async def test_a_send_has_a_receipt(self, adapter: Adapter, driver: Driver) -> None:
        receipts = [await adapter.send(self.op(driver, text, n), CountedGuard()) for n, text in enumerate("ab", 1)]
        assert list(await driver.sent()) == ["a", "b"]
        assert len({receipt.message_id for receipt in receipts} - {None, ""}) == 2

    async def test_a_refused_send_is_permanent(self, adapter: Adapter, driver: Driver) -> None:
        await driver.arm(Fault.REFUSED)
        error = await self.refusal(adapter, self.op(driver))
        assert error.kind is SendFailure.PERMANENT
        assert list(await driver.sent()) == []

    async def test_refused_credentials_are_named_so(self, adapter: Adapter, driver: Driver) -> None:
        await driver.arm(Fault.UNAUTHORIZED)
        error = await self.refusal(adapter, self.op(driver))
        assert (error.kind, error.code) == (SendFailure.PERMANENT, "unauthorized")

    async def test_a_rate_limit_is_retryable_when_the_platform_says(self, adapter: Adapter, driver: Driver) -> None:
        await driver.arm(Fault.RATE_LIMITED)
        error = await self.refusal(adapter, self.op(driver))
        assert (error.kind, error.retry_after) == (SendFailure.RETRYABLE, RETRY_AFTER_SECONDS)
        assert await driver.send_calls() == 1
        await adapter.send(self.op(driver), CountedGuard())
        assert list(await driver.sent()) == ["hello"]

    async def test_an_unreachable_platform_makes_a_send_retryable(self, stranded: Adapter, driver: Driver) -> None:
        error = await self.refusal(stranded, self.op(driver))
        assert error.kind is SendFailure.RETRYABLE

    @pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.LOST])
    async def test_what_may_have_been_sent_is_unknown(self, adapter: Adapter, driver: Driver, fault: Fault) -> None:
        await driver.arm(fault)
        error = await self.refusal(adapter, self.op(driver))
        assert error.kind is SendFailure.UNKNOWN
        assert list(await driver.sent()) == ["hello"]
        assert await driver.send_calls() == 1

    async def test_a_silent_platform_can_be_given_up(self, adapter: Adapter, driver: Driver) -> None:
        await driver.arm(Fault.SILENCE)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(adapter.send(self.op(driver), CountedGuard()))
            await until(lambda: _sent(driver, 1))
            sending.cancel()
        assert sending.cancelled()
        await adapter.send(self.op(driver, "next", 2), CountedGuard())
        assert list(await driver.sent()) == ["hello", "next"]

    async def test_a_second_call_asks_the_guard(self, adapter: Adapter, driver: Driver) -> None:
        await driver.arm(Fault.UNFORMATTED)
        guard = CountedGuard()
        with contextlib.suppress(SendError):
            await adapter.send(self.op(driver, "**bold**", markdown=True), guard)
        assert await driver.send_calls() <= 1 + guard.asked

    async def test_what_the_guard_raises_ends_the_send(self, adapter: Adapter, driver: Driver) -> None:
        await driver.arm(Fault.UNFORMATTED)
        guard = CountedGuard(Interrupted())
        with pytest.raises((Interrupted, SendError)) as caught:
            await adapter.send(self.op(driver, "**bold**", markdown=True), guard)
        assert isinstance(caught.value, Interrupted) == (guard.asked > 0)
        assert await driver.send_calls() == 1
        assert list(await driver.sent()) == []

    async def test_text_of_the_limit_is_sent_and_longer_is_refused_unsent(
        self, adapter: Adapter, driver: Driver
    ) -> None:
        limits = adapter.limits
        fits = "\U0001f600" * (limits.text_max // length("\U0001f600", limits.text_unit))
        await adapter.send(self.op(driver, fits), CountedGuard())
        error = await self.refusal(adapter, self.op(driver, fits + "xx", 2))
        assert (error.kind, error.code) == (SendFailure.PERMANENT, "too_long")
        assert await driver.send_calls() == 1

    async def test_hostile_text_is_sent_readable(self, adapter: Adapter, driver: Driver) -> None:
        for number, text in enumerate(("a\x00b", "\ude00", "<b>&amp;", "[x](", "`"), 1):
            await adapter.send(self.op(driver, text, number, markdown=True), CountedGuard())
        assert list(await driver.sent()) == ["a\ufffdb", "\ufffd", "<b>&amp;", "[x](", "`"]

    async def test_the_same_key_is_sent_once_where_the_adapter_says_so(self, adapter: Adapter, driver: Driver) -> None:
        if not adapter.idempotent("send_text"):
            pytest.skip("the platform has no idempotency keys")
        op = self.op(driver)
        first, second = await adapter.send(op, CountedGuard()), await adapter.send(op, CountedGuard())
        assert first.message_id == second.message_id
        assert list(await driver.sent()) == ["hello"]

    async def test_an_edit_keeps_its_message(self, adapter: Adapter, driver: Driver) -> None:
        editor, edited = await self._written(adapter, driver, "done")
        for _ in range(2):
            assert (await editor.edit(edited, CountedGuard())).message_id == edited.message_id

    async def test_an_edit_takes_markdown_that_breaks_off(self, adapter: Adapter, driver: Driver) -> None:
        editor, edited = await self._written(adapter, driver, "")
        for text in ("**bo …", "a `co …", "[a](http://b …", "```py\nx = 1\n…", "> q\n\n| a |\n| - …", "- *it …"):
            receipt = await editor.edit(edited.model_copy(update={"text": text, "markdown": True}), CountedGuard())
            assert receipt.message_id == edited.message_id

    @pytest.mark.parametrize(
        ("fault", "kind"),
        [
            (Fault.REFUSED, SendFailure.PERMANENT),
            (Fault.RATE_LIMITED, SendFailure.RETRYABLE),
            (Fault.SERVER_ERROR, SendFailure.UNKNOWN),
            (Fault.LOST, SendFailure.UNKNOWN),
        ],
    )
    async def test_an_edit_is_judged_like_a_send(
        self, adapter: Adapter, driver: Driver, fault: Fault, kind: SendFailure
    ) -> None:
        editor, edited = await self._written(adapter, driver, "done")
        await driver.arm(fault)
        with pytest.raises(SendError) as caught:
            await editor.edit(edited, CountedGuard())
        assert caught.value.kind is kind
        assert caught.value.retry_after == (RETRY_AFTER_SECONDS if fault is Fault.RATE_LIMITED else None)

    async def _written(self, adapter: Adapter, driver: Driver, text: str) -> tuple[CanEdit, Op]:
        """The adapter as one that edits, and an op that gives a message of its own another text."""
        if not isinstance(adapter, CanEdit):
            pytest.skip("the platform has no edits")
        receipt = await adapter.send(self.op(driver, "draft"), CountedGuard())
        return adapter, self.op(driver, text, 2, kind="draft_update", message_id=receipt.message_id)

    # -- the end --

    async def test_close_may_come_at_any_time_and_twice(self, adapter: Adapter, stranded: Adapter) -> None:
        await stranded.close()
        await adapter.account()
        await adapter.close()
        await adapter.close()


async def _stopped(adapter: Adapter, delivered: Delivered) -> None:
    with pytest.raises(AccountStopped):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await adapter.receive(None, delivered)


async def _reached(driver: Driver, count: int) -> bool:
    return await driver.acknowledged() >= count


async def _sent(driver: Driver, count: int) -> bool:
    return len(await driver.sent()) >= count


async def _no_more_tasks_than(before: set[asyncio.Task[object]]) -> bool:
    return asyncio.all_tasks() <= before
