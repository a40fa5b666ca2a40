"""Ends server sessions that keep their locks because their client stands still in the middle of an exchange.

Such a session is `active`, not idle in transaction: that limit runs from ReadyForQuery on, and statement_timeout is passed over
while a command is read (PostgreSQL, src/backend/tcop/postgres.c). asyncpg prepares with Flush instead of Sync
(protocol/coreproto.pyx), so each first use of a statement has such a moment. Only their own login may see and end them, so this runs as that.
"""

from __future__ import annotations

from stratus.store.database import Connection, Database

_AS_LOGIN = "SELECT set_config('role', 'none', true)"

_END = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name LIKE 'stratus/%'
   AND state = 'active' AND wait_event = 'ClientRead' AND xact_start IS NOT NULL
   AND state_change < clock_timestamp() - make_interval(secs => $1)
"""


async def end_stalled(db: Database) -> int:
    """End the sessions that have waited for their client longer than one may be idle in a transaction. Returns how many."""

    async def work(connection: Connection) -> int:
        await connection.execute(_AS_LOGIN)
        ended: int = await connection.fetchval(_END, db.timeouts.idle_in_transaction)
        return ended

    return await db.transact(work, idempotent=True)
