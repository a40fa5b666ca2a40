"""What a tool may ask the database: a read of its own agent's rows, in SQL that somebody wrote by hand, bounded in time, rows and bytes."""

from __future__ import annotations

from typing import Any

import asyncpg
import orjson

from stratus.domain.errors import BadInput, DatabaseAway
from stratus.store.database import Connection, Database

ROWS_MAX = 1_000
BYTES_MAX = 4_000_000
ARGUMENTS_MAX = 8
TIME_LIMIT_SECONDS = 5.0

_LIMIT_TIME = "SELECT set_config('statement_timeout', $1, true)"
_QUERY = "SELECT stratus_query($1, $2::text[], $3, $4)"

# What the server answers when the statement itself is at fault, though elsewhere the same codes mean: not now.
_OWN_FAULTS = {
    "57014": f"the query took longer than {TIME_LIMIT_SECONDS:g} seconds",
    "25006": "the query may only read",
    "0A000": "the query asks for what cannot be done here",
}


class StoredRows:
    """The rows of one agent: its sessions, runs, messages, events, tool calls and approvals. PostgreSQL itself withholds all others."""

    def __init__(self, db: Database, agent_id: str) -> None:
        self._db = db
        self._agent_id = agent_id

    async def fetch(self, sql: str, *args: str | int | float | bool | None) -> list[dict[str, Any]]:
        """The rows of one SELECT, as JSON has them: times and uuids are text. Arguments `$1` to `$8` arrive as text, to be cast in the SQL.

        Raises BadInput for what is no single reading statement or takes longer than TIME_LIMIT_SECONDS, TooLarge for more than ROWS_MAX rows
        or BYTES_MAX bytes, DatabaseAway, and Broken with PostgreSQL's message for what it refuses.
        """
        if len(args) > ARGUMENTS_MAX:
            raise BadInput(f"a query takes at most {ARGUMENTS_MAX} arguments")
        given = [None if arg is None else str(arg) for arg in args]

        async def work(connection: Connection) -> list[str]:
            await connection.execute(_LIMIT_TIME, f"{min(TIME_LIMIT_SECONDS, self._db.timeouts.statement) * 1000:.0f}")
            return [line for (line,) in await connection.fetch(_QUERY, sql, given, ROWS_MAX, BYTES_MAX)]

        try:
            lines = await self._db.read(work, pool="tools", agent=self._agent_id)
        except DatabaseAway as error:
            cause = error.__cause__
            if isinstance(cause, asyncpg.PostgresError) and cause.sqlstate in _OWN_FAULTS:
                raise BadInput(_OWN_FAULTS[cause.sqlstate]) from error
            raise
        return [orjson.loads(line) for line in lines]
