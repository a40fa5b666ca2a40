"""Files and albums on their way in: an event is ready when it is whole, holds up its own chat only, and says what could not be had."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from stratus.channel.errors import SendError, SendFailure
from stratus.channel.values import Attachment, Blob, Event, Sender
from stratus.delivery import fetcher
from stratus.domain.media import FETCH_TRIES, FILE_BYTES_MAX
from stratus.effects import Failpoints
from stratus.ingress.router import Router
from stratus.store import blob
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.inbox import Arrival, intake
from testbed.eventually import eventually
from tests.store.world import rows
from tests.system.delivery_rig import Platform, Replica, add_channel

KB = 1024
AGE = "UPDATE channel_inbox SET received_at = received_at - interval '1 minute', not_before = received_at - interval '1 minute'"
_numbers = itertools.count(1)


@pytest.fixture
async def row(db: Database) -> ChannelRow:
    return await add_channel(db, access="open")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between tries, so that none of these tests waits for real ones."""
    monkeypatch.setattr(fetcher, "delay_seconds", lambda _tries, _jitter: 0.01)


def message(text: str, *refs: str, chat: str = "c1", **fields: Any) -> Event:
    return Event(
        key=f"{chat}:{next(_numbers)}",
        kind="message",
        chat=chat,
        sender=Sender(id="7", name="Una"),
        text=text,
        attachments=[Attachment(kind="image", name=ref, mime="image/png", ref=ref) for ref in refs],
        **fields,
    )


async def feed(platform: Platform, *batches: Sequence[Event]) -> None:
    """Polls of the platform, one after the other."""
    for events in batches:
        platform.feed.append((list(events), {"at": next(_numbers)}))
    platform.fed.set()


async def stored(db: Database) -> list[dict[str, Any]]:
    found = await rows(db, "SELECT state, payload, attempts, outcome FROM channel_inbox ORDER BY id")
    return [{**one, "payload": orjson.loads(str(one["payload"]))} for one in found]


async def all_ready(db: Database, count: int) -> list[dict[str, Any]]:
    async def reached() -> bool:
        return [one["state"] for one in await stored(db)] == ["ready"] * count

    await eventually(reached, 20, f"{count} events to be ready")
    return await stored(db)


async def asked(db: Database) -> list[dict[str, Any]]:
    """What was asked of the agent after the router's work, in order."""
    router = Router(db, Replica(db, Platform()).hints, Failpoints())
    while await router.step():
        pass
    return [orjson.loads(str(one["input"])) for one in await rows(db, "SELECT input FROM agent_run ORDER BY id")]


async def texts(db: Database) -> list[str]:
    return [one["text"] for one in await asked(db)]


def refusing(error: Exception) -> Any:
    async def refuse(_ref: str) -> Blob:
        raise error

    return refuse


class Held:
    """A fetch that is held until the test lets it go."""

    def __init__(self, platform: Platform) -> None:
        self.entered, self.release = asyncio.Event(), asyncio.Event()
        self._platform = platform

    async def __call__(self, ref: str) -> Blob:
        self.entered.set()
        await self.release.wait()
        return await self._platform.hand_out(ref)


