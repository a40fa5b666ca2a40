"""Writes a session's log and history: events and messages for many sessions in one statement, numbered under the sessions' row locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from stratus.channel.text import clean_json
from stratus.domain.event import NewEvent
from stratus.domain.values import PARTS, Message, ToolCallPart, ToolResultPart
from stratus.store.database import Connection

# Lock order: the caller holds the rows of `session` (and of session_execution before them); everything else here is new rows.
_WRITE = """
WITH target AS (
    SELECT t.*, sum(t.events) OVER w - t.events AS event_offset, sum(t.messages) OVER w - t.messages AS message_offset
      FROM unnest($1::text[], $2::bigint[], $3::int[], $4::int[], $5::int[], $6::int[]) WITH ORDINALITY
           AS t(session_id, run_id, run_seq, attempt, events, messages, ordinal)
    WINDOW w AS (PARTITION BY t.session_id ORDER BY t.ordinal)
), bump AS (
    UPDATE session s SET event_seq = s.event_seq + g.events, message_seq = s.message_seq + g.messages
      FROM (SELECT session_id, sum(events) AS events, sum(messages) AS messages FROM target GROUP BY session_id) g
     WHERE s.id = g.session_id
    RETURNING s.id, s.event_seq - g.events AS event_base, s.message_seq - g.messages AS message_base
), logged AS (
    INSERT INTO session_event (session_id, seq, run_id, run_seq, attempt, kind, payload)
    SELECT t.session_id, b.event_base + t.event_offset + e.n, t.run_id, t.run_seq + e.n, t.attempt, e.kind, e.payload
      FROM unnest($7::int[], $8::int[], $9::text[], $10::jsonb[]) AS e(target, n, kind, payload)
      JOIN target t ON t.ordinal = e.target
      JOIN bump b ON b.id = t.session_id
), said AS (
    INSERT INTO message (session_id, position, run_id, role, parts, tool_calls)
    SELECT t.session_id, b.message_base + t.message_offset + m.n, t.run_id, m.role, m.parts,
           ARRAY(SELECT jsonb_array_elements_text(m.calls))
      FROM unnest($11::int[], $12::int[], $13::text[], $14::jsonb[], $15::jsonb[]) AS m(target, n, role, parts, calls)
      JOIN target t ON t.ordinal = m.target
      JOIN bump b ON b.id = t.session_id
)
SELECT t.ordinal, b.event_base + t.event_offset AS event_seq FROM target t JOIN bump b ON b.id = t.session_id ORDER BY t.ordinal
"""

LOCK_SESSIONS = "SELECT id FROM session WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE"


@dataclass(frozen=True)
class LogWrite:
    """What one run adds: `events` follow its event `run_seq` (0: none yet), `messages` go to the end of the session's history."""

    session_id: str
    run_id: int
    run_seq: int
    attempt: int
    events: Sequence[NewEvent] = ()
    messages: Sequence[Message] = ()


async def write_log(connection: Connection, writes: Sequence[LogWrite]) -> list[int]:
    """Append for runs whose sessions the caller has locked. Returns, for each write, the seq before its first event."""
    events = [(i, n, event) for i, write in enumerate(writes, 1) for n, event in enumerate(write.events, 1)]
    messages = [(i, n, one) for i, write in enumerate(writes, 1) for n, one in enumerate(write.messages, 1)]
    rows = await connection.fetch(
        _WRITE,
        [write.session_id for write in writes],
        [write.run_id for write in writes],
        [write.run_seq for write in writes],
        [write.attempt for write in writes],
        [len(write.events) for write in writes],
        [len(write.messages) for write in writes],
        [i for i, _, _ in events],
        [n for _, n, _ in events],
        [event.kind for _, _, event in events],
        [encode(event.payload) for _, _, event in events],
        [i for i, _, _ in messages],
        [n for _, n, _ in messages],
        [message.role for _, _, message in messages],
        [encode(PARTS.dump_python(list(message.parts), mode="json")) for _, _, message in messages],
        [encode(call_ids(message)) for _, _, message in messages],
    )
    return [row["event_seq"] for row in rows]


def encode(value: object) -> str:
    """JSON that `jsonb` takes: models and tools may produce NUL and lone surrogates, which PostgreSQL refuses."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(clean_json(value)).decode()
    return orjson.dumps(clean_json(value)).decode() if "\\u0000" in text else text


def call_ids(message: Message) -> list[str]:
    """Ids of the calls that a message makes or answers."""
    return [part.call_id for part in message.parts if isinstance(part, (ToolCallPart, ToolResultPart))]
