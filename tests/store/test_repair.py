"""A broken history is put right once, in place, by whoever holds the session's lease, and by nobody else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratus.domain.errors import LeaseLost
from stratus.domain.history import repaired
from stratus.domain.values import PARTS, Message, Part, ResultOutcome, TextPart, ToolCallPart, ToolResultPart
from stratus.store.database import Database
from stratus.store.log import encode
from stratus.store.message import history
from stratus.store.repair import repair
from stratus.store.run import ClaimedRun, claim, finish
from testbed.invariants import violations
from tests.store.world import completion, new_run, queue, rows, running


def text(role: str, said: str) -> Message:
    return Message.model_validate({"role": role, "parts": [{"kind": "text", "text": said}]})


def asks(*ids: str) -> Message:
    parts: list[Part] = [TextPart(text="wait"), *(ToolCallPart(call_id=one, name="t") for one in ids)]
    return Message(role="assistant", parts=parts)


def tells(*ids: str) -> Message:
    parts: list[Part] = [ToolResultPart(call_id=one, name="t", content="1") for one in ids]
    return Message(role="tool", parts=parts)


async def write(db: Database, run_id: int, messages: Sequence[Message]) -> None:
    """Make the session's history of these, as a fault would have left it."""
    await db.transact(lambda c: c.execute("DELETE FROM message WHERE session_id = 's1'"), idempotent=True)
    for position, message in enumerate(messages, 1):
        parts = encode(PARTS.dump_python(list(message.parts), mode="json"))
        await db.transact(
            lambda c, p=position, m=message, j=parts: c.execute(  # type: ignore[misc]
                "INSERT INTO message (session_id, position, run_id, role, parts) VALUES ('s1', $1, $2, $3, $4)",
                p,
                run_id,
                m.role,
                j,
            ),
            idempotent=True,
        )
    await db.transact(
        lambda c: c.execute("UPDATE session SET message_seq = $1 WHERE id = 's1'", len(messages)), idempotent=True
    )


async def second_turn(db: Database) -> tuple[ClaimedRun, ClaimedRun]:
    """A run that has ended, and the one after it, which holds the lease."""
    first = await running(db)
    assert await finish(db, [completion(first)]) == [True]
    await queue(db, new_run("s1", "two"))
    [second] = await claim(db, "w", 1, 60.0)
    return first, second


BROKEN = [
    text("user", "one"),
    asks("a", "b"),
    tells("b", "stray"),
    text("assistant", "x"),
    asks("c"),
    text("user", "2"),
]


async def test_a_repair_is_written_in_place_and_once(db: Database) -> None:
    first, second = await second_turn(db)
    await write(db, first.lease.run_id, BROKEN)
    good = await repair(db, second.lease, working=False)
    stored = (await db.read(lambda c: history(c, ["s1"])))["s1"]
    assert stored == good
    told = [message for _, message in stored]
    assert told == repaired(BROKEN)
    assert [message.role for message in told] == ["user", "assistant", "tool", "assistant", "assistant", "tool", "user"]
    [missing, kept] = told[2].parts
    assert isinstance(missing, ToolResultPart) and missing.outcome is ResultOutcome.INTERRUPTED
    assert isinstance(kept, ToolResultPart) and kept.content == "1"
    before = await rows(db, "SELECT position, xmin::text AS xmin, created_at FROM message ORDER BY position")
    assert await repair(db, second.lease, working=False) == good
    after = await rows(db, "SELECT position, xmin::text AS xmin, created_at FROM message ORDER BY position")
    assert after == before, "nothing is written a second time"
    assert await rows(db, "SELECT message_seq FROM session") == [{"message_seq": 7}]
    assert "history is contiguous" not in await violations(db, at_rest=False)


async def test_what_is_good_keeps_its_row_and_its_time(db: Database) -> None:
    first, second = await second_turn(db)
    await write(db, first.lease.run_id, BROKEN)
    before = await rows(db, "SELECT role, created_at FROM message WHERE role <> 'tool' ORDER BY position")
    await repair(db, second.lease, working=False)
    assert await rows(db, "SELECT role, created_at FROM message WHERE role <> 'tool' ORDER BY position") == before


async def test_calls_in_the_making_are_not_answered_for_their_turn(db: Database) -> None:
    first, second = await second_turn(db)
    told = [text("user", "one"), asks("a"), text("user", "two"), asks("b")]
    await write(db, first.lease.run_id, told)
    good = await repair(db, second.lease, working=True)
    assert [message.role for _, message in good] == ["user", "assistant", "tool", "user", "assistant"]


async def test_who_has_lost_the_lease_repairs_nothing(db: Database) -> None:
    first, second = await second_turn(db)
    await write(db, first.lease.run_id, BROKEN)
    with pytest.raises(LeaseLost):
        await repair(db, first.lease, working=False)
    assert len((await db.read(lambda c: history(c, ["s1"])))["s1"]) == len(BROKEN)
    assert second.lease.token > first.lease.token