@pytest.mark.parametrize("size", [0, 1, 300 * KB, FILE_BYTES_MAX])
async def test_bytes_come_as_the_platform_has_them(
    db: Database, row: ChannelRow, platform: Platform, size: int
) -> None:
    data = bytes(251) * (size // 251) + b"x" * (size % 251)
    platform.blobs["pic"] = data
    async with Replica(db, platform):
        await feed(platform, [message("see", "pic")])
        await all_ready(db, 1)
    [[part]] = [one["parts"] for one in await asked(db)]
    assert (part["kind"], part["size"], part["sha256"]) == ("file", size, hashlib.sha256(data).hexdigest())
    assert await blob.get(db, bytes.fromhex(part["sha256"])) == data
    assert part["data"] == ""


async def test_only_its_own_chat_waits_and_order_holds_in_it(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.blobs["pic"] = b"p"
    held = Held(platform)
    platform.fetches.append(held)
    async with Replica(db, platform):
        await feed(platform, [message("one", "pic"), message("two"), message("other", chat="c2")])
        await eventually(held.entered.is_set, what="the fetch")
        assert await texts(db) == ["other"]
        held.release.set()
        await eventually(lambda: _is(db, ["other", "one", "two"]), what="the chat to go on")


async def _is(db: Database, expected: list[str]) -> bool:
    return await texts(db) == expected


@pytest.mark.parametrize(
    "error", [ConnectionError(), SendError(SendFailure.RETRYABLE, "http_504", "x"), TimeoutError()]
)
async def test_a_passing_fault_is_tried_again(
    db: Database, row: ChannelRow, platform: Platform, error: Exception
) -> None:
    platform.blobs |= {"one": b"1", "two": b"2"}
    platform.fetches += [platform.hand_out, *[refusing(error)] * (FETCH_TRIES - 1)]
    async with Replica(db, platform):
        await feed(platform, [message("see", "one", "two")])
        [found] = await all_ready(db, 1)
    assert platform.fetched == ["one", *["two"] * FETCH_TRIES]  # what is there is not fetched again
    assert found["attempts"] == 0
    assert [file["missing"] for file in found["payload"]["attachments"]] == [None, None]
    assert platform.sent == []


async def test_a_platform_that_hangs_is_left(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.blobs["pic"] = b"p"
    platform.fetches.append(Held(platform))
    async with Replica(db, platform):
        await feed(platform, [message("see", "pic")])
        await all_ready(db, 1)
    assert platform.fetched == ["pic", "pic"]


@pytest.mark.parametrize(
    ("fault", "tries", "why"),
    [
        (SendError(SendFailure.PERMANENT, "no_file", "gone"), 1, "does not hand it out"),
        (ConnectionError(), FETCH_TRIES, "not hand it out in time"),
        (None, 1, "20000001 bytes, and I take at most 20000000"),
    ],
)
async def test_what_cannot_be_had_is_told_to_the_model_and_once_to_the_person(
    db: Database, row: ChannelRow, platform: Platform, fault: Exception | None, tries: int, why: str
) -> None:
    platform.blobs["voice"] = bytes(FILE_BYTES_MAX + 1)
    platform.fetches += [refusing(fault)] * tries if fault else []
    async with Replica(db, platform):
        await feed(platform, [message("", "voice"), message("next")])
        await eventually(lambda: platform.sent, 20, "the word to the person")
        await all_ready(db, 2)
    assert len(platform.fetched) == tries
    [told] = platform.sent
    assert told.text.startswith("I could not take in what you sent. voice: ") and why in told.text
    first, second = await asked(db)
    assert second["text"] == "next"
    [part] = first["parts"]
    assert part["kind"] == "text" and part["text"].startswith("[attachment voice (image/png): ") and why in part["text"]


async def test_a_size_that_is_known_to_be_too_large_is_not_asked_for(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    big = message("see", "film")
    file = big.attachments[0].model_copy(update={"size": FILE_BYTES_MAX + 1})
    async with Replica(db, platform):
        await feed(platform, [big.model_copy(update={"attachments": [file]})])
        await all_ready(db, 1)
        await eventually(lambda: platform.sent, what="the word to the person")
    assert platform.fetched == []


async def test_files_of_strangers_are_not_fetched(db: Database, platform: Platform) -> None:
    await add_channel(db, access={"mode": "allowlist", "allow": ["somebody"]})
    async with Replica(db, platform):
        await feed(platform, [message("see", "pic")])
        await all_ready(db, 1)
    assert (platform.fetched, platform.sent) == ([], [])


async def test_the_next_owner_fetches_what_a_lost_one_was_about_to(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    platform.blobs["pic"] = b"p"
    held = Held(platform)
    platform.fetches.append(held)
    async with Replica(db, platform) as first:
        await feed(platform, [message("see", "pic"), message("after")])
        await eventually(held.entered.is_set, what="the fetch")
        first.renewing = False
        async with Replica(db, platform):
            await all_ready(db, 2)
            held.release.set()
    assert platform.fetched == ["pic", "pic"]
    assert await texts(db) == ["see", "after"]


# -- albums --


async def test_an_album_over_two_polls_is_one_message(db: Database, row: ChannelRow, platform: Platform) -> None:
    refs = [f"pic{number}" for number in range(10)]
    platform.blobs |= {ref: ref.encode() for ref in refs}
    parts = [message("caption" if ref == "pic0" else "", ref, album="a1") for ref in refs]
    async with Replica(db, platform):
        await feed(platform, parts[:4])
        await eventually(lambda: _stored(db, 4), what="the first part to be stored")
        await feed(platform, [*parts[4:], message("after"), message("aside", chat="c2")])
        await eventually(lambda: _is_among(db, "aside"), what="the other chat to go on")
        assert await texts(db) == ["aside"]
        await eventually(lambda: _is(db, ["aside", "caption", "after"]), 20, "the album to be routed")
    inputs = await asked(db)
    assert [part["name"] for part in inputs[1]["parts"]] == refs
    assert len(platform.fetched) == 10
    reasons = [orjson.loads(str(one["outcome"])).get("reason") for one in await stored(db)]
    assert reasons == [None, *["part of an album"] * 9, None, None]


async def test_a_late_part_is_a_message_of_its_own(db: Database, row: ChannelRow, platform: Platform) -> None:
    platform.blobs |= {"one": b"1", "two": b"2"}
    async with Replica(db, platform):
        await feed(platform, [message("caption", "one", album="a1")])
        await eventually(lambda: _is(db, ["caption"]), 20, "the first part to be routed")
        await feed(platform, [message("", "two", album="a1")])
        await eventually(lambda: _is(db, ["caption", ""]), 20, "the second part to be routed")


async def test_an_album_that_a_takeover_cuts_in_two_is_still_one_message(
    db: Database, row: ChannelRow, platform: Platform
) -> None:
    """What the lost owner stored was complete long ago, by the clock: the rest comes with the first poll of the next."""
    platform.blobs |= {"one": b"1", "two": b"2", "three": b"3"}
    await intake(db, [Arrival(row.id, message("caption", "one", album="a1"))])
    await db.transact(lambda c: c.execute(AGE))
    await intake(db, [Arrival(row.id, message("aside", "three", chat="c2"))])
    platform.open.clear()
    platform.feed.append(([message("", "two", album="a1")], {"at": 2}))
    async with Replica(db, platform):
        await eventually(lambda: _is(db, ["aside"]), 20, "the fetcher to be at work")
        assert (await stored(db))[0]["state"] == "received"
        platform.open.set()
        await eventually(lambda: _is(db, ["aside", "caption"]), 20, "the album to be routed")
    _, whole = await asked(db)
    assert [part["name"] for part in whole["parts"]] == ["one", "two"]


async def _stored(db: Database, count: int) -> bool:
    return len(await stored(db)) == count


async def _is_among(db: Database, text: str) -> bool:
    return text in await texts(db)
