"""Files on their way out: an op names them, the replica that sends reads their bytes, and what has not been read has not been sent."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from stratus.channel.protocol import Guard
from stratus.channel.values import Attachment, Op, Receipt
from stratus.delivery import files
from stratus.store import blob
from stratus.store.database import Connection, Database
from stratus.store.plan import NewOp, plan
from testbed.eventually import eventually
from tests.store.world import rows
from tests.system.delivery_rig import Platform, Replica, add_channel, all_are

KB = 1024


async def put_files(db: Database, channel_id: int, *attachments: Attachment, lanes: bool = False) -> None:
    """One op for each, in one lane, or each in a lane of its own."""
    ops = [
        NewOp(
            channel_id,
            f"lane{number}" if lanes else "lane",
            "send_attachment",
            {"chat": "c"},
            {"attachment": one.model_dump(mode="json"), "reply_to": None},
            f"file:{number}",
        )
        for number, one in enumerate(attachments)
    ]
    await db.transact(lambda c: plan(c, ops))


async def kept(db: Database, data: bytes, **fields: Any) -> Attachment:
    """A stored file."""

    async def work(connection: Connection) -> bytes:
        return await blob.put(connection, data)

    digest = await db.transact(work)
    return Attachment(name="f", mime="text/plain", sha256=digest.hex(), **{"size": len(data), **fields})


@pytest.mark.parametrize("size", [0, 1, blob.CHUNK_BYTES, 300 * KB, 3 * 1024 * KB])
async def test_bytes_arrive_as_they_were_stored_and_are_not_in_the_ops_row(db: Database, size: int) -> None:
    platform, row = Platform(), await add_channel(db)
    data = bytes(number * 7 % 251 for number in range(size))
    await put_files(db, row.id, await kept(db, data))
    async with Replica(db, platform):
        await all_are(db, "sent")
    [op] = platform.sent
    assert op.attachment is not None and op.attachment.data is not None
    assert base64.b64decode(op.attachment.data) == data
    [stored] = await rows(db, "SELECT length(payload::text) AS n FROM channel_outbox")
    assert int(str(stored["n"])) < 500


async def test_an_op_of_the_first_release_carries_its_bytes_itself(db: Database) -> None:
    platform, row = Platform(), await add_channel(db)
    await put_files(db, row.id, Attachment(name="f", data=base64.b64encode(b"old").decode()))
    async with Replica(db, platform):
        await all_are(db, "sent")
    assert platform.sent[0].attachment is not None
    assert platform.sent[0].attachment.data == base64.b64encode(b"old").decode()


async def test_what_can_never_be_sent_fails_without_a_call(db: Database) -> None:
    platform, row = Platform(), await add_channel(db)
    gone = Attachment(name="gone", sha256=hashlib.sha256(b"never stored").hexdigest(), size=12)
    large = await kept(db, b"small", size=50_000_001)
    await put_files(db, row.id, gone, large, lanes=True)
    async with Replica(db, platform):
        await all_are(db, "failed", "failed")
    assert platform.calls == []
    errors = await rows(db, "SELECT error ->> 'code' AS code FROM channel_outbox ORDER BY id")
    assert [one["code"] for one in errors] == ["file_gone", "too_large"]


async def test_bytes_that_cannot_be_read_now_are_read_later(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has left, so it is no `unknown`, and costs no attempt."""
    platform, row = Platform(), await add_channel(db)
    read, failures = blob.get, [TimeoutError(), ConnectionError()]

    async def troubled(of: Database, digest: bytes) -> bytes | None:
        if failures:
            raise failures.pop()
        return await read(of, digest)

    monkeypatch.setattr(blob, "get", troubled)
    await put_files(db, row.id, await kept(db, b"later"))
    async with Replica(db, platform):
        await all_are(db, "sent")
    [op] = await rows(db, "SELECT attempts, attempt_seq FROM channel_outbox")
    assert (op["attempts"], op["attempt_seq"]) == (1, 3)


async def test_only_a_few_files_are_in_memory_at_once(db: Database) -> None:
    platform, row = Platform(), await add_channel(db)
    under_way, most = 0, 0
    release = asyncio.Event()

    async def held(op: Op, _guard: Guard) -> Receipt:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await release.wait()
        under_way -= 1
        return await platform.accept(op)

    platform.answers = [held] * 6
    await put_files(db, row.id, *[await kept(db, bytes([number])) for number in range(6)], lanes=True)
    async with Replica(db, platform):
        await eventually(lambda: under_way == files.FILES_IN_HAND, what="sends under way")
        release.set()
        await all_are(db, *["sent"] * 6)
    assert most == files.FILES_IN_HAND
