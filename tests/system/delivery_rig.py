"""A scripted platform and replicas of the delivery room alone, in this process, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, ClassVar, Self
from uuid import uuid4

from stratus.channel.protocol import Adapter, Cursor, Deliver, Guard
from stratus.channel.values import Blob, ChannelConfig, Event, Limits, Op, RawRequest, Receipt, WebhookReply
from stratus.delivery.manager import ChannelManager
from stratus.delivery.terms import Doors, Terms
from stratus.domain.errors import DatabaseAway
from stratus.effects import Clock
from stratus.store import channel, channel_lease, inbox
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.hints import Hints
from stratus.store.inbox import Arrival, ChannelLease
from stratus.store.plan import NewOp, plan
from stratus.store.vault import Vault
from testbed.eventually import eventually
from tests.store.world import rows

TERMS = Terms(
    replica="a",
    public_url="http://here",
    ttl=6.0,
    send_budget=1.5,
    send_grace=0.5,
    poll=0.05,
    test_channels=True,
)
KEYS = ["k" * 32]

Answer = Callable[[Op, Guard], Awaitable[Receipt]]
Fetch = Callable[[str], Awaitable[Blob]]


class Platform:
    """What all adapters of a test talk to. `answers` and `fetches` are used up one a call; `polls` are errors for receive()."""

    def __init__(self) -> None:
        self.account = "bot1"
        self.window: timedelta | None = None
        self.calls: list[Op] = []
        self.sent: list[Op] = []
        self.answers: list[Answer] = []
        self.feed: list[tuple[list[Event], Cursor]] = []
        self.fed = asyncio.Event()
        self.receiving = 0
        self.cursors: list[Cursor | None] = []
        self.configs: list[ChannelConfig] = []
        self.closed = 0
        self.open = asyncio.Event()  # until then a poll does not come back
        self.open.set()
        self.blobs: dict[str, bytes] = {}
        self.fetches: list[Fetch] = []
        self.fetched: list[str] = []

    def adapters(self, _name: str) -> type[Adapter]:
        platform = self

        class Bound(Scripted):
            shared = platform

        return Bound

    async def hand_out(self, ref: str) -> Blob:
        return Blob(name=ref, mime="", data=self.blobs[ref])

    async def accept(self, op: Op, _guard: Guard | None = None) -> Receipt:
        self.sent.append(op)
        return Receipt(message_id=f"m{len(self.sent)}")

    def texts(self) -> list[str]:
        return [op.text for op in self.sent]


class Scripted:
    """The adapter."""

    platform: ClassVar[str] = "testchan"
    limits: ClassVar[Limits] = Limits(text_max=4096)
    shared: ClassVar[Platform]

    def __init__(self, config: ChannelConfig) -> None:
        self.shared.configs.append(config)

    def idempotent(self, kind: str) -> timedelta | None:
        return self.shared.window

    async def account(self) -> str:
        return self.shared.account

    async def receive(self, cursor: Cursor | None, deliver: Deliver) -> None:
        self.shared.cursors.append(cursor)
        self.shared.receiving += 1
        try:
            await self.shared.open.wait()
            await deliver((), None)
            while True:
                while self.shared.feed:
                    events, after = self.shared.feed[0]
                    await deliver(events, after)
                    self.shared.feed.pop(0)
                self.shared.fed.clear()
                await self.shared.fed.wait()
        finally:
            self.shared.receiving -= 1

    async def webhook(self, request: RawRequest) -> WebhookReply:
        return WebhookReply()

    async def fetch(self, ref: str) -> Blob:
        self.shared.fetched.append(ref)
        answer = self.shared.fetches.pop(0) if self.shared.fetches else self.shared.hand_out
        return await answer(ref)

    async def send(self, op: Op, guard: Guard) -> Receipt:
        self.shared.calls.append(op)
        answer = self.shared.answers.pop(0) if self.shared.answers else self.shared.accept
        return await answer(op, guard)

    async def close(self) -> None:
        self.shared.closed += 1


class Replica:
    """A channel manager with its loop, and a keeper of its leases that can be made to stop (`renewing`)."""

    def __init__(self, db: Database, platform: Platform, terms: Terms = TERMS, doors: Doors | None = None) -> None:
        self.db = db
        self.renewing = True
        self.hints = Hints(db.dsn, db.timeouts, "test")
        self._clock = Clock()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self.manager = ChannelManager(
            db, Vault(KEYS), self._deliver, terms, self.spawn, self.hints, adapters=platform.adapters, doors=doors
        )
        self._ttl = terms.ttl
        self.delivered: list[Event] = []
        self.away = False

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._group.create_task(work)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self.spawn(self.manager.loop.run())
        self.spawn(self.manager.drafts.loop.run())
        self.spawn(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def wake(self, channel_id: int) -> None:
        self.hints.send("outbox", str(channel_id))

    async def _deliver(self, lease: ChannelLease, events: Sequence[Event], cursor: Mapping[str, Any] | None) -> None:
        if self.away:
            raise DatabaseAway("cut off")
        await inbox.intake(self.db, [Arrival(lease.channel_id, e) for e in events], lease=lease, cursor=cursor)
        self.delivered.extend(events)
        self.hints.send("media", str(lease.channel_id))

    async def _keep(self) -> None:
        while True:
            leases = self.manager.leases()
            if self.renewing and leases:
                sent_at = self._clock.monotonic()
                with contextlib.suppress(DatabaseAway):
                    found = await self.db.read(lambda c, leases=leases: channel_lease.renew(c, leases, self._ttl))  # type: ignore[misc]
                    self.manager.on_renewals(found, sent_at)
            await asyncio.sleep(self._ttl / 30)


async def add_channel(db: Database, **config: Any) -> ChannelRow:
    public_id = uuid4()
    sealed = Vault(KEYS).seal(public_id, {"token": "secret"})
    return await channel.create(db, public_id, "testchan", "one", "demo", config, sealed)


async def put(
    db: Database, channel_id: int, *texts: str, lane: str = "a", chained: bool = False, account: str | None = None
) -> None:
    """Ops in one lane, in order."""
    ops = [
        NewOp(
            channel_id,
            lane,
            "send_text",
            {"chat": lane},
            {"text": text, "markdown": True, "reply_to": None},
            uuid4().hex,
            account_key=account,
            after=number - 1 if chained and number else None,
        )
        for number, text in enumerate(texts)
    ]
    await db.transact(lambda c: plan(c, ops))


async def states(db: Database) -> list[str]:
    return [str(row["state"]) for row in await rows(db, "SELECT state FROM channel_outbox ORDER BY id")]


async def health(db: Database) -> tuple[str, str]:
    [found] = await channel.listing(db)
    return str(found.health.get("state")), str(found.health.get("cause"))


@contextlib.asynccontextmanager
async def second_store(db: Database, dsn: str) -> AsyncIterator[Database]:
    """The store through another address."""
    other = Database(dsn, timeouts=db.timeouts, main_size=4, ingress_size=2)
    await other.open()
    try:
        yield other
    finally:
        await other.close()


def raising(error: Exception) -> Answer:
    async def answer(_op: Op, _guard: Guard) -> Receipt:
        raise error

    return answer


class Gate:
    """An answer that is held until the test lets it go."""

    def __init__(self, platform: Platform, ask_guard: bool = False) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self._platform = platform
        self._ask_guard = ask_guard

    async def __call__(self, op: Op, guard: Guard) -> Receipt:
        self.entered.set()
        await self.release.wait()
        if self._ask_guard:
            await guard()
        return await self._platform.accept(op)


async def all_are(db: Database, *wanted: str) -> None:
    async def settled() -> bool:
        return await states(db) == list(wanted)

    await eventually(settled, what=f"ops are {wanted}")


async def health_is(db: Database, *wanted: str) -> None:
    async def told() -> bool:
        return await health(db) == wanted

    await eventually(told, what=f"health is {wanted}")


async def hang(_op: Op, _guard: Guard) -> Receipt:
    await asyncio.Event().wait()
    raise AssertionError
