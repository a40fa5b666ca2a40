"""The half of the conformance suite that sends: what a send says of its outcome, and edits."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from stratus.channel.driver import RETRY_AFTER_SECONDS, Driver, Fault
from stratus.channel.errors import SendError, SendFailure
from stratus.channel.protocol import Adapter, CanEdit, CanPrompt, CanReact
from stratus.channel.suite_rig import CountedGuard, Interrupted, until
from stratus.channel.text import length
from stratus.channel.values import Op


@pytest.mark.asyncio
class SendingSuite:
    """One call for an op, and an outcome that claims no more than is known."""

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

    async def test_buttons_are_sent_and_taken_away(self, adapter: Adapter, driver: Driver) -> None:
        if not isinstance(adapter, CanPrompt):
            pytest.skip("the platform has no buttons")
        asked = self.op(driver, "Shall I?", kind="approval_prompt", buttons=[("Yes", "y:1"), ("No", "n:1")])
        message = (await adapter.send(asked, CountedGuard())).message_id
        assert message and await driver.send_calls() == 1
        closed = self.op(driver, "Done: yes", 2, kind="edit_prompt", message_id=message)
        for _ in range(2):
            await adapter.close_prompt(closed, CountedGuard())

    async def test_a_reaction_can_be_set_again(self, adapter: Adapter, driver: Driver) -> None:
        if not isinstance(adapter, CanReact):
            pytest.skip("the platform has no reactions")
        receipt = await adapter.send(self.op(driver, "done"), CountedGuard())
        reaction = self.op(driver, "\U0001f44d", 2, kind="reaction", message_id=receipt.message_id)
        for _ in range(2):
            await adapter.react(reaction, CountedGuard())

    async def _written(self, adapter: Adapter, driver: Driver, text: str) -> tuple[CanEdit, Op]:
        """The adapter as one that edits, and an op that gives a message of its own another text."""
        if not isinstance(adapter, CanEdit):
            pytest.skip("the platform has no edits")
        receipt = await adapter.send(self.op(driver, "draft"), CountedGuard())
        return adapter, self.op(driver, text, 2, kind="draft_update", message_id=receipt.message_id)


async def _sent(driver: Driver, count: int) -> bool:
    return len(await driver.sent()) >= count
