"""Steering: taken up whole and once by the turn that holds the lease, in order, and by nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stratus.domain.errors import LeaseLost
from stratus.domain.event import NewEvent
from stratus.domain.values import FilePart, RunInput
from stratus.store import blob
from stratus.store.database import Database, Timeouts
from stratus.store.execution import Append, append
from stratus.store.run import claim, finish
from stratus.store.session import NewRun
from stratus.store.steer import take_up, waiting_to_steer
from stratus.store.stop import stop
from testbed.eventually import eventually
from testbed.invariants import violations
from testbed.pgproxy import Action, PgProxy
from tests.store.test_runs import EXPIRE, STEAL
from tests.store.world import completion, holding_the_lease, make_channel, new_run, queue, rows, running, somebody_waits

RUNS = "SELECT turn, state, merged_into IS NOT NULL AS merged, runnable_at IS NOT NULL AS runnable FROM agent_run ORDER BY turn"
SAID = "SELECT run_id, role, parts -> 0 ->> 'text' AS text FROM message ORDER BY position"


def steering(text: str, *, channel_id: int | None = None) -> NewRun:
    return replace(new_run("s1", text, channel_id=channel_id), busy="steer")


async def holds(db: Database) -> None:
    assert await violations(db, at_rest=False) == {}


async def test_the_running_turn_takes_up_all_that_steers_it_in_order(db: Database) -> None:
    claimed = await running(db)
    sent = await queue(db, steering("first"), new_run("s1", "ordinary"), steering("second"))
    assert await waiting_to_steer(db, claimed.lease)
    taken = await take_up(db, claimed.lease, claimed.run_seq, claimed.attempt)
    assert [message.text() for message in taken] == ["first", "second"]
    assert not await waiting_to_steer(db, claimed.lease)
    assert [(row["role"], row["text"], row["run_id"]) for row in await rows(db, SAID)] == [
        ("user", text, claimed.lease.run_id) for text in ("hello", "first", "second")
    ]
    ends = await rows(db, "SELECT run_id, payload ->> 'into' AS into FROM session_event WHERE kind = 'run.merged'")
    assert [(row["run_id"], UUID(str(row["into"]))) for row in ends] == [
        (sent[0].run_id, claimed.run),
        (sent[2].run_id, claimed.run),
    ]
    asked = await rows(db, "SELECT payload FROM session_event WHERE kind = 'message.user' AND payload ? 'merged'")
    assert [str(one.run) in str(row["payload"]) for one, row in zip(sent[::2], asked, strict=True)] == [True, True]
    await holds(db)
    # The run goes on counting where the events of the messages ended, and the ordinary one is next.
    more = Append(claimed.lease, claimed.run_seq + len(taken), 1, [NewEvent("usage", {})])
    assert await append(db, [more]) == [True]
    assert await finish(db, [completion(claimed)]) == [True]
    assert [(row["turn"], row["state"], row["runnable"]) for row in await rows(db, RUNS)] == [
        (1, "completed", False),
        (2, "merged", False),
        (3, "queued", True),
        (4, "merged", False),
    ]
    await holds(db)


async def test_files_come_with_the_message(db: Database) -> None:
    claimed = await running(db)
    file = FilePart(name="a.txt", mime="text/plain", data="aGk=")
    await queue(db, replace(steering("see"), input=RunInput(text="see", parts=[file])))
    [message] = await take_up(db, claimed.lease, claimed.run_seq, 1)
    [kept] = [part for part in message.parts if isinstance(part, FilePart)]
    assert (kept.name, kept.size, kept.data) == ("a.txt", 2, "")
    assert await blob.get(db, bytes.fromhex(kept.sha256 or "")) == b"hi"
    assert await rows(db, "SELECT parts -> 1 ->> 'name' AS name FROM message WHERE position = 2") == [{"name": "a.txt"}]


async def test_with_nothing_open_it_is_a_run_like_any_other(db: Database) -> None:
    await queue(db, steering("alone"))
    [claimed] = await claim(db, "w", 10, 60.0)
    assert claimed.input.text == "alone"
    assert await take_up(db, claimed.lease, claimed.run_seq, 1) == []


async def test_one_that_is_not_taken_up_gets_its_own_turn(db: Database) -> None:
    claimed = await running(db)
    await queue(db, steering("late"))
    assert await finish(db, [completion(claimed)]) == [True]
    [next_] = await claim(db, "w", 10, 60.0)
    assert next_.input.text == "late"
    await holds(db)


async def test_a_message_from_another_chat_is_left_for_its_own_answer(db: Database) -> None:
    here, there = await make_channel(db), await make_channel(db)
    claimed = await running(db, channel_id=here)
    await queue(db, steering("from there", channel_id=there), steering("from here", channel_id=here), steering("web"))
    assert [one.text() for one in await take_up(db, claimed.lease, claimed.run_seq, 1)] == ["from here", "web"]


async def test_a_turn_that_is_asked_to_end_takes_up_nothing(db: Database) -> None:
    claimed = await running(db)
    await queue(db, steering("after that"))
    await stop(db, "s1", "me", queued=False)
    assert await take_up(db, claimed.lease, claimed.run_seq, 1) == []
    assert [row["state"] for row in await rows(db, RUNS)] == ["running", "queued"]


@pytest.mark.parametrize("fault", [EXPIRE, STEAL, "DELETE FROM session_execution WHERE session_id = $1"])
async def test_a_zombie_takes_up_nothing(db: Database, fault: str) -> None:
    claimed = await running(db)
    await queue(db, steering("for the next holder"))
    await db.transact(lambda c: c.execute(fault, "s1"))
    with pytest.raises(LeaseLost):
        await take_up(db, claimed.lease, claimed.run_seq, 1)
    assert [row["state"] for row in await rows(db, RUNS)] == ["running", "queued"]
    assert len(await rows(db, SAID)) == 1


async def test_a_taker_with_an_old_count_is_refused(db: Database) -> None:
    claimed = await running(db)
    await queue(db, steering("x"))
    with pytest.raises(LeaseLost):
        await take_up(db, claimed.lease, claimed.run_seq - 1, 1)


@pytest.mark.parametrize("first", ["finish", "take_up"])
async def test_a_merge_that_meets_the_finish_comes_whole_before_it_or_not_at_all(
    db: Database, dsn: str, first: str
) -> None:
    """Both wait for the lease's row, in turn; whichever comes second finds what the first has left."""
    claimed = await running(db)
    await queue(db, steering("just in time"))
    tasks: dict[str, asyncio.Task[object]] = {}
    paths: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "finish": lambda: finish(db, [completion(claimed)]),
        "take_up": lambda: take_up(db, claimed.lease, claimed.run_seq, 1),
    }
    async with holding_the_lease(dsn):
        for number, name in enumerate([first, *(paths.keys() - {first})], 1):
            tasks[name] = asyncio.create_task(paths[name]())
            await eventually(partial(somebody_waits, db, number), what=f"{name} waits")
    done = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
    assert done["finish"] == [True]
    if first == "finish":
        assert isinstance(done["take_up"], LeaseLost)
        assert [row["state"] for row in await rows(db, RUNS)] == ["completed", "queued"]
    else:
        assert [row["state"] for row in await rows(db, RUNS)] == ["completed", "merged"]
    await holds(db)


