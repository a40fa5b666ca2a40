"""Tokens prove a principal until they end; sign-in codes work once; a sender is one principal, however many ask."""

from __future__ import annotations

import asyncio
from uuid import UUID

from stratus.store import principal as principals
from stratus.store.database import Database
from tests.store.world import rows

EXPIRE = "UPDATE access_token SET expires_at = clock_timestamp() - interval '1 second'"
DISABLE = "UPDATE principal SET disabled_at = clock_timestamp()"


async def execute(db: Database, sql: str) -> None:
    await db.transact(lambda c: c.execute(sql))


async def test_a_token_proves_its_principal_and_is_kept_as_a_hash(db: Database) -> None:
    owner = await principals.ensure_owner(db)
    made = await principals.create_token(db, owner.id, "api", name="cli")
    assert await principals.authenticate(db, made.secret) == owner
    assert owner.may_see_all
    assert await principals.authenticate(db, made.secret + "x") is None
    assert made.secret not in repr(made)
    stored = await rows(db, "SELECT row_to_json(t)::text AS text FROM access_token t")
    assert made.secret not in str(stored)


async def test_an_ended_token_proves_nothing(db: Database) -> None:
    owner = await principals.ensure_owner(db)
    for end in (EXPIRE, DISABLE):
        made = await principals.create_token(db, owner.id, "api", ttl=60.0)
        assert await principals.authenticate(db, made.secret) is not None
        await execute(db, end)
        assert await principals.authenticate(db, made.secret) is None, end


async def test_revoking_is_for_whose_token_it_is(db: Database) -> None:
    owner = await principals.ensure_owner(db)
    made = await principals.create_token(db, owner.id, "api")
    assert not await principals.revoke(db, made.public_id, owner.id + 1)
    assert await principals.authenticate(db, made.secret) is not None
    assert await principals.revoke(db, made.public_id, owner.id)
    assert await principals.authenticate(db, made.secret) is None
    assert not await principals.revoke(db, UUID(int=7), None)
    assert await principals.listing(db, None) == []


async def test_a_signin_code_is_redeemed_once(db: Database) -> None:
    owner = await principals.ensure_owner(db)
    code = await principals.create_token(db, owner.id, "signin", ttl=principals.SIGNIN_SECONDS)
    assert await principals.authenticate(db, code.secret) is None, "a code is no token"
    answers = await asyncio.gather(*(principals.redeem_signin(db, code.secret) for _ in range(4)))
    [secret] = [one for one in answers if one is not None]
    assert await principals.authenticate(db, secret) == owner


async def test_an_expired_signin_code_is_refused(db: Database) -> None:
    owner = await principals.ensure_owner(db)
    code = await principals.create_token(db, owner.id, "signin", ttl=principals.SIGNIN_SECONDS)
    await execute(db, EXPIRE)
    assert await principals.redeem_signin(db, code.secret) is None


async def test_there_is_one_first_owner(db: Database) -> None:
    owners = await asyncio.gather(*(principals.ensure_owner(db) for _ in range(4)))
    assert len({owner.id for owner in owners}) == 1


async def test_a_sender_is_one_guest_however_many_routers_ask(db: Database) -> None:
    async def ask(*keys: str) -> dict[str, int]:
        return await db.transact(lambda c: principals.identify(c, "testchan", [(key, "Ann") for key in keys]))

    answers = await asyncio.gather(ask("1", "2"), ask("2", "3"), ask("3", "1"), ask("1", "1"))
    merged: dict[str, set[int]] = {}
    for answer in answers:
        for key, identity in answer.items():
            merged.setdefault(key, set()).add(identity)
    assert {len(ids) for ids in merged.values()} == {1}
    assert len(await rows(db, "SELECT id FROM principal WHERE role = 'guest'")) == 3
    assert await ask("2") == {"2": answers[0]["2"]}
