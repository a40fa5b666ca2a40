"""The receiving half of a channel's runtime: asks who the bot is, receives, and judges each failure of the contact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import structlog

from stratus.channel.errors import AccountStopped, Misconfigured, PollConflict, SendError, StartRefused
from stratus.channel.protocol import Adapter, NeedsBudget
from stratus.channel.values import Event
from stratus.delivery.echoes import confirm
from stratus.delivery.health import ChannelHealth, State
from stratus.delivery.tenure import Tenure, TenureExpired
from stratus.delivery.terms import DeliverEvents, Doors, Ending, Terms
from stratus.domain.errors import DatabaseAway, LeaseLost
from stratus.store import channel_lease, prompts, start_budget
from stratus.store.channel_lease import AccountTaken, OwnedChannel
from stratus.store.database import Database

log = structlog.get_logger(__name__)

FAILURES_MAX = 6
STALLS_MAX = 2
MISCONFIGURED = "misconfigured"
CONFLICT_PAUSE_SECONDS = 3.0
CONFLICT_FAILED_SECONDS = 60.0
_ACCOUNT_SECONDS = 20.0
_BACKOFF_SECONDS = 0.5
_BACKOFF_MAX_SECONDS = 10.0
_EXPIRED_PAUSE_SECONDS = 0.2
_HELD_BACK_FAILED_SECONDS = 600.0
# Telegram drops a tap that nobody has fetched for 150 s. An outage is noticed up to a poll late, and a lapsed lease up to its TTL.
_TAPS_LOST_SECONDS = 110.0


class Link:
    """One contact with one platform, kept up. Only a completed poll proves that it works, not a call that did not fail."""

    def __init__(
        self,
        db: Database,
        owned: OwnedChannel,
        tenure: Tenure,
        adapter: Adapter,
        deliver: DeliverEvents,
        health: ChannelHealth,
        terms: Terms,
        doors: Doors,
        on_account: Callable[[], None],
    ) -> None:
        self._db = db
        self._public_id = owned.row.public_id
        self._tenure = tenure
        self._adapter = adapter
        self._deliver = deliver
        self._health = health
        self._ttl = terms.ttl
        self._clock, self._chance = doors.clock, doors.chance
        self._on_account = on_account
        self._cursor: Mapping[str, Any] | None = owned.cursor
        self._account_known = False
        self._failures = 0  # in a row, of the platform
        self._away = 0  # in a row, of the database
        self._failing_since = 0.0
        self._quiet_since = 0.0  # when this contact began, or last heard the platform
        self._conflict_since: float | None = None
        self._deaf_since: float | None = self._clock.monotonic() - owned.away

    async def run(self) -> Ending:
        """Until it must end. `on_account` is called once, when sending may begin."""
        while True:
            try:
                async with self._tenure.held():
                    await self._contact()
            except Exception as error:
                if self._deaf_since is None:
                    self._deaf_since = self._clock.monotonic()
                judged = await self._judge(error)
                if isinstance(judged, Ending):
                    return judged
                await self._clock.sleep(judged)

    async def _contact(self) -> NoReturn:
        self._quiet_since = self._clock.monotonic()
        if not self._account_known:
            await self._identify()
        await self._adapter.receive(self._cursor, self._accept)
        raise ConnectionError("the adapter's receive() returned")

    async def _identify(self) -> None:
        async with asyncio.timeout(_ACCOUNT_SECONDS):
            account = await self._adapter.account()
        known = await channel_lease.set_account(self._db, self._tenure.lease, account)
        self._cursor = known.cursor
        if known.before not in (None, account):
            log.warning(
                "channel.account_changed", channel=self._tenure.lease.channel_id, before=known.before, account=account
            )
        if isinstance(self._adapter, NeedsBudget):
            self._adapter.use_budget(partial(self._spend_start, account))
        self._account_known = True
        self._on_account()

    async def _spend_start(self, account: str) -> None:
        """The adapter's `Budget`: one row a bot, whichever replica and channel starts the session."""
        wait = await start_budget.spend(self._db, self._adapter.platform, account)
        if wait > 0:
            raise StartRefused("the bot has started too many sessions lately", wait)

    async def _accept(self, events: Sequence[Event], cursor: Mapping[str, Any] | None) -> None:
        if not self._tenure.valid():
            raise TenureExpired("the lease was not renewed in time")
        await confirm(self._db, self._tenure.lease.channel_id, self._public_id, events)
        await self._deliver(self._tenure.lease, [event for event in events if event.echo is None], cursor)
        if cursor is not None:
            self._cursor = cursor
        self._failures = self._away = 0
        self._quiet_since = self._clock.monotonic()
        self._conflict_since = None
        self._health.set(State.CONNECTED)
        await self._heard()

    async def _heard(self) -> None:
        """Contact is made. After a long silence people may have tapped in vain: they are asked again."""
        if self._deaf_since is None:
            return
        if self._clock.monotonic() - self._deaf_since >= _TAPS_LOST_SECONDS:
            try:
                asked = await prompts.offer_unheard(self._db, self._tenure.lease.channel_id)
            except DatabaseAway:
                return  # the next contact tries again
            log.info("channel.heard_again", channel=self._tenure.lease.channel_id, asked_again=asked)
        self._deaf_since = None

    async def _judge(self, error: Exception) -> Ending | float:
        """What to do after `error`: end, or wait for so many seconds and go on."""
        if isinstance(error, AccountStopped | AccountTaken):
            return self._refused(error)
        if isinstance(error, TenureExpired):
            return _EXPIRED_PAUSE_SECONDS
        if isinstance(error, LeaseLost):
            return Ending.LOST
        if isinstance(error, DatabaseAway):
            self._away += 1
            return self._backoff(self._away)
        if isinstance(error, PollConflict):
            return await self._conflict(error)
        if isinstance(error, SendError) and error.retry_after is not None:
            self._health.set(State.DEGRADED, "flood_wait", str(error))
            return error.retry_after
        if isinstance(error, StartRefused):
            return self._held_back(error)
        return self._failed(error)

    def _refused(self, error: AccountStopped | AccountTaken) -> Ending:
        if isinstance(error, AccountTaken):
            self._health.set(State.FAILED, error.code, str(error))
        elif isinstance(error, Misconfigured):
            self._health.set(State.FAILED, MISCONFIGURED, str(error))
        else:
            self._health.set(State.FAILED, "credentials_refused", "the platform refuses the credentials")
        return Ending.REFUSED

    def _held_back(self, error: StartRefused) -> float:
        """No new session yet: a short wait is a passing fault, a long one needs somebody to look."""
        state = State.FAILED if error.retry_after > _HELD_BACK_FAILED_SECONDS else State.DEGRADED
        self._health.set(state, "start_budget", f"{error}; the next one may start in {error.retry_after:.0f} s")
        return error.retry_after

    async def _conflict(self, error: PollConflict) -> Ending | float:
        """Another consumer polls. A predecessor that has woken up looks the same as a stranger with our credentials."""
        now = self._clock.monotonic()
        if self._conflict_since is None:
            self._conflict_since = now
        try:
            found = await channel_lease.inspect(self._db, [self._tenure.lease])
        except DatabaseAway:
            found = []
        if any(not one.ours for one in found):
            return Ending.LOST
        lasting = now - self._conflict_since >= CONFLICT_FAILED_SECONDS
        self._health.set(State.FAILED if lasting else State.DEGRADED, "poll_conflict", str(error))
        pause = max(CONFLICT_PAUSE_SECONDS, error.retry_after)
        return pause + self._chance.spread(0.5, 1.0)

    def _failed(self, error: Exception) -> Ending | float:
        if isinstance(error, ImportError):
            text = f"{self._adapter.platform}: {error.name} is not installed on this replica"
            self._health.set(State.FAILED, "no_adapter", text)
            return Ending.UNSTARTABLE
        now = self._clock.monotonic()
        if self._failures == 0:
            self._failing_since = now
        self._failures += 1
        # The text of a stranger's error may hold a URL with a token: operators see its type.
        text = f"{self._failures} contacts in a row failed, the last with {type(error).__name__}"
        # A platform that takes a poll and never answers it fails rarely: the second time in a row is enough.
        stalled = self._failures >= STALLS_MAX and now - self._quiet_since > self._ttl
        if stalled or (self._failures >= FAILURES_MAX and now - self._failing_since > self._ttl):
            self._health.set(State.FAILED, "unreachable", text)
            return Ending.UNREACHABLE
        self._health.set(State.DEGRADED, "contact_failed", text)
        return self._backoff(self._failures)

    def _backoff(self, failures: int) -> float:
        return self._chance.spread(min(_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 10), _BACKOFF_MAX_SECONDS))
