"""What `doctor` asks of the PostgreSQL server itself, and the one hint that a command may leave behind without listening."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import orjson

from stratus.store.database import Database
from stratus.store.hints import CHANNEL

OLDEST_VERSION = 14

_FACTS = """
SELECT current_setting('server_version_num')::int / 10000 AS major, current_setting('server_version') AS version,
       clock_timestamp() AS clock, pg_is_in_recovery() AS standby
"""

_NOTIFY = "SELECT pg_notify($1::text, $2::text)"


@dataclass(frozen=True)
class ServerFacts:
    """The server; a `standby` takes no writes."""

    major: int
    version: str
    clock: datetime
    standby: bool


async def facts(db: Database) -> ServerFacts:
    """Ask the server. Raises DatabaseAway."""
    row = await db.read(lambda c: c.fetchrow(_FACTS))
    assert row is not None
    return ServerFacts(**row)


async def hint(db: Database, topic: str, key: str) -> None:
    """Wake the replicas' listeners of a topic; what `Hints.send` does for a process that runs no listener."""
    await db.read(lambda c: c.execute(_NOTIFY, CHANNEL, orjson.dumps({topic: [key]}).decode()))
