"""Each check of the conformance suite can fail: an adapter that breaks one promise, for every promise."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import pytest

from adapters.testchan import TestchanAdapter
from stratus.channel import (
    AccountStopped,
    Limits,
    Op,
    RawRequest,
    Receipt,
    SendError,
    SendFailure,
    WebhookReply,
    suite_receiving,
    suite_rig,
)
from stratus.channel.driver import Fault
from stratus.channel.protocol import Cursor, Deliver, Guard
from stratus.channel.suite import AdapterSuite
from stratus.channel.values import Event
from testbed.fakes.server import FakeServer
from testbed.sockets import ReservedPort
from tests.contract.test_testchan import SECRET, PlatformDriver, config

BACKGROUND: set[asyncio.Task[None]] = set()
counter = iter(range(1_000_000))


class Good(TestchanAdapter):
    """The honest one; the others change one thing each."""


class NoLimit(Good):
    limits: ClassVar[Limits] = Limits(text_max=10, caption_max=20)


class Fickle(Good):
    async def account(self) -> str:
        return f"bot{next(counter)}"


class Trusting(Good):
    async def account(self) -> str:
        try:
            return await super().account()
        except AccountStopped:
            return "bot"


class Changing(Good):
    """Changes what it delivers."""

    def change(self, events: Sequence[Event]) -> Sequence[Event]:
        return events

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        async def changed(events: Sequence[Event], cursor: Cursor | None) -> None:
            await deliver(self.change(events), cursor)

        await super().receive(cursor, changed)


class Doubling(Changing):
    def change(self, events: Sequence[Event]) -> Sequence[Event]:
        return [*events, *events]


class Renaming(Changing):
    def change(self, events: Sequence[Event]) -> Sequence[Event]:
        return [one.model_copy(update={"key": f"k{next(counter)}"}) for one in events]


class Dirty(Changing):
    def change(self, events: Sequence[Event]) -> Sequence[Event]:
        return [one.model_copy(update={"text": "a\x00b"}) for one in events]


class Hasty(Good):
    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        async def lost(events: Sequence[Event], cursor: Cursor | None) -> None:
            try:
                await deliver(events, cursor)
            except Exception:
                return

        await super().receive(cursor, lost)


class Forgetful(Good):
    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        await super().receive(None, deliver)


class Silent(Good):
    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        async def told(events: Sequence[Event], cursor: Cursor | None) -> None:
            if events:
                await deliver(events, cursor)

        await super().receive(cursor, told)


class Vague(Good):
    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        try:
            await super().receive(cursor, deliver)
        except AccountStopped:
            raise ConnectionError from None


class Patient(Good):
    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        try:
            await super().receive(cursor, deliver)
        except Exception:
            await asyncio.Event().wait()


class Littering(Good):
    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        BACKGROUND.add(asyncio.create_task(asyncio.sleep(60)))
        await super().receive(cursor, deliver)


class OtherKeys(Good):
    async def webhook(self, request: RawRequest) -> WebhookReply:
        reply = await super().webhook(request)
        return reply.model_copy(
            update={"events": [one.model_copy(update={"key": "pushed:" + one.key}) for one in reply.events]}
        )


class Open(Good):
    async def webhook(self, request: RawRequest) -> WebhookReply:
        return await super().webhook(request.model_copy(update={"headers": {"x-testchan-secret": SECRET}}))


class Strict(Good):
    async def webhook(self, request: RawRequest) -> WebhookReply:
        reply = await super().webhook(request)
        return WebhookReply(status=400) if any(one.kind == "other" for one in reply.events) else reply


class Receiptless(Good):
    async def send(self, op: Op, guard: Guard) -> Receipt:
        await super().send(op, guard)
        return Receipt()


class Misjudging(Good):
    """Says something else of each failure."""

    says: ClassVar[dict[str, Any]] = {}

    async def send(self, op: Op, guard: Guard) -> Receipt:
        try:
            return await super().send(op, guard)
        except SendError as error:
            said = {"kind": error.kind, "code": error.code, "retry_after": error.retry_after, **self.says}
            raise SendError(said["kind"], said["code"], "", retry_after=said["retry_after"]) from None


class Hopeful(Misjudging):
    says = {"kind": SendFailure.RETRYABLE}


class Gloomy(Misjudging):
    says = {"kind": SendFailure.PERMANENT}


class Unsure(Misjudging):
    says = {"kind": SendFailure.UNKNOWN}


class Nameless(Misjudging):
    says = {"code": "refused"}


class Timeless(Misjudging):
    says = {"retry_after": None}


class Claiming(Good):
    async def send(self, op: Op, guard: Guard) -> Receipt:
        try:
            return await super().send(op, guard)
        except asyncio.CancelledError:
            return Receipt(message_id="m")


class Unasking(Good):
    async def send(self, op: Op, guard: Guard) -> Receipt:
        try:
            return await super().send(op, guard)
        except SendError:
            return await super().send(op, guard)


class Overruling(Good):
    async def send(self, op: Op, guard: Guard) -> Receipt:
        try:
            return await super().send(op, guard)
        except SendError:
            try:
                await guard()
            except Exception:
                return await super().send(op, guard)
            raise


class Cutting(Good):
    async def send(self, op: Op, guard: Guard) -> Receipt:
        return await super().send(op.model_copy(update={"text": op.text[: self.limits.text_max // 2]}), guard)


class Escaping(Good):
    async def send(self, op: Op, guard: Guard) -> Receipt:
        return await super().send(op.model_copy(update={"text": op.text.replace("<", "&lt;")}), guard)


class Promising(Good):
    def idempotent(self, kind: str) -> Any:
        from datetime import timedelta

        return timedelta(minutes=1)


class Moving(Good):
    async def edit(self, op: Op, guard: Guard) -> Receipt:
        await super().edit(op, guard)
        return Receipt(message_id="another")


class Pedantic(Good):
    async def edit(self, op: Op, guard: Guard) -> Receipt:
        if op.markdown and op.text.count("`") % 2:
            raise SendError(SendFailure.PERMANENT, "bad_markdown", "")
        return await super().edit(op, guard)


class Buttonless(Good):
    async def close_prompt(self, op: Op, guard: Guard) -> Receipt:
        raise SendError(SendFailure.PERMANENT, "no_buttons", "")


class Once(Good):
    async def react(self, op: Op, guard: Guard) -> Receipt:
        if getattr(self, "_reacted", False):
            raise SendError(SendFailure.PERMANENT, "reacted", "")
        self._reacted = True
        return await super().react(op, guard)


class ClosedOnce(Good):
    async def close(self) -> None:
        if getattr(self, "_gone", False):
            raise RuntimeError("closed")
        self._gone = True
        await super().close()


BROKEN: list[tuple[str, type[Good], dict[str, Any]]] = [
    ("limits_are_sane", NoLimit, {}),
    ("account_is_always_the_same", Fickle, {}),
    ("account_stops_when_the_credentials_are_refused", Trusting, {}),
    ("events_arrive_once_and_in_order", Doubling, {}),
    ("nothing_is_acknowledged_before_it_is_stored", Hasty, {}),
    ("a_redelivered_event_has_the_same_key", Renaming, {}),
    ("it_goes_on_from_the_cursor", Forgetful, {}),
    ("a_quiet_poll_is_told_as_progress", Silent, {}),
    ("receive_stops_when_the_credentials_are_refused", Vague, {}),
    ("credentials_refused_later_stop_a_running_receive", Vague, {}),
    ("an_unreachable_platform_ends_receive_with_an_error", Patient, {}),
    ("a_cancelled_receive_leaves_nothing_behind", Littering, {}),
    ("hostile_text_arrives_storable", Dirty, {}),
    ("a_webhook_makes_the_key_that_polling_makes", OtherKeys, {}),
    ("an_unproven_webhook_is_refused", Open, {}),
    ("an_unreadable_webhook_is_taken_and_stored", Strict, {}),
    ("a_send_has_a_receipt", Receiptless, {}),
    ("a_refused_send_is_permanent", Hopeful, {}),
    ("refused_credentials_are_named_so", Nameless, {}),
    ("a_rate_limit_is_retryable_when_the_platform_says", Timeless, {}),
    ("an_unreachable_platform_makes_a_send_retryable", Unsure, {}),
    ("what_may_have_been_sent_is_unknown", Hopeful, {"fault": Fault.LOST}),
    ("what_may_have_been_sent_is_unknown", Gloomy, {"fault": Fault.SERVER_ERROR}),
    ("a_silent_platform_can_be_given_up", Claiming, {}),
    ("a_second_call_asks_the_guard", Unasking, {}),
    ("what_the_guard_raises_ends_the_send", Overruling, {}),
    ("text_of_the_limit_is_sent_and_longer_is_refused_unsent", Cutting, {}),
    ("hostile_text_is_sent_readable", Escaping, {}),
    ("the_same_key_is_sent_once_where_the_adapter_says_so", Promising, {}),
    ("an_edit_keeps_its_message", Moving, {}),
    ("an_edit_takes_markdown_that_breaks_off", Pedantic, {}),
    ("an_edit_is_judged_like_a_send", Gloomy, {"fault": Fault.LOST, "kind": SendFailure.UNKNOWN}),
    ("buttons_are_sent_and_taken_away", Buttonless, {}),
    ("a_reaction_can_be_set_again", Once, {}),
    ("close_may_come_at_any_time_and_twice", ClosedOnce, {}),
]
CHECKS = {name.removeprefix("test_") for name in dir(AdapterSuite) if name.startswith("test_")}


@pytest.fixture
async def driver() -> AsyncIterator[PlatformDriver]:
    made = PlatformDriver("")
    async with FakeServer(made.platform.app) as server:
        made.url = server.url
        yield made
    for task in BACKGROUND:
        task.cancel()
    BACKGROUND.clear()


def test_every_check_has_an_adapter_that_fails_it() -> None:
    assert {name for name, _, _ in BROKEN} == CHECKS


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite_rig, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(suite_receiving, "PATIENCE_SECONDS", 2.0)


async def perform(check: str, adapters: type[Good], driver: PlatformDriver, given: dict[str, Any]) -> None:
    method = getattr(AdapterSuite(), f"test_{check}")
    with ReservedPort() as nowhere:
        stranded, adapter = adapters(config(f"http://127.0.0.1:{nowhere.number}")), adapters(config(driver.url))
        fixtures = {"adapter": adapter, "driver": driver, "stranded": stranded, **given}
        try:
            await method(**{name: fixtures[name] for name in inspect.signature(method).parameters})
        finally:
            for one in (stranded, adapter):
                await TestchanAdapter.close(one)


@pytest.mark.parametrize(("check", "broken", "given"), BROKEN)
async def test_a_broken_promise_is_found(
    driver: PlatformDriver, check: str, broken: type[Good], given: dict[str, Any]
) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: B017, PT011 - an assertion, or what a test's failure is
        await perform(check, broken, driver, given)
    assert not isinstance(caught.value, pytest.skip.Exception | KeyboardInterrupt)


@pytest.mark.parametrize(("check", "broken", "given"), BROKEN)
async def test_a_kept_promise_is_not(
    driver: PlatformDriver, check: str, broken: type[Good], given: dict[str, Any]
) -> None:
    await perform(check, Good, driver, given)
