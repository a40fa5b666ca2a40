"""The conformance suite: what every adapter must do, as tests that its own contract tests subclass.

Imported by tests only. A subclass gives three fixtures: `driver`, `adapter` and `stranded`; see docs/adapter-guide.md.
"""

from __future__ import annotations

import pytest

from stratus.channel.driver import Driver
from stratus.channel.errors import AccountStopped
from stratus.channel.protocol import Adapter
from stratus.channel.suite_receiving import ReceivingSuite
from stratus.channel.suite_rig import PATIENCE_SECONDS, CountedGuard, Delivered, Interrupted, receiving, until
from stratus.channel.suite_sending import SendingSuite

__all__ = ["PATIENCE_SECONDS", "AdapterSuite", "CountedGuard", "Delivered", "Interrupted", "receiving", "until"]


@pytest.mark.asyncio
class AdapterSuite(ReceivingSuite, SendingSuite):
    """Subclass it and give the fixtures. `stranded` is an adapter whose platform cannot be reached (nothing listens)."""

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

    async def test_close_may_come_at_any_time_and_twice(self, adapter: Adapter, stranded: Adapter) -> None:
        await stranded.close()
        await adapter.account()
        await adapter.close()
        await adapter.close()
