"""Agents in the database: equal definitions make no revision, two appliers never clash, a used one is not taken away."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import Conflict
from stratus.store import agent
from stratus.store.database import Database
from testbed.eventually import eventually
from tests.store.world import WAITING, make_channel, rows

REMOVE_CHANNELS = "UPDATE channel SET deleted_at = clock_timestamp(), enabled = false"


def definition(name: str = "demo", soul: str = "", **fields: object) -> AgentDefinition:
    return AgentDefinition.model_validate({"id": name, "model": "demo", "soul": soul, **fields})


async def test_only_a_change_makes_a_revision(db: Database) -> None:
    assert await agent.upsert(db, definition()) == 1
    assert await agent.upsert(db, definition()) == 1
    assert await agent.upsert(db, definition(soul="Be kind.")) == 2
    assert await agent.upsert(db, definition(soul="Be kind.", settings={"b": 1, "a": [2]})) == 3
    assert await agent.upsert(db, definition(soul="Be kind.", settings={"a": [2], "b": 1})) == 3
    stored = await agent.get(db, "demo")
    assert stored is not None
    assert (stored.revision, stored.definition.soul) == (3, "Be kind.")


async def test_a_folder_is_applied_in_its_order(db: Database) -> None:
    await agent.upsert(db, definition("b"))
    applied = await agent.apply(db, [definition("b"), definition("a"), definition("c")])
    assert [(one.id, one.revision, one.changed) for one in applied] == [("b", 1, False), ("a", 1, True), ("c", 1, True)]
    assert [row.id for row in await agent.listing(db)] == ["a", "b", "c"]
    assert await agent.apply(db, []) == []


async def test_replicas_that_apply_the_same_folder_at_once_agree(db: Database) -> None:
    folder = [definition(f"agent-{n}") for n in range(8)]
    orders = [folder, folder[::-1]] * 4
    answers = await asyncio.gather(*(agent.apply(db, order) for order in orders))
    assert {one.revision for answer in answers for one in answer} == {1}
    assert sum(one.changed for answer in answers for one in answer) == len(folder)


async def test_what_was_deleted_comes_back_as_the_next_revision(db: Database) -> None:
    await agent.upsert(db, definition())
    assert await agent.delete(db, "demo")
    assert not await agent.delete(db, "demo")
    assert await agent.get(db, "demo") is None
    assert await agent.listing(db) == []
    assert await agent.upsert(db, definition()) == 2
    assert await agent.get(db, "demo") is not None


async def test_an_agent_that_answers_on_a_channel_stays(db: Database) -> None:
    await agent.upsert(db, definition())
    await make_channel(db)
    with pytest.raises(Conflict, match="answers on channel channel-"):
        await agent.delete(db, "demo")
    await db.transact(lambda c: c.execute(REMOVE_CHANNELS))
    assert await agent.delete(db, "demo")


async def test_appliers_of_opposite_orders_never_wait_in_a_circle(db: Database) -> None:
    """Both are held up in the middle, by a lock on `m`: whoever had locked by its own order would then hold what the other needs."""
    await agent.apply(db, [definition(name) for name in "amz"])
    changed = [definition(name, soul="new") for name in "amz"]
    holder = await asyncpg.connect(db.dsn)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT id FROM agent WHERE id = 'm' FOR UPDATE")
        async with asyncio.TaskGroup() as group:
            for order in (changed, changed[::-1]):
                group.create_task(agent.apply(db, order))

            async def both_wait() -> bool:
                return len(await rows(db, WAITING)) == 2

            await eventually(both_wait, 10, "both appliers wait")
            await transaction.rollback()
    finally:
        await holder.close()
    assert [row.revision for row in await agent.listing(db)] == [2, 2, 2]
