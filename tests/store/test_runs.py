"""Claim, head of line, fences, finish and orphans: each on real rows, each red without what it guards."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import AgentMismatch, KeyReused, LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.values import Message, TextPart
from stratus.store.agent import upsert
from stratus.store.database import Connection, Database
from stratus.store.execution import Append, ExecutionLease, Step, append, canceled, commit_step, renew
from stratus.store.orphan import take_orphans
from stratus.store.plan import NewOp
from stratus.store.run import Ending, claim, finish
from stratus.store.stop import stop
from testbed.eventually import eventually
from tests.store.world import completion, make_channel, new_run, queue, rows, running

CONTIGUOUS = """
SELECT s.id FROM session s LEFT JOIN session_event e ON e.session_id = s.id GROUP BY s.id, s.event_seq
HAVING count(e.seq) <> s.event_seq OR coalesce(min(e.seq), 1) <> 1 OR coalesce(max(e.seq), 0) <> s.event_seq
"""
EXPIRE = "UPDATE session_execution SET lease_until = clock_timestamp() - interval '1 second' WHERE session_id = $1"
STEAL = "UPDATE session_execution SET token = token + 1, holder = gen_random_uuid() WHERE session_id = $1"


async def write_anything(db: Database, lease: ExecutionLease, run_seq: int) -> dict[str, bool]:
    """Try each kind of write under the lease; True where it was taken."""
    step = Step(lease, run_seq, 1, 1, [NewEvent("usage", {})], [Message(role="assistant", parts=[TextPart(text="x")])])
    try:
        await commit_step(db, step)
        stepped = True
    except LeaseLost:
        stepped = False
    ending = Ending(lease, 1, run_seq, RunEvent.COMPLETE, lease.holder)
    return {
        "append": (await append(db, [Append(lease, run_seq, 1, [NewEvent("text.delta", {"part": 0, "text": "x"})])]))[
            0
        ],
        "step": stepped,
        "finish": (await finish(db, [ending]))[0],
        "renew": (await db.read(lambda c: renew(c, [lease], 30.0)))[0].renewed,
    }


@pytest.mark.parametrize("fault", [EXPIRE, STEAL, "DELETE FROM session_execution WHERE session_id = $1"])
async def test_a_fenced_holder_writes_nothing(db: Database, fault: str) -> None:
    claimed = await running(db)
    await db.transact(lambda c: c.execute(fault, "s1"))
    before = await rows(db, "SELECT count(*) AS n FROM session_event")
    assert set((await write_anything(db, claimed.lease, claimed.run_seq)).values()) == {False}
    assert await rows(db, "SELECT count(*) AS n FROM session_event") == before
    assert await rows(db, "SELECT state FROM agent_run") == [{"state": "running"}]


async def test_the_holder_writes(db: Database) -> None:
    claimed = await running(db)
    assert (await db.read(lambda c: renew(c, [claimed.lease], 30.0)))[0].renewed
    assert await append(
        db, [Append(claimed.lease, claimed.run_seq, 1, [NewEvent("text.delta", {"part": 0, "text": "x"})])]
    ) == [True]
    assert await finish(db, [completion(claimed, run_seq=claimed.run_seq + 1)]) == [True]
    assert await rows(db, CONTIGUOUS) == []
    assert await rows(db, "SELECT count(*) AS n FROM session_execution") == [{"n": 0}]


async def test_a_zombie_that_waited_for_the_lock_is_refused_after_the_takeover(db: Database, dsn: str) -> None:
    """The interleaving of state-machines.md §5: the append waits behind a takeover that has both rows, then must see the new token."""
    claimed = await running(db)
    taker = await asyncpg.connect(dsn)
    move = taker.transaction()
    await move.start()
    await taker.execute("UPDATE session_execution SET token = token + 1 WHERE session_id = 's1'")
    await taker.execute("UPDATE session SET event_seq = event_seq WHERE id = 's1'")
    zombie = asyncio.ensure_future(append(db, [Append(claimed.lease, claimed.run_seq, 1, [NewEvent("usage", {})])]))
    await eventually(lambda: waiting(taker), what="the zombie's append waits for the lock")
    await move.commit()
    assert await zombie == [False]
    await taker.close()
    assert await rows(db, CONTIGUOUS) == []


async def waiting(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    return bool(
        await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    )


async def test_only_the_head_of_a_session_is_claimed_and_finish_promotes_the_next(db: Database) -> None:
    await queue(db, new_run("s1", "one"), new_run("s1", "two"), new_run("s2", "other"))
    first = await claim(db, "a", 10, 60.0)
    assert sorted((one.lease.session_id, one.turn) for one in first) == [("s1", 1), ("s2", 1)]
    assert await claim(db, "b", 10, 60.0) == []
    mine = next(one for one in first if one.lease.session_id == "s1")
    assert await finish(db, [completion(mine)]) == [True]
    second = await claim(db, "b", 10, 60.0)
    assert [(one.lease.session_id, one.turn, one.input.text) for one in second] == [("s1", 2, "two")]
    assert second[0].lease.token > mine.lease.token


async def test_exactly_the_head_is_runnable(db: Database) -> None:
    await queue(db, new_run("s1", "one"), new_run("s1", "two"))
    await queue(db, new_run("s1", "three"))
    runnable = "SELECT turn FROM agent_run WHERE runnable_at IS NOT NULL"
    assert await rows(db, runnable) == [{"turn": 1}]
    [claimed] = await claim(db, "w", 10, 60.0)
    assert await rows(db, runnable) == []
    await finish(db, [completion(claimed)])
    assert await rows(db, runnable) == [{"turn": 2}]


async def test_many_workers_claim_each_run_once(db: Database) -> None:
    await queue(db, *(new_run(f"s{n}") for n in range(60)))
    taken = await asyncio.gather(*(claim(db, f"w{n}", 20, 60.0) for n in range(6)))
    sessions = [one.lease.session_id for batch in taken for one in batch]
    assert len(sessions) == len(set(sessions))
    while more := await claim(db, "rest", 60, 60.0):
        sessions += [one.lease.session_id for one in more]
    assert sorted(sessions) == sorted(f"s{n}" for n in range(60))


async def test_heads_are_shared_out_between_principals(db: Database) -> None:
    ids = [
        row["id"]
        for row in await db.transact(
            lambda c: c.fetch("INSERT INTO principal (name, role) VALUES ('a', 'user'), ('b', 'user') RETURNING id")
        )
    ]
    flood = [new_run(f"flood{n}") for n in range(20)]
    await queue(db, *(run.__class__(**{**run.__dict__, "principal_id": ids[0]}) for run in flood))
    await queue(db, new_run("quiet").__class__(**{**new_run("quiet").__dict__, "principal_id": ids[1]}))
    assert "quiet" in {one.lease.session_id for one in await claim(db, "w", 2, 60.0)}


async def test_a_worker_leaves_agents_on_providers_it_lacks_to_others(db: Database) -> None:
    await upsert(db, AgentDefinition(id="demo", model="anthropic:claude-x"))
    await queue(db, new_run("s1"))
    assert await claim(db, "demo only", 5, 60.0, capabilities=["provider:demo"]) == []
    assert [one.lease.session_id for one in await claim(db, "complete", 5, 60.0)] == ["s1"]


async def test_a_message_that_arrives_while_a_run_ends_is_never_stranded(db: Database) -> None:
    for n in range(15):
        claimed = await running(db, f"s{n}")
        await asyncio.gather(finish(db, [completion(claimed)]), queue(db, new_run(f"s{n}", "next")))
        following = await claim(db, "w", 10, 60.0)
        assert [one.input.text for one in following] == ["next"]
        assert await finish(db, [completion(following[0])]) == [True]


async def test_finish_is_whole(db: Database) -> None:
    channel = await make_channel(db)
    claimed = await running(db, channel_id=channel)
    ops = [
        NewOp(channel, "c1", "send_reply", {"chat": "c1"}, {"text": "1"}, "k:0", claimed.lease.run_id),
        NewOp(channel, "c1", "send_text", {"chat": "c1"}, {"text": "2"}, "k:1", claimed.lease.run_id, after=0),
    ]
    assert await finish(db, [completion(claimed, ops=ops)]) == [True]
    assert [row["role"] for row in await rows(db, "SELECT role FROM message ORDER BY position")] == [
        "user",
        "assistant",
    ]
    kinds = [row["kind"] for row in await rows(db, "SELECT kind FROM session_event ORDER BY seq")]
    assert kinds == ["run.queued", "run.started", "message.user", "message.assistant", "run.completed"]
    planned = await rows(db, "SELECT id, lane_seq, depends_on FROM channel_outbox ORDER BY lane_seq")
    assert [row["lane_seq"] for row in planned] == [1, 2]
    assert planned[1]["depends_on"] == planned[0]["id"]


async def test_an_idempotency_key_names_one_run_and_one_body(db: Database) -> None:
    [first] = await queue(db, new_run("s1", "body", key="k" * 16))
    [again] = await queue(db, new_run("s1", "body", key="k" * 16))
    assert (again.run, again.repeated, again.seq) == (first.run, True, first.seq)
    with pytest.raises(KeyReused):
        await queue(db, new_run("s1", "another body", key="k" * 16))
    assert await rows(db, "SELECT count(*) AS n FROM agent_run") == [{"n": 1}]


async def test_a_session_keeps_its_agent(db: Database) -> None:
    await queue(db, new_run("s1"))
    other = new_run("s1")
    with pytest.raises(AgentMismatch):
        await queue(db, other.__class__(**{**other.__dict__, "agent_id": "blair"}))


async def test_stop_asks_the_running_turn_and_cancels_the_queue(db: Database) -> None:
    claimed = await running(db)
    await queue(db, new_run("s1", "two"), new_run("s1", "three"))
    stopped = await stop(db, "s1", "me", queued=True)
    assert (stopped.running, stopped.canceled) == (True, 2)
    assert await canceled(db, [claimed.lease.holder]) == {"s1"}
    assert (await db.read(lambda c: renew(c, [claimed.lease], 30.0)))[0].cancel
    ending = Ending(claimed.lease, 1, claimed.run_seq, RunEvent.CANCEL, claimed.lease.holder)
    assert await finish(db, [ending]) == [True]
    assert {row["state"] for row in await rows(db, "SELECT state FROM agent_run")} == {"canceled"}
    assert await rows(db, CONTIGUOUS) == []


async def test_stop_can_spare_the_queue(db: Database) -> None:
    claimed = await running(db)
    await queue(db, new_run("s1", "two"))
    assert (await stop(db, "s1", "me", queued=False)).canceled == 0
    await finish(db, [Ending(claimed.lease, 1, claimed.run_seq, RunEvent.CANCEL, claimed.lease.holder)])
    assert [one.input.text for one in await claim(db, "w", 5, 60.0)] == ["two"]


@pytest.mark.parametrize("fault", [EXPIRE, "DELETE FROM session_execution WHERE session_id = $1"])
async def test_orphans_are_found_with_and_without_a_lease_row(db: Database, fault: str) -> None:
    claimed = await running(db)

    async def look(connection: Connection) -> list[int]:
        return [orphan.run_id for orphan in await take_orphans(connection, 10)]

    assert await db.transact(look) == []
    await db.transact(lambda c: c.execute(fault, "s1"))
    assert await db.transact(look) == [claimed.lease.run_id]


async def test_a_run_that_is_given_back_costs_no_attempt_and_goes_on_where_it_was(db: Database) -> None:
    claimed = await running(db)
    given_back = Ending(claimed.lease, 1, claimed.run_seq, RunEvent.YIELD, claimed.lease.holder)
    assert await finish(db, [given_back]) == [True]
    [again] = await claim(db, "other", 5, 60.0)
    assert (again.run, again.attempt, again.resumed) == (claimed.run, 2, True)
    assert await rows(db, "SELECT attempts FROM agent_run") == [{"attempts": 1}]
    assert [row["role"] for row in await rows(db, "SELECT role FROM message")] == ["user"]


async def test_renewal_passes_over_a_row_that_its_own_append_holds(db: Database, dsn: str) -> None:
    claimed = await running(db)
    other = await asyncpg.connect(dsn)
    hold = other.transaction()
    await hold.start()
    await other.execute("SELECT 1 FROM session_execution WHERE session_id = 's1' FOR UPDATE")
    renewal = (await db.read(lambda c: renew(c, [claimed.lease], 30.0)))[0]
    assert (renewal.renewed, renewal.lost) == (False, False)
    await hold.rollback()
    await other.close()
