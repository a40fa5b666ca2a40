"""Group chats: the lock under which one decision is made for each message, those decisions, and what was said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from pydantic import ValidationError

from stratus.channel.values import Sender
from stratus.domain.errors import BadInput
from stratus.domain.group import Bot, GroupState, Known
from stratus.domain.routing import Access
from stratus.store.database import Connection, Database

_MAKE_CHATS = """
INSERT INTO group_chat (platform, chat_key) SELECT $1, chat_key FROM unnest($2::text[]) AS w(chat_key) ORDER BY chat_key
    ON CONFLICT (platform, chat_key) DO NOTHING
"""

_LOCK_CHATS = """
SELECT chat_key, bot_turns FROM group_chat WHERE platform = $1 AND chat_key = ANY($2) ORDER BY chat_key FOR UPDATE
"""

_COUNT = """
UPDATE group_chat g SET bot_turns = w.bot_turns
  FROM unnest($2::text[], $3::int[]) AS w(chat_key, bot_turns)
 WHERE g.platform = $1 AND g.chat_key = w.chat_key AND g.bot_turns <> w.bot_turns
"""

_KNOWN = """
SELECT m.chat_key, m.message_key, m.state, m.reason, m.inbox_id,
       extract(epoch FROM clock_timestamp() - m.created_at)::float8 AS age
  FROM group_message m
  JOIN unnest($2::text[], $3::text[]) AS w(chat_key, message_key) ON w.chat_key = m.chat_key AND w.message_key = m.message_key
 WHERE m.platform = $1
"""

_BOTS = "SELECT id, name, agent_id, account_key, config, enabled FROM channel WHERE platform = $1 AND deleted_at IS NULL ORDER BY id"

_AGENTS = "SELECT id FROM agent WHERE enabled"

_BOUND = """
SELECT b.channel_id, b.chat_key, b.thread_key, s.agent_id FROM binding b JOIN session s ON s.id = b.session_id
  JOIN unnest($2::text[], $3::text[]) AS w(chat_key, thread_key) ON w.chat_key = b.chat_key AND w.thread_key = b.thread_key
 WHERE b.channel_id = ANY($1)
"""

# The table's trigger lets through what domain/group.py moves: silent to accept or hold, hold to accept or expired.
_DECIDE = """
INSERT INTO group_message (platform, chat_key, thread_key, message_key, inbox_id, observer_id, responder_id, state, reason)
SELECT $1, w.chat_key, w.thread_key, w.message_key, w.inbox_id, $2, w.responder_id, w.state, w.reason
  FROM unnest($3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[], $9::text[]) WITH ORDINALITY
       AS w(chat_key, thread_key, message_key, inbox_id, responder_id, state, reason, ordinal)
 ORDER BY w.ordinal
    ON CONFLICT (platform, chat_key, message_key)
    DO UPDATE SET inbox_id = EXCLUDED.inbox_id, observer_id = EXCLUDED.observer_id, responder_id = EXCLUDED.responder_id,
                  state = EXCLUDED.state, reason = EXCLUDED.reason, decided_at = clock_timestamp()
"""

# Since the responder's last turn there: what it answered is in its own history.
_SAID = """
SELECT i.sender, i.payload ->> 'text' AS text
  FROM group_message m
  JOIN group_message s ON s.platform = m.platform AND s.chat_key = m.chat_key AND s.thread_key = m.thread_key AND s.id < m.id
                      AND s.responder_id IS DISTINCT FROM m.responder_id
  JOIN channel_inbox i ON i.id = s.inbox_id
 WHERE m.platform = $1 AND m.chat_key = $2 AND m.message_key = $3
   AND s.id > coalesce((SELECT max(a.id) FROM group_message a
                         WHERE a.platform = m.platform AND a.chat_key = m.chat_key AND a.thread_key = m.thread_key
                           AND a.id < m.id AND a.responder_id = m.responder_id AND a.state = 'accept'), 0)
 ORDER BY s.id DESC LIMIT $4
"""

_GIVE_UP = """
UPDATE group_message SET state = 'expired', reason = $2, decided_at = clock_timestamp() WHERE inbox_id = ANY($1) AND state = 'hold'
"""

_LIST = """
SELECT m.id, m.platform, m.chat_key AS chat, m.thread_key AS thread, m.message_key AS message, m.state, m.reason,
       o.name AS observer, r.name AS responder, u.public_id AS run, u.state AS run_state, m.created_at, m.decided_at
  FROM group_message m
  LEFT JOIN channel o ON o.id = m.observer_id
  LEFT JOIN channel r ON r.id = m.responder_id
  LEFT JOIN agent_run u ON u.inbox_id = m.inbox_id
 WHERE ($1::text IS NULL OR m.state = $1) AND ($2::text IS NULL OR m.chat_key = $2)
 ORDER BY m.id DESC LIMIT $3
