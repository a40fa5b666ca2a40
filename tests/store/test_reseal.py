"""Another key for all credentials, while channels run: nothing is lost, and what cannot be opened is named and left alone."""

from __future__ import annotations

from uuid import uuid4

import pytest

from stratus.store import channel, reseal
from stratus.store.channel import ChannelRow
from stratus.store.database import Database
from stratus.store.vault import CredentialsUnreadable, Vault
from tests.store.world import rows

OLD, NEW, LOST = ("o" * 32, "n" * 32, "l" * 32)


async def add(db: Database, name: str, *keys: str) -> ChannelRow:
    public_id = uuid4()
    sealed = Vault(keys).seal(public_id, {"token": name}) if keys else None
    return await channel.create(db, public_id, "testchan", name, "demo", {}, sealed)


def token(row: ChannelRow, *keys: str) -> str:
    assert row.credentials is not None
    return Vault(keys).open(row.public_id, row.credentials)["token"]


async def test_all_rows_are_by_the_first_key_and_the_old_one_is_not_needed(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reseal, "_BATCH", 3)
    for number in range(7):
        await add(db, f"c{number}", OLD)
    await add(db, "bare")
    await add(db, "new", NEW)
    found = await reseal.reseal(db, Vault([NEW, OLD]))
    assert (found.resealed, found.current, found.unreadable) == (7, 1, [])
    sealed = [row for row in await channel.listing(db) if row.credentials is not None]
    assert [token(row, NEW) for row in sealed] == [row.name for row in sealed]
    assert {row.config_revision for row in sealed} == {1}, "a channel would start anew"
    again = await reseal.reseal(db, Vault([NEW]))
    assert (again.resealed, again.current) == (0, 8)


async def test_what_cannot_be_opened_is_named_and_left_as_it_is(db: Database) -> None:
    lost, copied, fine = await add(db, "lost", LOST), await add(db, "copied", OLD), await add(db, "fine", OLD)
    await db.transact(
        lambda c: c.execute("UPDATE channel SET credentials = $2 WHERE id = $1", copied.id, fine.credentials)
    )
    found = await reseal.reseal(db, Vault([NEW, OLD]))
    assert (found.resealed, found.unreadable) == (1, ["lost", "copied"])
    assert token(await channel.get(db, "lost"), LOST) == "lost"
    with pytest.raises(CredentialsUnreadable, match="another channel"):
        token(await channel.get(db, "copied"), NEW, OLD)
    assert lost.credentials == (await channel.get(db, "lost")).credentials


async def test_a_change_meanwhile_is_not_undone(db: Database) -> None:
    row = await add(db, "one", OLD)
    [read] = await reseal.sealed(db)
    newer = Vault([NEW]).seal(row.public_id, {"token": "newer"})
    await channel.configure(db, row.id, credentials=newer)
    await reseal._replace(db, [(read, Vault([NEW]).seal(row.public_id, {"token": "one"}))])
    assert token(await channel.get(db, "one"), NEW) == "newer"
    assert await rows(db, "SELECT config_revision FROM channel") == [{"config_revision": 2}]
