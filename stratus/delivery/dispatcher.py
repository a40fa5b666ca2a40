"""Drains one channel's outbox: intents are committed, guarded, sent side by side (one a lane), and settled in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import get_args
from uuid import UUID

import structlog

from stratus.channel.errors import SendError
from stratus.channel.protocol import Adapter
from stratus.channel.values import Op, OpKind, Receipt
from stratus.delivery import outcomes
from stratus.delivery.files import Files
from stratus.delivery.guard import OpGuard
from stratus.delivery.ops import call, nothing_to_settle, op_of
from stratus.delivery.receipts import Receipts
from stratus.delivery.tenure import Tenure
from stratus.delivery.terms import Doors, Ending, Spawn, Terms
from stratus.domain.errors import DatabaseAway, LeaseLost
from stratus.effects import Loop
from stratus.store import attempt, settle
from stratus.store.database import Database
from stratus.store.intent import Intent, begin, intend
from stratus.store.rate import UNLIMITED, Rates, forget
from stratus.store.settle import Outcome
from stratus.telemetry import ADOPTED, SENDS

log = structlog.get_logger(__name__)

# A taken-over lane goes on within a quarter of the grace of when it may; the look is one small statement on an index.
_ADOPT_SHARE = 0.25
_STORE_SECONDS_MIN = 2.0
# An adapter may ignore its cancellation; the runtime lets go of it then.
_CANCEL_SECONDS = 1.0
# The manager polls for all channels at once and wakes those that have something due.
_POLLS = 20
_WAIT_SECONDS_MIN = 0.02
_FORGET_SECONDS = 600.0


@dataclass(frozen=True)
class _Send:
    """An op about to leave. Monotonic seconds: `until` when this attempt may run, `same_key_until` when a repeat is safe by its key."""

    intent: Intent
    op: Op
    until: float
    same_key_until: float


class Dispatcher:
    """The sending half of one channel's runtime. `step()` never waits for a platform: sends run beside it and wake it when they end.

    `on_end` is told when this must not go on: the lease is gone, or the platform refuses the bot.
    """

    def __init__(
        self,
        db: Database,
        channel: UUID,
        tenure: Tenure,
        adapter: Adapter,
        terms: Terms,
        doors: Doors,
        spawn: Spawn,
        on_end: Callable[[Ending], None],
        rates: Rates = UNLIMITED,
    ) -> None:
        self._db = db
        self._channel = channel
        self._tenure = tenure
        self._adapter = adapter
        self._terms = terms
        self._clock, self._chance, self._failpoints = doors.clock, doors.chance, doors.failpoints
        self._spawn = spawn
        self._on_end = on_end
        self._rates = rates
        self._forget_at = 0.0
        self._receipts = Receipts(db, doors.failpoints)
        self._files = Files(db, adapter.limits)
        self._in_hand: set[UUID] = set()  # from the intent until its outcome is stored
        self._sends: set[asyncio.Task[None]] = set()
        self._adopt_at = 0.0
        self._closing = False
        poll = terms.poll * _POLLS
        self.loop = Loop(f"outbox.{tenure.lease.channel_id}", self.step, poll, doors.clock, doors.chance)

    async def step(self) -> bool:
        """Store what has ended, take over what an earlier owner left, start what is due."""
        settled = await self._receipts.store()
        self._in_hand.difference_update(settled)
        if self._closing or not self._tenure.valid():
            return bool(settled)
        adopted = await self._adopt()
        intents = await self._intend()
        if intents:
            await self._launch(intents)
        return bool(settled or adopted or intents)

    async def settle(self, seconds: float) -> None:
        """Start nothing more, let sends in hand end within `seconds`, cut off the rest, store what is known. `loop` has ended before."""
        self._closing = True
        until = self._clock.monotonic() + max(seconds, _STORE_SECONDS_MIN)
        if self._sends:
            await asyncio.wait(self._sends, timeout=max(seconds, 0))
        for task in self._sends:
            task.cancel()
        if self._sends:
            await asyncio.wait(self._sends, timeout=_CANCEL_SECONDS)
        try:
            async with asyncio.timeout(max(until - self._clock.monotonic(), _STORE_SECONDS_MIN)):
                await self._receipts.store()
        except (DatabaseAway, TimeoutError):
            log.warning("receipts.unstored", channel=self._tenure.lease.channel_id, count=len(self._receipts))

    def unstored(self) -> list[Outcome]:
        """Hand over the outcomes that the database has not taken: somebody must keep trying."""
        return self._receipts.take()

    async def _adopt(self) -> bool:
        now = self._clock.monotonic()
        if now < self._adopt_at:
            return False
        self._adopt_at = now + self._terms.send_grace * _ADOPT_SHARE
        if now >= self._forget_at:
            self._forget_at = now + _FORGET_SECONDS
            await forget(self._db, self._tenure.lease.channel_id)
        states = await settle.adopt(self._db, self._tenure.lease, self._terms.send_grace, self._windows())
        for op_id, state in states.items():
            log.warning("send.adopted", channel=self._tenure.lease.channel_id, op=op_id, state=state)
            ADOPTED.labels(self._adapter.platform, state).inc()
        return bool(states)

    async def _intend(self) -> Sequence[Intent]:
        free = self._terms.slots - len(self._in_hand)
        if free <= 0:
            return []
        lease, replica = self._tenure.lease, self._terms.replica
        try:
            claim = await intend(self._db, lease, replica, free, self._rates)
        except LeaseLost:
            self._tenure.end()
            self._on_end(Ending.LOST)
            return []
        self._in_hand.update(intent.token for intent in claim.intents)
        if claim.wait is not None:
            self.loop.wake_within(max(claim.wait, _WAIT_SECONDS_MIN))
        return claim.intents

    async def _launch(self, intents: Sequence[Intent]) -> None:
        """Every intent either gets a send or an outcome, whatever happens here."""
        left = {intent.token: intent for intent in intents}
        try:
            await self._failpoints.hit("send.after_intent")
            for send in await self._guarded(await self._prepared(intents, left)):
                del left[send.intent.token]
                task = self._spawn(self._send(send))
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
        except Exception as error:
            log.warning("send.not_begun", channel=self._tenure.lease.channel_id, error=type(error).__name__)
        self._tell(outcomes.not_sent(intent, "not_begun") for intent in left.values())

    async def _prepared(self, intents: Sequence[Intent], left: dict[UUID, Intent]) -> list[_Send]:
        """The sends to ask the guard for; what cannot or must not be sent gets its outcome and leaves `left`."""
        again = [intent.op_id for intent in intents if intent.attempt > 1]
        ages = await attempt.same_key_ages(self._db, again) if again else {}
        started = self._clock.monotonic()
        sends = []
        for intent in intents:
            prepared = self._prepare(intent, started, ages)
            if isinstance(prepared, Outcome):
                del left[intent.token]
                self._tell([prepared])
            else:
                sends.append(prepared)
        return sends

    def _prepare(self, intent: Intent, started: float, ages: Mapping[int, float]) -> _Send | Outcome:
        try:
            op = op_of(intent, self._channel, self._terms.replica)
        except ValueError as error:
            return outcomes.permanent(intent, "bad_op", type(error).__name__)
        if nothing_to_settle(intent):
            return outcomes.accepted(intent, Receipt(detail={"left": "there is no preview to settle"}))
        budget = self._terms.budget(intent.kind)
        # A repeat may reach the platform as late as at the end of its own budget.
        same_key_until = started - ages.get(intent.op_id, 0.0) + self._window(intent.kind) - budget
        if intent.op_id in ages and started > same_key_until:
            return outcomes.unknown(intent, "key_expired")
        return _Send(intent, op, started + budget, same_key_until)

    def _window(self, kind: str) -> float:
        """Seconds in which the platform takes an op's key again. Of a draft only the newest text matters: it is never repeated."""
        window = None if kind == "draft_update" else self._adapter.idempotent(kind)
        return (window or timedelta()).total_seconds()

    def _windows(self) -> dict[str, float]:
        return {kind: seconds for kind in get_args(OpKind) if (seconds := self._window(kind))}

    async def _guarded(self, sends: Sequence[_Send]) -> list[_Send]:
        if not sends or not self._tenure.valid():
            return []
        intents = [send.intent for send in sends]
        allowed = await self._begin(intents)
        return [send for send in sends if send.intent.token in allowed]

    async def _send(self, send: _Send) -> None:
        guard = OpGuard(lambda: self._may_go_on(send))
        expired = asyncio.Event()
        loaded = False
        try:
            async with self._files.holding(send.op, send.until - self._clock.monotonic()) as op:
                loaded = True
                outcome = await self._call(send, op, guard, expired)
        except BaseException as error:  # a cancellation too leaves an attempt whose outcome somebody must be told
            told = loaded or isinstance(error, SendError)
            outcome = self._failed(send, guard, error) if told else outcomes.not_sent(send.intent, "not_loaded")
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            # What came too late to be the outcome is evidence, if it is a receipt.
            if not expired.is_set() or outcome.outcome == "sent":
                self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        self._tell([outcome])
        self.loop.wake()

    def _tell(self, ends: Iterable[Outcome]) -> None:
        for outcome in ends:
            SENDS.labels(self._adapter.platform, outcome.outcome).inc()
            self._receipts.add([outcome])

    async def _call(self, send: _Send, op: Op, guard: OpGuard, expired: asyncio.Event) -> Outcome:
        await self._failpoints.hit("send.before_write")
        left = send.until - self._clock.monotonic()
        if left <= 0 or not self._tenure.valid():
            return outcomes.not_sent(send.intent, "too_late")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:

            def expire() -> None:
                if guard.shut:  # nothing of it may leave any more
                    limit.reschedule(loop.time())
                else:  # the lane goes on; the platform may still tell what became of it, also if we slept meanwhile
                    expired.set()
                    self._end(self._failed(send, guard, TimeoutError()))
                    limit.reschedule(loop.time() + self._terms.send_budget)

            timer = loop.call_later(left, expire)
            try:
                receipt: Receipt = await call(self._adapter, op, guard)
            finally:
                timer.cancel()
        await self._failpoints.hit("send.after_write")
        return outcomes.accepted(send.intent, receipt)

    def _failed(self, send: _Send, guard: OpGuard, error: BaseException) -> Outcome:
        if guard.shut:
            return outcomes.not_sent(send.intent, "guard_refused")
        if outcomes.credentials_refused(error):
            self._closing = True
            self._on_end(Ending.REFUSED)
        same_key_seconds = send.same_key_until - self._clock.monotonic()
        return outcomes.failed(send.intent, error, self._chance.spread(0.5, 1.0), same_key_seconds)

    async def _may_go_on(self, send: _Send) -> bool:
        if not self._tenure.valid() or self._clock.monotonic() >= send.until:
            return False
        allowed = await self._begin([send.intent])
        return send.intent.token in allowed and self._clock.monotonic() < send.until

    async def _begin(self, intents: Sequence[Intent]) -> set[UUID]:
        return await begin(self._db, self._tenure.lease, intents, self._terms.send_budget, self._terms.draft_budget)
