"""How a channel's contact with its platform is judged: what is waited for, what is told, and when it is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from stratus.channel.errors import AccountStopped, PollConflict, SendError, SendFailure
from stratus.channel.protocol import Cursor, Deliver
from stratus.channel.values import Event
from stratus.delivery.health import ChannelHealth
from stratus.delivery.link import CONFLICT_FAILED_SECONDS, CONFLICT_PAUSE_SECONDS, FAILURES_MAX, Link
from stratus.delivery.tenure import Tenure, TenureExpired
from stratus.delivery.terms import Doors, Ending
from stratus.domain.errors import DatabaseAway, LeaseLost
from stratus.effects import Clock
from stratus.store import channel_lease
from stratus.store.channel_lease import OwnedChannel
from stratus.store.database import Connection, Database
from stratus.store.inbox import ChannelLease
from tests.store.parked import parked
from tests.store.world import rows
from tests.system.delivery_rig import TERMS, Platform, Scripted, add_channel

Step = Exception | Callable[[], Awaitable[object]] | None
POLLED: Step = None


class SteppedClock(Clock):
    """Waiting takes no time, and counts."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class Contact:
    """A link whose platform does what the script says, one step a call of receive(); then it receives for ever."""

    def __init__(self, db: Database, owned: OwnedChannel, script: Sequence[Step]) -> None:
        self.clock = SteppedClock()
        self.tenure = Tenure(owned.lease, self.clock.time + 10_000, self.clock)
        self.told: list[tuple[str, str]] = []
        self.health = ChannelHealth(owned.row.id, lambda: self.told.append((str(self.health.state), self.health.cause)))
        self.accounts = 0
        self.exhausted = asyncio.Event()
        exhausted, todo = self.exhausted, list(script)

        class Adapter(Scripted):
            shared = Platform()

            async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
                while todo:
                    step = todo.pop(0)
                    if isinstance(step, Exception):
                        raise step
                    await (deliver((), None) if step is None else step())
                exhausted.set()
                await asyncio.Event().wait()

        async def deliver(lease: ChannelLease, events: Sequence[Event], cursor: Mapping[str, Any] | None) -> None:
            return None

        adapter = Adapter.__new__(Adapter)
        self.link = Link(
            db, owned, self.tenure, adapter, deliver, self.health, TERMS, Doors(clock=self.clock), self._known
        )
        self.todo = todo

    def _known(self) -> None:
        self.accounts += 1

    async def run(self) -> Ending | None:
        """Until the link ends, or (None) the script has."""
        task = asyncio.create_task(self.link.run())
        over = asyncio.create_task(self.exhausted.wait())
        await asyncio.wait([task, over], timeout=20, return_when=asyncio.FIRST_COMPLETED)
        ended = task.result() if task.done() else None
        for one in (task, over):
            one.cancel()
        await asyncio.gather(task, over, return_exceptions=True)
        return ended


@pytest.fixture
async def owned(db: Database) -> OwnedChannel:
    await add_channel(db)
    [taken] = await channel_lease.acquire(db, "a", 600.0, 1)
    return taken


async def test_the_account_is_recorded_once_and_then_sending_begins(db: Database, owned: OwnedChannel) -> None:
    contact = Contact(db, owned, [OSError(), POLLED, OSError()])
    assert await contact.run() is None
    assert contact.accounts == 1
    assert await rows(db, "SELECT account_key FROM channel") == [{"account_key": "bot1"}]


async def test_a_conflict_is_waited_out_and_fails_the_channel_after_a_minute(db: Database, owned: OwnedChannel) -> None:
    tries = int(CONFLICT_FAILED_SECONDS / CONFLICT_PAUSE_SECONDS) + 2
    contact = Contact(db, owned, [PollConflict("409") for _ in range(tries)])
    assert await contact.run() is None
    assert min(contact.clock.slept) >= CONFLICT_PAUSE_SECONDS
    assert contact.told == [("degraded", "poll_conflict"), ("failed", "poll_conflict")]


async def test_only_a_completed_poll_ends_a_conflict(db: Database, owned: OwnedChannel) -> None:
    half: list[Step] = [PollConflict("409") for _ in range(12)]
    contact = Contact(db, owned, [*half, POLLED, *half, POLLED])
    assert await contact.run() is None
    assert [state for state, _ in contact.told] == ["degraded", "connected", "degraded", "connected"]
    assert sum(contact.clock.slept) > CONFLICT_FAILED_SECONDS


async def test_a_conflict_looks_at_the_lease(db: Database, owned: OwnedChannel) -> None:
    async def steal() -> None:
        await db.transact(lambda c: c.execute("UPDATE channel SET runtime_token = runtime_token + 1"))

    assert await Contact(db, owned, [POLLED, steal, PollConflict("409")]).run() is Ending.LOST