async def test_a_steering_message_that_commits_while_the_merge_waits_for_the_session_is_taken_too(
    db: Database, dsn: str
) -> None:
    claimed = await running(db)
    blocker = await asyncpg.connect(dsn)
    held = blocker.transaction()
    await held.start()
    await blocker.execute("SELECT 1 FROM session WHERE id = 's1' FOR UPDATE")
    sent = asyncio.ensure_future(queue(db, steering("now")))
    await eventually(partial(somebody_waits, db, 1), what="the message waits for the session")
    taken = asyncio.ensure_future(take_up(db, claimed.lease, claimed.run_seq, 1))
    await eventually(partial(somebody_waits, db, 2), what="the merge waits for the session")
    await held.commit()
    await blocker.close()
    await sent
    assert [one.text() for one in await taken] == ["now"]
    await holds(db)


@pytest.mark.parametrize("fault", ["drop_before", "lose_ack_rst", "lose_ack_silent"])
async def test_a_lost_answer_to_commit_takes_up_once(db: Database, dsn: str, fault: Action) -> None:
    claimed = await running(db)
    await queue(db, steering("one"), steering("two"))
    async with PgProxy(dsn) as proxy:
        limits = Timeouts(statement=1.0, idle_in_transaction=3.0, lock=0.5)
        far = Database(proxy.dsn, timeouts=limits, main_size=3, ingress_size=1)
        await far.open()
        await proxy.arm("COMMIT", fault, within="merged_into")
        taken = await take_up(far, claimed.lease, claimed.run_seq, 1)
        await proxy.wait_hit()
        await far.close()
    assert [one.text() for one in taken] == ["one", "two"]
    assert [row["text"] for row in await rows(db, SAID)] == ["hello", "one", "two"]
    await holds(db)
