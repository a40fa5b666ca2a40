"""The answer to COMMIT is lost, before or after, or COMMIT arrives late: at every arrow nothing is lost and nothing is doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol
from uuid import UUID, uuid4

import pytest

from stratus.domain.event import NewEvent
from stratus.domain.values import Message, TextPart
from stratus.store.database import Database, Timeouts
from stratus.store.decision import decide
from stratus.store.execution import Append, Step, append, commit_step
from stratus.store.inbox import Arrival, intake
from stratus.store.intent import begin, intend
from stratus.store.park import park
from stratus.store.plan import NewOp, plan
from stratus.store.run import claim, finish
from stratus.store.settle import Outcome, complete
from testbed.pgproxy import PgProxy
from tests.store.parked import ASKER, asking, parked, parking
from tests.store.world import completion, event, make_channel, new_run, own, queue, rows, running

FAULTS = ["drop_before", "lose_ack_rst", "lose_ack_silent", "delay"]


class Arm(Protocol):
    """Arms the test's fault; `single` for a statement that is a transaction of its own."""

    async def __call__(self, text: str, *, single: bool = False) -> None: ...


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[PgProxy]:
    async with PgProxy(dsn) as made:
        yield made


@pytest.fixture
async def far(proxy: PgProxy) -> AsyncIterator[Database]:
    """The store behind the proxy, with short limits so that a swallowed answer is soon missed."""
    database = Database(
        proxy.dsn, timeouts=Timeouts(statement=1.0, idle_in_transaction=3.0, lock=0.5), main_size=3, ingress_size=3
    )
    await database.open()
    yield database
    await database.close()


@pytest.fixture(params=FAULTS)
async def arm(request: pytest.FixtureRequest, proxy: PgProxy) -> AsyncIterator[Arm]:
    """Arms the fault for the next COMMIT of a transaction that ran the given text, or for that very statement if it is its own transaction."""
    helpers: list[asyncio.Task[None]] = []

    async def release_later() -> None:
        await proxy.wait_hit()
        # The client has given up on its connection and looks what became of it: only now may COMMIT go on.
        await asyncio.sleep(2.5)
        await proxy.release()

    async def set_up(text: str, *, single: bool = False) -> None:
        if single:
            await proxy.arm(text, request.param)
        else:
            await proxy.arm("COMMIT", request.param, within=text)
        if request.param == "delay":
            helpers.append(asyncio.create_task(release_later()))

    yield set_up
    for helper in helpers:
        helper.cancel()
    await asyncio.gather(*helpers, return_exceptions=True)


async def hit_once(proxy: PgProxy) -> None:
    await proxy.wait_hit()
    assert len(proxy.log) == 1