async def test_many_failed_contacts_in_a_row_give_the_channel_up(db: Database, owned: OwnedChannel) -> None:
    contact = Contact(db, owned, [OSError("https://api/bot1:secret") for _ in range(50)])
    assert await contact.run() is Ending.UNREACHABLE
    assert FAILURES_MAX <= 50 - len(contact.todo) < 20 and sum(contact.clock.slept) > TERMS.ttl
    assert contact.told == [("degraded", "contact_failed"), ("failed", "unreachable")]
    assert "secret" not in (contact.health.error or "")


async def test_a_platform_that_takes_polls_and_never_answers_gives_the_channel_up_at_the_second(
    db: Database, owned: OwnedChannel
) -> None:
    contact = Contact(db, owned, [])

    async def hang() -> None:
        contact.clock.time += TERMS.ttl + 1
        raise TimeoutError

    contact.todo[:] = [hang, POLLED, hang, hang, POLLED]
    assert await contact.run() is Ending.UNREACHABLE
    assert contact.todo == [POLLED], "the first of two may pass, and a completed poll starts the count anew"


async def test_a_platform_that_was_quiet_before_may_fail_twice(db: Database, owned: OwnedChannel) -> None:
    contact = Contact(db, owned, [])

    async def quiet() -> None:
        contact.clock.time += 100 * TERMS.ttl

    contact.todo[:] = [POLLED, quiet, OSError(), OSError(), POLLED]
    assert await contact.run() is None


async def test_a_completed_poll_makes_the_count_start_anew(db: Database, owned: OwnedChannel) -> None:
    few: list[Step] = [OSError() for _ in range(FAILURES_MAX - 1)]
    contact = Contact(db, owned, [*few, POLLED, *few, POLLED, *few])
    assert await contact.run() is None


async def test_an_outage_of_the_database_is_no_failed_contact(db: Database, owned: OwnedChannel) -> None:
    contact = Contact(db, owned, [DatabaseAway("away") for _ in range(40)])
    assert await contact.run() is None
    assert contact.told == [] and max(contact.clock.slept) < 15


async def test_a_flood_wait_is_waited_as_long_as_demanded(db: Database, owned: OwnedChannel) -> None:
    contact = Contact(db, owned, [SendError(SendFailure.RETRYABLE, "rate_limited", "slow", retry_after=300.0)])
    assert await contact.run() is None
    assert contact.clock.slept == [300.0]


@pytest.mark.parametrize(
    ("error", "ending"), [(AccountStopped("revoked"), Ending.REFUSED), (LeaseLost("another's"), Ending.LOST)]
)
async def test_some_ends_are_final(db: Database, owned: OwnedChannel, error: Exception, ending: Ending) -> None:
    assert await Contact(db, owned, [error]).run() is ending


async def test_an_ended_tenure_cancels_the_poll_at_once_and_starts_none() -> None:
    clock = Clock()
    tenure = Tenure(ChannelLease(1, 1, uuid4()), clock.monotonic() + 60, clock)
    entered = asyncio.Event()

    async def poll() -> None:
        async with tenure.held():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(poll())
    await entered.wait()
    tenure.end()
    with pytest.raises(TenureExpired):
        await task
    entered.clear()
    tenure.extend(clock.monotonic() + 60)
    with pytest.raises(TenureExpired):
        await poll()
    assert not entered.is_set() and not tenure.valid()


async def test_a_renewal_keeps_the_poll_going_and_anothers_timeout_is_its_own() -> None:
    clock = Clock()
    tenure = Tenure(ChannelLease(1, 1, uuid4()), clock.monotonic() + 0.05, clock)
    async with tenure.held():
        tenure.extend(clock.monotonic() + 60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        async with tenure.held():
            raise TimeoutError


@pytest.mark.parametrize(("lapsed", "silent", "again"), [(200.0, 0, 1), (0.0, 200, 1), (5.0, 5, 0), (100.0, 20, 1)])
async def test_after_a_long_silence_open_questions_are_asked_again_once(
    db: Database, lapsed: float, silent: int, again: int
) -> None:
    """Nobody held the channel for `lapsed` seconds; then its platform did not answer for `silent` seconds more."""
    row = await add_channel(db)
    one = await parked(db, channel_id=row.id, calls=1)
    for sent in (
        "state = 'sending', attempt_token = gen_random_uuid()",
        "state = 'sent', attempt_token = NULL, settled_at = clock_timestamp()",
    ):
        await db.transact(partial(_execute, f"UPDATE channel_outbox SET {sent}"))
    await db.transact(
        lambda c: c.execute(
            "UPDATE channel SET runtime_holder = $1, lease_until = clock_timestamp() - make_interval(secs => $2)",
            uuid4(),
            lapsed,
        )
    )
    [owned] = await channel_lease.acquire(db, "b", 600.0, 1)
    script: list[Step] = [PollConflict("409", retry_after=silent) if silent else OSError(), POLLED, OSError(), POLLED]
    assert await Contact(db, owned, script).run() is None
    assert await rows(db, "SELECT offers FROM approval") == [{"offers": 1 + again}]
    assert one.approvals


async def _execute(sql: str, connection: Connection) -> None:
    await connection.execute(sql)
