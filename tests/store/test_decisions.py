"""Approvals are decided once, by those who may, for what was shown, in time; and the run goes on when nothing is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import asyncpg
import pytest

from stratus.domain.errors import (
    AlreadyDecided,
    ApprovalExpired,
    ArgumentsDiffer,
    CancelAsked,
    Forbidden,
    LeaseLost,
    NotApproved,
    NotFound,
    StratusError,
)
from stratus.domain.tool_call import CallEvent
from stratus.store.database import Database
from stratus.store.decision import Decision, decide, expire, listing
from stratus.store.execution import Step, commit_step
from stratus.store.park import park
from stratus.store.run import claim
from stratus.store.stop import stop
from stratus.store.tool_call import CallMove
from testbed.eventually import eventually
from testbed.invariants import violations
from tests.store.parked import ASKER, OWNER, STRANGER, asking, parked, parking
from tests.store.world import make_channel, rows

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
STATES = """
SELECT r.state AS run, r.runnable_at IS NOT NULL AS runnable, r.attempts,
       ARRAY(SELECT a.state FROM approval a WHERE a.run_id = r.id ORDER BY a.id) AS approvals,
       ARRAY(SELECT c.state FROM tool_call c WHERE c.run_id = r.id ORDER BY c.ordinal) AS calls
  FROM agent_run r ORDER BY r.id LIMIT 1