"""


@dataclass(frozen=True)
class MessageKey:
    """A message of the platform: `key` is the same for all of our bots where the platform numbers it so."""

    chat: str
    key: str


@dataclass(frozen=True)
class NewDecision:
    """A decision to be written for the message that an inbox row tells of."""

    message: MessageKey
    thread: str
    inbox_id: int
    responder: int | None
    state: GroupState
    reason: str


@dataclass(frozen=True)
class Listed:
    """One decision for operators; `run` is what the responder made of it."""

    id: int
    platform: str
    chat: str
    thread: str
    message: str
    state: str
    reason: str
    observer: str | None
    responder: str | None
    run: Any
    run_state: str | None
    created_at: datetime
    decided_at: datetime


async def lock_chats(connection: Connection, platform: str, chats: Sequence[str]) -> dict[str, int]:
    """Lock these chats until the transaction ends, before any binding; how many turns in a row each had at the word of bots."""
    wanted = sorted(set(chats))
    rows = await connection.fetch(_LOCK_CHATS, platform, wanted)
    if len(rows) < len(wanted):
        await connection.execute(_MAKE_CHATS, platform, wanted)
        rows = await connection.fetch(_LOCK_CHATS, platform, wanted)
    return {row["chat_key"]: row["bot_turns"] for row in rows}


async def count_turns(connection: Connection, platform: str, turns: Mapping[str, int]) -> None:
    """Write how many turns in a row came at the word of bots, in locked chats."""
    await connection.execute(_COUNT, platform, list(turns), list(turns.values()))


async def known(connection: Connection, platform: str, asked: Mapping[int, MessageKey]) -> dict[int, Known]:
    """What was decided before of the messages that these inbox rows tell of, by inbox row."""
    rows = await connection.fetch(
        _KNOWN, platform, [one.chat for one in asked.values()], [one.key for one in asked.values()]
    )
    found = {MessageKey(row["chat_key"], row["message_key"]): row for row in rows}
    return {
        inbox_id: Known(GroupState(row["state"]), row["reason"], row["inbox_id"] == inbox_id, row["age"])
        for inbox_id, message in asked.items()
        if (row := found.get(message)) is not None
    }


async def bots(
    connection: Connection, platform: str, places: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], list[Bot]]:
    """All of our bots on a platform, as they stand in each of these chats and threads."""
    channels = await connection.fetch(_BOTS, platform)
    enabled = {row["id"] for row in await connection.fetch(_AGENTS)}
    wanted = sorted(set(places))
    rows = await connection.fetch(
        _BOUND, [row["id"] for row in channels], [chat for chat, _ in wanted], [thread for _, thread in wanted]
    )
    bound = {(row["channel_id"], row["chat_key"], row["thread_key"]): row["agent_id"] for row in rows}
    access = {row["id"]: _access(row["config"]) for row in channels}
    return {
        place: [
            Bot(
                row["id"],
                row["name"],
                row["account_key"],
                access[row["id"]],
                _unavailable(row, bound.get((row["id"], *place), row["agent_id"]), enabled),
            )
            for row in channels
        ]
        for place in wanted
    }


async def decide(connection: Connection, platform: str, observer: int, decisions: Sequence[NewDecision]) -> None:
    """Write decisions, in locked chats."""
    await connection.execute(
        _DECIDE,
        platform,
        observer,
        [one.message.chat for one in decisions],
        [one.thread for one in decisions],
        [one.message.key for one in decisions],
        [one.inbox_id for one in decisions],
        [one.responder for one in decisions],
        [str(one.state) for one in decisions],
        [one.reason for one in decisions],
    )


async def said_before(
    connection: Connection, platform: str, message: MessageKey, limit: int
) -> list[tuple[Sender, str]]:
    """What others said before a decided message, since the responder's last turn there: at most `limit`, oldest first."""
    rows = await connection.fetch(_SAID, platform, message.chat, message.key, limit)
    return [(_sender(row["sender"]), row["text"] or "") for row in reversed(rows)]


async def give_up(connection: Connection, inbox_ids: Sequence[int], reason: str) -> None:
    """End what still waits on these events."""
    await connection.execute(_GIVE_UP, list(inbox_ids), reason)


async def listing(db: Database, state: str | None, chat: str | None, limit: int) -> list[Listed]:
    """The newest decisions first; of one state or chat if given."""
    return [Listed(**row) for row in await db.read(lambda c: c.fetch(_LIST, state, chat, limit))]


def _unavailable(row: Mapping[str, Any], agent_id: str, enabled: set[str]) -> str | None:
    if not row["enabled"]:
        return f"the channel {row['name']} is disabled"
    if row["account_key"] is None:
        return f"the channel {row['name']} has never been connected"
    return None if agent_id in enabled else f"the agent {agent_id} is paused or gone"


def _access(config: str) -> Access:
    try:
        return Access.of(orjson.loads(config))
    except BadInput:  # another channel's mistake must not stop this one
        return Access()


def _sender(value: str) -> Sender:
    try:
        return Sender.model_validate_json(value)
    except ValidationError:
        return Sender(id="")