async def test_intake(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    channel = await make_channel(db)
    lease = await own(db, channel)
    await arm("INSERT INTO channel_inbox")
    await intake(far, [Arrival(channel, event("1")), Arrival(channel, event("2"))], lease=lease, cursor={"offset": 3})
    await hit_once(proxy)
    assert [row["event_key"] for row in await rows(db, "SELECT event_key FROM channel_inbox ORDER BY id")] == ["1", "2"]
    assert await rows(db, "SELECT cursor FROM channel") == [{"cursor": '{"offset": 3}'}]


async def test_enqueue(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    await arm("INSERT INTO agent_run")
    [made] = await queue(far, new_run("s1", key="k" * 16))
    await hit_once(proxy)
    assert await rows(db, "SELECT public_id FROM agent_run") == [{"public_id": made.run}]


async def test_claim(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    await queue(db, new_run("s1"), new_run("s2"))
    await arm("INSERT INTO session_execution")
    claimed = await claim(far, "w", 5, 60.0)
    await hit_once(proxy)
    assert sorted(one.lease.session_id for one in claimed) == ["s1", "s2"]
    held = {row["token"]: row["holder"] for row in await rows(db, "SELECT token, holder FROM session_execution")}
    assert held == {one.lease.token: UUID(str(one.lease.holder)) for one in claimed}
    assert {row["attempts"] for row in await rows(db, "SELECT attempts FROM agent_run")} == {1}
    assert await rows(db, "SELECT count(*) AS n FROM message") == [{"n": 2}]


async def test_append(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    claimed = await running(db)
    await arm("WITH given AS", single=True)
    assert await append(
        far, [Append(claimed.lease, claimed.run_seq, 1, [NewEvent("usage", {"n": 1}), NewEvent("usage", {"n": 2})])]
    ) == [True]
    await hit_once(proxy)
    assert await rows(db, "SELECT count(*) AS n FROM session_event WHERE kind = 'usage'") == [{"n": 2}]


async def test_step(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    claimed = await running(db)
    await arm("INSERT INTO message")
    message = Message(role="assistant", parts=[TextPart(text="x")])
    await commit_step(far, Step(claimed.lease, claimed.run_seq, 1, 1, [NewEvent("usage", {})], [message]))
    await hit_once(proxy)
    assert await rows(db, "SELECT count(*) AS n FROM message WHERE role = 'assistant'") == [{"n": 1}]


async def test_finish(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    channel = await make_channel(db)
    claimed = await running(db, channel_id=channel)
    op = NewOp(channel, "c1", "send_reply", {"chat": "c1"}, {"text": "1"}, "k:0", claimed.lease.run_id)
    await arm("DELETE FROM session_execution")
    assert await finish(far, [completion(claimed, ops=[op])]) == [True]
    await hit_once(proxy)
    assert await rows(db, "SELECT state FROM agent_run") == [{"state": "completed"}]
    assert await rows(db, "SELECT count(*) AS n FROM channel_outbox") == [{"n": 1}]
    assert await rows(db, "SELECT count(*) AS n FROM message WHERE role = 'assistant'") == [{"n": 1}]


async def test_intent(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    channel = await make_channel(db)
    lease = await own(db, channel)
    await db.transact(lambda c: plan(c, [NewOp(channel, "c1", "notify", {"chat": "c1"}, {"text": "1"}, "k")]))
    await arm("INSERT INTO outbox_attempt")
    [intent] = (await intend(far, lease, "r", 5)).intents
    await hit_once(proxy)
    attempts = await rows(db, "SELECT token, outcome FROM outbox_attempt")
    assert attempts == [{"token": intent.token, "outcome": None}]


async def test_guard(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    channel = await make_channel(db)
    lease = await own(db, channel)
    await db.transact(lambda c: plan(c, [NewOp(channel, "c1", "notify", {"chat": "c1"}, {"text": "1"}, "k")]))
    [intent] = (await intend(db, lease, "r", 5)).intents
    await arm("started_at = coalesce(a.started_at", single=True)
    assert await begin(far, lease, [intent], 20.0) == {intent.token}
    await hit_once(proxy)


async def test_receipt(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    channel = await make_channel(db)
    lease = await own(db, channel)
    await db.transact(lambda c: plan(c, [NewOp(channel, "c1", "notify", {"chat": "c1"}, {"text": "1"}, "k")]))
    [intent] = (await intend(db, lease, "r", 5)).intents
    await begin(db, lease, [intent], 20.0)
    await arm("UPDATE outbox_attempt a SET outcome")
    await complete(far, [Outcome(intent.op_id, intent.token, "sent", {"message_id": "9"})])
    await hit_once(proxy)
    assert await rows(db, "SELECT state, sent_message_id FROM channel_outbox") == [
        {"state": "sent", "sent_message_id": "9"}
    ]
    assert await rows(db, "SELECT count(*) AS n FROM outbox_attempt") == [{"n": 1}]


async def test_decision(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    one = await parked(db, calls=1)
    await arm("UPDATE approval SET state = $2")
    decided = await decide(far, one.approvals[0], "approve", ASKER)
    await hit_once(proxy)
    assert decided.state == "approved"
    assert await rows(db, "SELECT state, decided_by FROM approval") == [{"state": "approved", "decided_by": "Ann"}]
    assert await rows(db, "SELECT count(*) AS n FROM session_event WHERE kind = 'approval.resolved'") == [{"n": 1}]
    assert await rows(db, "SELECT state FROM agent_run") == [{"state": "queued"}]


async def test_park(db: Database, far: Database, proxy: PgProxy, arm: Arm) -> None:
    claimed, run_seq = await asking(db, channel_id=await make_channel(db))
    await arm("INSERT INTO approval")
    await park(far, parking(claimed, run_seq))
    await hit_once(proxy)
    assert await rows(db, "SELECT count(*) AS n FROM approval") == [{"n": 2}]
    assert await rows(db, "SELECT count(*) AS n FROM channel_outbox WHERE kind = 'approval_prompt'") == [{"n": 2}]
    assert await rows(db, "SELECT state, attempts FROM agent_run") == [{"state": "waiting", "attempts": 0}]


async def test_a_finish_that_is_another_attempts_is_not_taken_for_ours(db: Database) -> None:
    claimed = await running(db)
    assert await finish(db, [completion(claimed, token=uuid4())]) == [True]
    assert await finish(db, [completion(claimed, token=uuid4())]) == [False]


async def test_an_append_that_arrives_late_between_look_and_repeat_is_not_taken_for_a_lost_lease(db: Database) -> None:
    claimed = await running(db)
    batch = Append(claimed.lease, claimed.run_seq, 1, [NewEvent("usage", {})])
    assert await append(db, [batch]) == [True]  # the late one
    assert await append(db, [batch]) == [True]  # the repeat
    assert await rows(db, "SELECT count(*) AS n FROM session_event WHERE kind = 'usage'") == [{"n": 1}]
    ahead = Append(claimed.lease, claimed.run_seq + 5, 1, [NewEvent("usage", {})])
    assert await append(db, [ahead]) == [False]
