"""Which session a chat or thread talks to. `/new` rotates it; the rotation's receipt is the outcome of the command's inbox row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratus.store.database import Connection

_READ = """
SELECT b.chat_key, b.thread_key, b.session_id, b.revision, s.agent_id
  FROM binding b
  JOIN unnest($2::text[], $3::text[]) AS w(chat_key, thread_key) ON w.chat_key = b.chat_key AND w.thread_key = b.thread_key
  JOIN session s ON s.id = b.session_id
 WHERE b.channel_id = $1
 ORDER BY b.chat_key, b.thread_key
   FOR UPDATE OF b
"""

_WRITE = """
INSERT INTO binding (channel_id, chat_key, thread_key, session_id, revision)
SELECT $1, w.chat_key, w.thread_key, w.session_id, w.revision
  FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) AS w(chat_key, thread_key, session_id, revision)
 ORDER BY w.chat_key, w.thread_key
    ON CONFLICT (channel_id, chat_key, thread_key)
    DO UPDATE SET session_id = EXCLUDED.session_id, revision = EXCLUDED.revision, updated_at = clock_timestamp()
"""


@dataclass(frozen=True)
class Binding:
    """A chat's (or thread's) session; `revision` counts rotations from 1."""

    chat: str
    thread: str
    session_id: str
    revision: int
    agent_id: str


async def read(
    connection: Connection, channel_id: int, places: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Binding]:
    """The bindings of these chats and threads, locked."""
    wanted = sorted(set(places))
    rows = await connection.fetch(_READ, channel_id, [chat for chat, _ in wanted], [thread for _, thread in wanted])
    return {
        (row["chat_key"], row["thread_key"]): Binding(
            row["chat_key"], row["thread_key"], row["session_id"], row["revision"], row["agent_id"]
        )
        for row in rows
    }


async def write(connection: Connection, channel_id: int, bindings: Sequence[Binding]) -> None:
    """Set bindings; their sessions must exist."""
    if bindings:
        await connection.execute(
            _WRITE,
            channel_id,
            [one.chat for one in bindings],
            [one.thread for one in bindings],
            [one.session_id for one in bindings],
            [one.revision for one in bindings],
        )
