"""The testbed against a real PostgreSQL: what the proxy does to a COMMIT, copied databases, a server that stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from testbed.eventually import eventually
from testbed.pgproxy import Action, PgProxy
from testbed.postgres import PrivateServer, TestCluster, with_database

pytestmark = pytest.mark.postgres


LOST = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)


@pytest_asyncio.fixture
async def dsn() -> AsyncIterator[str]:
    async with TestCluster() as cluster:
        admin = await asyncpg.connect(cluster.url)
        name = f"stratus_test_{os.getpid()}_0"
        await admin.execute(f'CREATE DATABASE "{name}"')
        plain = with_database(cluster.url, name)
        async with connected(plain) as connection:
            await connection.execute("CREATE TABLE note (word text)")
        yield plain
        await cluster.drop(plain)
        await admin.close()


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn, timeout=5)
    try:
        yield connection
    finally:
        connection.terminate()


async def words(dsn: str) -> list[str]:
    async with connected(dsn) as connection:
        return [word for (word,) in await connection.fetch("SELECT word FROM note ORDER BY word")]


async def write(connection: asyncpg.Connection[Any], word: str) -> None:
    async with connection.transaction():
        await connection.execute("INSERT INTO note VALUES ($1)", word)


async def test_a_dropped_commit_never_happens(dsn: str) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        await proxy.arm("COMMIT", "drop_before")
        with pytest.raises(LOST):
            await write(connection, "a")
        assert [hit.action for hit in proxy.log] == ["drop_before"]
        assert await words(dsn) == []


async def test_a_commit_whose_answer_is_reset_has_happened(dsn: str) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        await proxy.arm("COMMIT", "lose_ack_rst")
        with pytest.raises(LOST):
            await write(connection, "a")
        assert await words(dsn) == ["a"]


async def test_a_commit_whose_answer_is_swallowed_has_happened_and_the_connection_stays(dsn: str) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        await proxy.arm("COMMIT", "lose_ack_silent")
        writing = asyncio.create_task(write(connection, "a"))
        await proxy.wait_hit(1)
        assert await words(dsn) == ["a"]
        assert not writing.done()
        assert not connection.is_closed()
        await proxy.heal()
        with pytest.raises(LOST):
            await writing


async def test_a_delayed_commit_reaches_the_server_after_its_client_has_gone(dsn: str) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        await proxy.arm("COMMIT", "delay")
        writing = asyncio.create_task(write(connection, "a"))
        await proxy.wait_hit(1)
        connection.terminate()
        with pytest.raises(LOST):
            await writing
        assert await words(dsn) == []
        await proxy.release()
        await eventually(lambda: words(dsn), what="the late commit")


@pytest.mark.parametrize(("action", "left"), [("drop_before", ["a"]), ("lose_ack_rst", ["a", "b"])])
async def test_a_cached_prepared_statement_is_matched_when_it_runs_again(
    dsn: str, action: Action, left: list[str]
) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        insert = await connection.prepare("INSERT INTO note VALUES ($1)")
        await insert.fetch("a")
        await proxy.arm(b"INSERT INTO note", action)
        with pytest.raises(LOST):
            await insert.fetch("b")
        assert [hit.sql for hit in proxy.log] == ["INSERT INTO note VALUES ($1)"]
        assert await words(dsn) == left


async def test_an_action_can_be_kept_to_transactions_that_did_something(dsn: str) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        await write(connection, "a")
        await proxy.arm("COMMIT", "lose_ack_rst", within="INSERT INTO note")
        async with connection.transaction():
            await connection.execute("SELECT 1")
        assert proxy.log == []
        with pytest.raises(LOST):
            await write(connection, "b")
        assert [hit.action for hit in proxy.log] == ["lose_ack_rst"]
        assert await words(dsn) == ["a", "b"]


async def test_times_counts_the_statements(dsn: str) -> None:
    async with PgProxy(dsn) as proxy:
        await proxy.arm("INSERT", "drop_before", times=2)
        for word in ("a", "b", "c"):
            async with connected(proxy.dsn) as connection:
                with contextlib.suppress(*LOST):
                    await write(connection, word)
        assert await words(dsn) == ["c"]


async def test_a_silent_cut_holds_a_query_and_heal_answers_it(dsn: str) -> None:
    async with PgProxy(dsn) as proxy, connected(proxy.dsn) as connection:
        await proxy.cut()
        asking = asyncio.create_task(connection.fetchval("SELECT 42"))
        with pytest.raises(TimeoutError):
            await asyncpg.connect(proxy.dsn, timeout=0.2)
        assert not asking.done()
        await proxy.heal()
        assert await asking == 42


async def test_a_database_copy_is_fresh_and_its_own() -> None:
    async with TestCluster() as one, TestCluster() as other, one.database() as first, other.database() as second:
        assert await one.template() == await other.template()
        async with connected(first) as connection:
            await connection.execute("CREATE TABLE mine ()")
        async with connected(second) as connection:
            assert await connection.fetchval("SELECT to_regclass('mine')") is None
            assert await connection.fetchval("SELECT to_regclass('stratus_version')") is not None


async def test_a_private_server_keeps_its_data_and_address_over_stop_start_and_crash() -> None:
    async with PrivateServer() as server:
        dsn = await server.create()
        async with connected(dsn) as connection:
            await connection.execute("CREATE TABLE note (word text)")
            await connection.execute("INSERT INTO note VALUES ('kept')")
        await server.stop()
        with pytest.raises(OSError):
            await asyncpg.connect(dsn, timeout=5)
        await server.start()
        assert await words(dsn) == ["kept"]
        crashed = server.postmaster()
        await server.kill()
        await eventually(lambda: answers(dsn), timeout=20, what="the server after its crash")
        assert server.postmaster() != crashed


async def answers(dsn: str) -> bool:
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        return await words(dsn) == ["kept"]
    return False
