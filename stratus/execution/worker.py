"""Claims as many runs as it has free slots and carries out their turns; holds their leases in the keeper's sight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from stratus.domain.errors import DatabaseAway
from stratus.effects import Clock, Failpoints
from stratus.execution.ending import TurnTools
from stratus.execution.recorder import Recorder
from stratus.execution.turn import Abort, Turn
from stratus.store.database import Database
from stratus.store.execution import ExecutionLease, Renewal, canceled
from stratus.store.hints import Hints
from stratus.store.message import histories
from stratus.store.renewal import local_deadline
from stratus.store.run import ClaimedRun, claim

_RETRY_SECONDS = 0.3

log = structlog.get_logger(__name__)


class Worker:
    """`step()` claims; `watch()` ends turns whose lease can no longer be relied on; `check_cancels()` looks after a hint."""

    def __init__(
        self,
        db: Database,
        hints: Hints,
        tools: TurnTools,
        recorder: Recorder,
        *,
        worker_id: str,
        slots: int,
        ttl: float,
        group: asyncio.TaskGroup,
        failpoints: Failpoints,
        renew_soon: Callable[[], None],
        capabilities: Sequence[str],
    ) -> None:
        self._db = db
        self._renew_soon = renew_soon
        self._hints = hints
        self._tools = tools
        self._recorder = recorder
        self._worker_id = worker_id
        self._capabilities = capabilities
        self._slots = slots
        self._ttl = ttl
        self._group = group
        self._failpoints = failpoints
        self._clock = Clock()
        self._turns: dict[str, Turn] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._claiming = asyncio.Lock()
        self._giving_back = False

    @property
    def busy(self) -> int:
        """How many turns are in hand."""
        return len(self._turns)

    async def step(self) -> bool:
        """Claim for every free slot. True when runs were claimed."""
        async with self._claiming:  # a drain must see the turns of a claim that has committed
            return await self._claim()

    async def _claim(self) -> bool:
        free = self._slots - len(self._turns)
        if free <= 0:
            return False
        sent_at = self._clock.monotonic()
        deadline = local_deadline(sent_at, self._ttl)
        claimed = await claim(self._db, self._worker_id, free, self._ttl, capabilities=self._capabilities)
        if not claimed:
            return False
        await self._failpoints.hit("claim.after_commit")
        turns = await self._with_history(claimed, deadline)
        self._idle.clear()
        for turn in turns:
            self._turns[turn.claimed.lease.session_id] = turn
            if self._giving_back:
                turn.abort(Abort.YIELDED)
            self._group.create_task(self._execute(turn))
        if self._clock.monotonic() - sent_at > self._ttl / 6:
            self._renew_soon()  # the answer came late: the next renewal may be later than the lease lasts
        return True

    async def _with_history(self, claimed: Sequence[ClaimedRun], deadline: float) -> list[Turn]:
        while True:
            try:
                told = await histories(self._db, [one.lease for one in claimed])
                break
            except DatabaseAway:  # what is claimed must not be dropped while its lease lasts
                if self._clock.monotonic() > deadline:
                    raise
                await self._clock.sleep(_RETRY_SECONDS)
        return [
            Turn(one, told.get(one.lease.session_id, []), self._tools, self._recorder.mark, deadline) for one in claimed
        ]

    async def _execute(self, turn: Turn) -> None:
        lease = turn.claimed.lease
        try:
            if await turn.execute():
                self._hints.send("session", lease.session_id)
                self._hints.send("runs")
                if turn.claimed.reply_to is not None:
                    self._hints.send("outbox", str(turn.claimed.reply_to.channel_id))
                if turn.claimed.kind == "delegated":
                    self._hints.send("waiting")
            else:
                log.warning("turn.lease_lost", run=str(turn.claimed.run), session=lease.session_id, token=lease.token)
        except Exception:
            log.exception("turn.broken", run=str(turn.claimed.run), session=lease.session_id)
        finally:
            if self._turns.get(lease.session_id) is turn:
                del self._turns[lease.session_id]
            if not self._turns:
                self._idle.set()

    def leases(self) -> list[ExecutionLease]:
        """What to renew; safe to call from another thread. A turn that does not even answer to being stopped for idleness is left to expire."""
        now = self._clock.monotonic()
        turns = list(self._turns.values())
        return [turn.claimed.lease for turn in turns if now - turn.progressed_at < turn.idle_limit_seconds + self._ttl]

    def renewed(self, renewals: Sequence[Renewal], sent_at: float) -> None:
        """The keeper's answer to a renewal sent at `sent_at`: leases that go on, are lost, or are asked to end."""
        deadline = local_deadline(sent_at, self._ttl)
        for renewal in renewals:
            turn = self._turns.get(renewal.session_id)
            if turn is None or turn.claimed.lease.token != renewal.token:
                continue
            if renewal.renewed:
                turn.deadline = deadline
            if renewal.lost:
                turn.abort(Abort.LOST)
            elif renewal.cancel:
                turn.abort(Abort.CANCELED)

    def lost(self, session_id: str) -> None:
        """A fenced write of this session was refused."""
        turn = self._turns.get(session_id)
        if turn is not None:
            turn.abort(Abort.LOST)

    async def watch(self) -> bool:
        """Stop turns whose lease was not renewed in time, before another replica begins, and turns in which nothing happens (watchdog)."""
        now = self._clock.monotonic()
        for turn in list(self._turns.values()):
            if turn.deadline <= now:
                turn.abort(Abort.LOST)
            elif now - turn.progressed_at > turn.idle_limit_seconds:
                turn.abort(Abort.IDLE)
        return False

    async def check_cancels(self) -> bool:
        """After a hint: look which of ours are asked to end."""
        turns = list(self._turns.values())
        if turns:
            asked = await canceled(self._db, [turn.claimed.lease.holder for turn in turns])
            for turn in turns:
                if turn.claimed.lease.session_id in asked:
                    turn.abort(Abort.CANCELED)
        return False

    async def drain(self, seconds: float) -> None:
        """Let turns end by themselves for `seconds`, those of a claim in hand too, then give back what has not. `step` is not begun any more."""
        try:
            async with asyncio.timeout(seconds):
                await self._at_rest()
        except TimeoutError:
            self._giving_back = True
            for turn in list(self._turns.values()):
                turn.abort(Abort.YIELDED)
            await self._at_rest()

    async def _at_rest(self) -> None:
        async with self._claiming:
            pass
        await self._idle.wait()
