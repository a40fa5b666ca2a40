"""Sessions whose client stands still in the middle of an exchange are ended; others are left alone."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from stratus.store.database import Database, Timeouts
from stratus.store.stalled import end_stalled
from testbed.eventually import eventually
from testbed.pgproxy import PgProxy

LIMITS = Timeouts(statement=5.0, idle_in_transaction=0.3, lock=2.0)


async def test_a_client_that_stops_between_parse_and_bind_keeps_no_lock(dsn: str, db: Database) -> None:
    impatient = Database(dsn, timeouts=LIMITS, main_size=1, ingress_size=1)
    await impatient.open()
    async with PgProxy(dsn) as proxy:
        stalled = await asyncpg.connect(proxy.dsn, server_settings=LIMITS.server_settings("stratus/asleep"))
        working = await asyncpg.connect(dsn, server_settings={"application_name": "stratus/busy"})
        await stalled.execute("BEGIN")
        await stalled.execute("LOCK TABLE replica")
        await proxy.arm("$1::int", "delay")
        never = asyncio.create_task(stalled.fetchval("SELECT $1::int", 1))
        busy = asyncio.create_task(working.execute("SELECT pg_sleep(2)"))
        await proxy.wait_hit()
        assert await db.read(lambda c: c.fetchval("SELECT count(*) FROM pg_locks WHERE mode LIKE 'AccessExcl%'")) == 1
        await eventually(lambda: end_stalled(impatient), what="the session is ended")
        with pytest.raises(asyncpg.ConnectionDoesNotExistError):
            await never
        await db.transact(lambda c: c.execute("LOCK TABLE replica"))
        await busy
        await working.close()
    await impatient.close()
