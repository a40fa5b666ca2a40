"""A chat that goes on under another id (a group that became a supergroup): all that is open follows it in one transaction, once."""

from __future__ import annotations

from collections.abc import Sequence

from stratus.store.database import Connection

# In lock order: schedule, binding, run, inbox, outbox (state-machines.md §10).
_SCHEDULES = """
UPDATE schedule SET reply_to = jsonb_set(reply_to, '{chat}', to_jsonb($3::text))
 WHERE (reply_to ->> 'channel_id')::bigint = $1 AND reply_to ->> 'chat' = $2
"""

# Where people have written to the new chat already, that conversation stays.
_BINDINGS = """
WITH old AS (
    SELECT thread_key FROM binding b WHERE b.channel_id = $1 AND b.chat_key = $2
       AND NOT EXISTS (SELECT 1 FROM binding n WHERE n.channel_id = $1 AND n.chat_key = $3 AND n.thread_key = b.thread_key)
     ORDER BY thread_key
       FOR UPDATE
)
UPDATE binding b SET chat_key = $3, updated_at = clock_timestamp()
  FROM old WHERE b.channel_id = $1 AND b.chat_key = $2 AND b.thread_key = old.thread_key
"""

_RUNS = """
WITH open AS (
    SELECT id FROM agent_run
     WHERE state IN ('queued', 'running', 'waiting') AND (reply_to ->> 'channel_id')::bigint = $1 AND reply_to ->> 'chat' = $2
     ORDER BY id
       FOR UPDATE
)
UPDATE agent_run r SET reply_to = jsonb_set(r.reply_to, '{chat}', to_jsonb($3::text)) FROM open WHERE r.id = open.id
"""

_EVENTS = """
UPDATE channel_inbox SET chat_key = $3, payload = jsonb_set(payload, '{chat}', to_jsonb($3::text))
 WHERE channel_id = $1 AND chat_key = $2 AND state IN ('received', 'ready') AND kind <> 'migrate'
"""

# Behind what waits in the new chat's lanes already, in their own order, the op in flight included.
_OPS = """
WITH open AS (
    SELECT o.id, o.lane_seq, $3::text || substr(o.lane, length($2::text) + 1) AS lane
      FROM channel_outbox o
     WHERE o.channel_id = $1 AND o.state IN ('pending', 'sending', 'unknown') AND o.address ->> 'chat' = $2
       AND (o.lane = $2 OR starts_with(o.lane, $2 || chr(31)))
     ORDER BY o.id
       FOR UPDATE
), numbered AS (
    SELECT id, lane, row_number() OVER (PARTITION BY lane ORDER BY lane_seq) AS place, count(*) OVER (PARTITION BY lane) AS total
      FROM open
), lanes AS (
    INSERT INTO outbox_lane AS l (channel_id, lane, last_seq)
    SELECT $1, lane, max(total) FROM numbered GROUP BY lane ORDER BY lane
        ON CONFLICT (channel_id, lane) DO UPDATE SET last_seq = l.last_seq + EXCLUDED.last_seq
    RETURNING lane, last_seq
)
UPDATE channel_outbox o
   SET lane = n.lane, lane_seq = l.last_seq - n.total + n.place, address = jsonb_set(o.address, '{chat}', to_jsonb($3::text))
  FROM numbered n JOIN lanes l ON l.lane = n.lane
 WHERE o.id = n.id
"""

_READDRESSED = """
SELECT DISTINCT o.channel_id, o.address ->> 'chat' AS old, a.chat AS new
  FROM unnest($1::bigint[], $2::text[]) AS a(op_id, chat) JOIN channel_outbox o ON o.id = a.op_id
 WHERE o.address ->> 'chat' IS DISTINCT FROM a.chat ORDER BY 1, 2
"""


async def move(connection: Connection, channel_id: int, old: str, new: str) -> None:
    """From now on `new` is what was `old`: sessions, schedules, open runs, waiting events and open ops go with it. A repeat changes nothing."""
    for sql in (_SCHEDULES, _BINDINGS, _RUNS, _EVENTS, _OPS):
        await connection.execute(sql, channel_id, old, new)


async def follow(connection: Connection, refused: Sequence[tuple[int, str]]) -> None:
    """Ops were refused because their chat has the given id now: move the chats that this shows to have moved."""
    for row in await connection.fetch(_READDRESSED, [op_id for op_id, _ in refused], [chat for _, chat in refused]):
        if row["old"] is not None:
            await move(connection, row["channel_id"], row["old"], row["new"])