"""


async def states(db: Database) -> dict[str, object]:
    [row] = await rows(db, STATES)
    return row


async def test_a_parked_turn_holds_no_lease_and_costs_no_attempt(db: Database) -> None:
    channel_id = await make_channel(db)
    one = await parked(db, channel_id=channel_id)
    assert await states(db) == {
        "run": "waiting",
        "runnable": False,
        "attempts": 0,
        "approvals": ["pending"] * 2,
        "calls": ["awaiting"] * 2,
    }
    assert await rows(db, "SELECT 1 FROM session_execution") == []
    prompts = await rows(db, "SELECT o.kind, o.payload ->> 'text' AS text FROM channel_outbox o ORDER BY o.id")
    assert [prompt["kind"] for prompt in prompts] == ["approval_prompt"] * 2
    assert f"/approve {one.approvals[0].hex[:6]}" in str(prompts[0]["text"])
    assert await rows(db, "SELECT 1 FROM approval a JOIN channel_outbox o ON o.id = a.prompt_op_id") != []
    assert await violations(db, at_rest=False) == {}


async def test_the_run_goes_on_only_when_every_question_is_answered(db: Database) -> None:
    one = await parked(db)
    await decide(db, one.approvals[0], "approve", ASKER)
    assert (await states(db))["run"] == "waiting"
    await decide(db, one.approvals[1], "deny", OWNER, note="too dear")
    after = await states(db)
    assert (after["run"], after["runnable"]) == ("queued", True)
    assert after["approvals"] == ["approved", "denied"]
    assert after["calls"] == ["approved", "denied"]
    events = await rows(
        db, "SELECT payload ->> 'state' AS state FROM session_event WHERE kind = 'approval.resolved' ORDER BY seq"
    )
    assert [event["state"] for event in events] == ["approved", "denied"]
    [again] = await claim(db, "other", 5, 60.0)
    assert again.run == one.claimed.run
    assert await violations(db, at_rest=False) == {}


async def test_of_many_answers_at_once_one_counts(db: Database) -> None:
    one = await parked(db)

    async def answer(verdict: str) -> Decision | StratusError:
        try:
            return await decide(
                db,
                one.approvals[0],
                "approve" if verdict == "approve" else "deny",
                OWNER if verdict == "deny" else ASKER,
            )
        except StratusError as error:
            return error

    told = await asyncio.gather(*(answer(verdict) for verdict in ("approve", "deny", "approve", "deny")))
    first = [one for one in told if isinstance(one, Decision) and not one.repeated]
    assert len(first) == 1
    assert all(isinstance(one, (Decision, AlreadyDecided)) for one in told)
    assert len(await rows(db, "SELECT 1 FROM session_event WHERE kind = 'approval.resolved'")) == 1


async def test_a_second_answer_is_told_the_first(db: Database) -> None:
    one = await parked(db)
    await decide(db, one.approvals[0], "approve", ASKER)
    with pytest.raises(AlreadyDecided, match="Ann has approved this already"):
        await decide(db, one.approvals[0], "deny", OWNER)
    assert (await decide(db, one.approvals[0], "approve", ASKER)).repeated


async def test_only_those_who_may_decide_and_a_stranger_learns_nothing(db: Database) -> None:
    one = await parked(db)
    await db.transact(lambda c: c.execute("INSERT INTO principal (name, role) VALUES ('x', 'user')"))
    with pytest.raises(Forbidden):
        await decide(db, one.approvals[0], "approve", STRANGER)  # the session is nobody's: a group
    await db.transact(lambda c: c.execute("UPDATE session SET owner_id = (SELECT max(id) FROM principal)"))
    with pytest.raises(NotFound):
        await decide(db, one.approvals[0], "approve", STRANGER)
    with pytest.raises(NotFound):
        await decide(db, uuid4(), "approve", OWNER)
    assert (await states(db))["approvals"] == ["pending", "pending"]


async def test_what_was_shown_is_what_is_approved(db: Database) -> None:
    one = await parked(db)
    [shown, _] = await listing(db, state="pending", session_id=None, principal_id=None)
    with pytest.raises(ArgumentsDiffer):
        await decide(db, shown.id, "approve", OWNER, args_hash="0" * 64)
    await decide(db, shown.id, "approve", OWNER, args_hash=shown.args_hash)
    assert one.approvals


async def test_an_approval_is_used_up_with_the_start_and_only_for_its_arguments(db: Database) -> None:
    one = await parked(db)
    for approval in one.approvals:
        await decide(db, approval, "approve", ASKER)
    [again] = await claim(db, "other", 5, 60.0)
    start = Step(again.lease, again.run_seq, again.attempt, 0, moves=[CallMove("a", CallEvent.START, consumes=True)])
    await commit_step(db, start)
    assert (await states(db))["approvals"] == ["consumed", "approved"]
    await db.transact(lambda c: c.execute("UPDATE tool_call SET args = '{\"what\": \"gold\"}' WHERE call_id = 'b'"))
    with pytest.raises(NotApproved):
        await commit_step(
            db,
            Step(again.lease, again.run_seq, again.attempt, 0, moves=[CallMove("b", CallEvent.START, consumes=True)]),
        )
    assert (await states(db))["calls"] == ["started", "approved"]


async def test_time_decides_and_not_who_comes_first(db: Database) -> None:
    one = await parked(db)
    await db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp() WHERE call_id = 'a'"))
    with pytest.raises(ApprovalExpired):
        await decide(db, one.approvals[0], "approve", ASKER)
    assert await expire(db, 10) == ["s1"]
    assert await expire(db, 10) == []
    after = await states(db)
    assert (after["run"], after["approvals"], after["calls"]) == (
        "waiting",
        ["expired", "pending"],
        ["expired", "awaiting"],
    )
    with pytest.raises(ApprovalExpired):
        await decide(db, one.approvals[0], "approve", ASKER)
    await decide(db, one.approvals[1], "approve", ASKER)
    assert (await states(db))["run"] == "queued"


async def test_stopping_a_waiting_turn_closes_its_questions(db: Database) -> None:
    one = await parked(db)
    stopped = await stop(db, "s1", "somebody", queued=True)
    assert (stopped.running, stopped.canceled) == (False, 1)
    after = await states(db)
    assert (after["run"], after["approvals"], after["calls"]) == ("canceled", ["closed"] * 2, ["failed"] * 2)
    with pytest.raises(AlreadyDecided, match="over"):
        await decide(db, one.approvals[0], "approve", ASKER)
    assert await violations(db, at_rest=True) == {}


async def test_a_turn_that_is_to_end_does_not_park(db: Database) -> None:
    claimed, run_seq = await asking(db)
    await stop(db, "s1", "somebody", queued=False)
    with pytest.raises(CancelAsked):
        await park(db, parking(claimed, run_seq))
    assert (await states(db))["approvals"] == []


async def test_who_has_lost_the_lease_does_not_park(db: Database) -> None:
    claimed, run_seq = await asking(db)
    await db.transact(lambda c: c.execute("UPDATE session_execution SET lease_until = clock_timestamp()"))
    with pytest.raises(LeaseLost):
        await park(db, parking(claimed, run_seq))
    assert (await states(db))["run"] == "running"


async def test_an_answer_that_waited_past_the_end_is_late(db: Database, dsn: str) -> None:
    """It came in time, but the row was held until the time was over: the moment of the decision counts, not that of the question."""
    one = await parked(db, calls=1)
    async with holding(dsn, "UPDATE approval SET expires_at = clock_timestamp() WHERE call_id = 'a'") as held:
        answer = asyncio.create_task(decide(db, one.approvals[0], "approve", ASKER))
        await eventually(held.waited_for, what="the answer waits for the row")
        await held.release()
        with pytest.raises(ApprovalExpired):
            await answer
    assert (await states(db))["approvals"] == ["pending"]


@pytest.mark.parametrize("first", ["answer", "expiry"])
async def test_an_answer_and_the_expiry_at_once_make_one_end(db: Database, dsn: str, first: str) -> None:
    """Both queue up behind the session's row, in either order, and the approval ends in one state, told once."""
    one = await parked(db, calls=1)
    async with holding(dsn, "SELECT 1 FROM session FOR UPDATE") as held:
        work = [decide(db, one.approvals[0], "approve", ASKER), expire(db, 10)]
        await db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp() + interval '1 s'"))
        if first == "expiry":
            await db.transact(lambda c: c.execute("UPDATE approval SET expires_at = clock_timestamp()"))
            work.reverse()
        tasks = [asyncio.ensure_future(work[0])]
        await eventually(held.waited_for, what="the first waits for the session")
        tasks.append(asyncio.ensure_future(work[1]))
        await held.release()
        await asyncio.gather(*tasks, return_exceptions=True)
    [after] = await rows(db, "SELECT state FROM approval")
    assert after["state"] == ("approved" if first == "answer" else "expired")
    assert len(await rows(db, "SELECT 1 FROM session_event WHERE kind = 'approval.resolved'")) == 1
    assert (await states(db))["run"] == "queued"


@dataclass(frozen=True)
class Held:
    """Locks that another connection holds until `release`."""

    release: Callable[[], Awaitable[None]]
    watcher: asyncpg.Connection[asyncpg.Record]

    async def waited_for(self) -> bool:
        """Whether somebody waits for them."""
        return bool(await self.watcher.fetchval(WAITING))


@asynccontextmanager
async def holding(dsn: str, sql: str) -> AsyncIterator[Held]:
    """Run `sql` on a connection of its own and keep its locks."""
    other, watcher = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(sql)
    yield Held(transaction.commit, watcher)
    await other.close()
    await watcher.close()
