"""Drafts in the delivery room: given up sooner than an answer, never repeated under their key, and drawn only where that is wanted."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.protocol import Guard
from stratus.channel.values import ChannelConfig, Op, Receipt
from stratus.delivery.drafts import easel
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.inbox import ChannelLease
from stratus.store.plan import NewOp, plan
from tests.store.world import rows, running
from tests.system.delivery_rig import (
    TERMS,
    Platform,
    Replica,
    Scripted,
    all_are,
    hang,
    put,
    raising,
)


async def put_draft(db: Database, row: ChannelRow) -> None:
    claimed = await running(db, channel_id=row.id)
    op = NewOp(row.id, "a", "draft_update", {"chat": "a"}, {"text": "one"}, uuid4().hex, run_id=claimed.lease.run_id)
    await db.transact(lambda c: plan(c, [op]))


async def test_an_answer_waits_only_a_part_of_its_own_time_for_a_draft(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    platform.answers = [hang]
    await put_draft(db, row)
    terms = replace(TERMS, send_budget=60.0, ttl=70.0)
    assert terms.draft_budget == 15.0 and terms.budget("send_reply") == 60.0
    began = time.monotonic()
    async with Replica(db, platform, replace(TERMS, send_budget=4.0)) as replica:
        await all_are(db, "sending")
        await put(db, row.id, "the answer")
        replica.wake(row.id)
        await all_are(db, "unknown", "sent")
    assert time.monotonic() - began < 4.0
    # by the sender itself, not by the sweep that follows the database's deadline
    [found] = await rows(db, "SELECT error ->> 'code' AS code FROM channel_outbox WHERE state = 'unknown'")
    assert found["code"] == "unexpected"


async def test_a_draft_is_never_repeated_under_its_key(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.window = timedelta(minutes=2)
    platform.answers = [raising(SendError(SendFailure.UNKNOWN, "no_answer", "reset"))]
    await put_draft(db, row)
    async with Replica(db, platform):
        await all_are(db, "unknown")
    assert len(platform.calls) == 1


class Editing(Scripted):
    """An adapter that edits."""

    shared = Platform()

    async def edit(self, op: Op, guard: Guard) -> Receipt:
        return Receipt(message_id=op.message_id)


@pytest.mark.parametrize(
    ("adapter", "drafts", "groups"),
    [
        (Scripted, "on", None),
        (Editing, None, False),
        (Editing, "direct", False),
        (Editing, "on", True),
        (Editing, True, True),
        (Editing, "off", None),
        (Editing, False, None),
    ],
)
def test_where_drafts_are_drawn(adapter: type[Scripted], drafts: Any, groups: bool | None) -> None:
    Scripted.shared = Editing.shared
    lease = ChannelLease(1, 1, uuid4())
    made = adapter(ChannelConfig(channel_id="c", name="n"))
    found = easel(lease, made, {} if drafts is None else {"drafts": drafts}, lambda: None)
    assert (None if found is None else found.groups) == groups


async def test_no_draft_is_read_for_on_a_platform_that_cannot_edit(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    await running(db, channel_id=row.id)
    async with Replica(db, platform) as replica:
        await put(db, row.id, "x")
        await all_are(db, "sent")
        assert replica.manager.drafts.loop.health.steps <= 1
    assert [one["kind"] for one in await rows(db, "SELECT kind FROM channel_outbox")] == ["send_text"]
