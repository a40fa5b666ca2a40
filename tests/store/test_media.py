"""Files of events in the store: bytes beside the rows that name them, the fence of the owner, and what a request to a model carries."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from stratus.channel.values import Attachment, Event
from stratus.domain.errors import LeaseLost
from stratus.domain.values import FilePart, Message, TextPart
from stratus.execution import files
from stratus.execution.files import with_files
from stratus.store import blob, media
from stratus.store.database import Connection, Database
from stratus.store.inbox import Arrival, ChannelLease, intake
from tests.store.world import event, make_channel, own, rows

STATES = "SELECT state, attempts, payload FROM channel_inbox ORDER BY id"
Act = Callable[[Database, ChannelLease, int, Event], Awaitable[object]]


def with_file(key: str, **fields: Any) -> Event:
    return event(key).model_copy(update={"attachments": [Attachment(name="f", **fields)]})


async def put(db: Database, channel_id: int, *events: Event) -> list[int]:
    await intake(db, [Arrival(channel_id, one) for one in events])
    return [int(str(row["id"])) for row in await rows(db, "SELECT id FROM channel_inbox ORDER BY id")]


async def test_bytes_that_come_along_are_stored_beside_the_row(db: Database) -> None:
    channel = await make_channel(db)
    data = bytes(range(256)) * 2000
    given = [with_file("1", data=base64.b64encode(data).decode()), with_file("2", data="no base64")]
    await put(db, channel, *given, with_file("3", data=base64.b64encode(data).decode()))
    found = await rows(db, STATES)
    one, two, three = [orjson.loads(str(row["payload"]))["attachments"][0] for row in found]
    assert [row["state"] for row in found] == ["ready"] * 3
    assert (one["sha256"], one["size"], one["data"]) == (hashlib.sha256(data).hexdigest(), len(data), None)
    assert three["sha256"] == one["sha256"] and await blob.get(db, bytes.fromhex(one["sha256"])) == data
    assert (two["sha256"], two["missing"]) == (None, "its bytes could not be read")


@pytest.mark.parametrize(
    "act",
    [
        lambda db, lease, id_, one: media.ready(db, lease, id_, one),
        lambda db, lease, id_, one: media.keep(db, lease, id_, one, b"bytes"),
        lambda db, lease, id_, _one: media.put_off(db, lease, id_, seconds=60, tries=1),
        lambda db, lease, id_, _one: media.gather(db, lease, id_),
    ],
    ids=["ready", "keep", "put_off", "gather"],
)
async def test_a_former_owner_changes_nothing(db: Database, act: Act) -> None:
    channel = await make_channel(db)
    lost = await own(db, channel)
    waiting = with_file("1", ref="r").model_copy(update={"album": "a"})
    [row] = await put(db, channel, waiting)
    await db.transact(lambda c: c.execute("UPDATE channel_inbox SET not_before = received_at"))
    await own(db, channel)
    before = await rows(db, STATES)
    with pytest.raises(LeaseLost):
        await act(db, lost, row, waiting)
    assert await rows(db, STATES) == before
    assert await rows(db, "SELECT count(*) AS n FROM outbox_blob") == [{"n": 0}]


async def test_a_request_carries_the_newest_files_up_to_its_bound(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "REQUEST_FILE_BYTES_MAX", 10)
    names = ("old", "mid", "new")
    stored = {name: name.encode() * 2 for name in names}

    async def work(connection: Connection) -> None:
        await blob.put_all(connection, list(stored.values()))

    await db.transact(work)
    told = [Message(role="user", parts=[TextPart(text=name), _part(name, data)]) for name, data in stored.items()]
    film = FilePart(name="film", mime="video/mp4", sha256="ab" * 32, size=4)
    filled = await with_files(db, [*told, Message(role="user", parts=[film])])
    carried = [part.data for message in filled for part in message.parts if isinstance(part, FilePart)]
    assert [base64.b64decode(data) for data in carried] == [b"", b"", b"newnew", b""]
    assert [message.text() for message in filled] == [*names, ""]


def _part(name: str, data: bytes) -> FilePart:
    return FilePart(name=name, mime="image/png", sha256=hashlib.sha256(data).hexdigest(), size=len(data))
