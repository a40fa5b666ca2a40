"""Live drafts: the events of the runs that answer on a channel, the ops that show them, and which message an answer takes over.

A run's newest draft is all that counts: none is added while one is under way, and none after one whose outcome is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.draft import KINDS, Standing, Step, draft_key, next_step, unfinished
from stratus.domain.outbox import OpState
from stratus.domain.values import ReplyTo
from stratus.store.database import Connection, Database
from stratus.store.inbox import ChannelLease
from stratus.store.log import encode
from stratus.store.plan import NewOp, plan

_LIVE = """
SELECT r.id, r.public_id, r.reply_to, extract(epoch FROM clock_timestamp() - r.started_at)::float8 AS age,
       coalesce((i.payload ->> 'direct')::boolean, true) AS direct, e.last, e.events
  FROM agent_run r
  LEFT JOIN channel_inbox i ON i.id = r.inbox_id
  LEFT JOIN unnest($2::bigint[], $3::bigint[]) AS k(run_id, after) ON k.run_id = r.id
 CROSS JOIN LATERAL (
       SELECT max(p.run_seq) AS last,
              jsonb_agg(jsonb_build_array(p.run_seq, p.kind, p.payload) ORDER BY p.run_seq) FILTER (WHERE p.kind = ANY($4)) AS events
         FROM (SELECT run_seq, kind, payload FROM session_event
                WHERE run_id = r.id AND run_seq > coalesce(k.after, 0) ORDER BY run_seq LIMIT $5) p) e
 WHERE r.state = 'running' AND (r.reply_to ->> 'channel_id')::bigint = ANY($1)
 ORDER BY r.id
"""

# Lock order: runs, channels. A run that is just ending is passed over: its answer is planned behind every draft that was, and before none.
_STANDING = """
WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::uuid[]) AS g(run_id, channel_id, token, holder)
), live AS (
    SELECT r.id FROM agent_run r WHERE r.id = ANY($1) AND r.state = 'running' ORDER BY r.id FOR SHARE SKIP LOCKED
), owner AS (
    SELECT c.id FROM channel c
      JOIN (SELECT DISTINCT channel_id, token, holder FROM given) g
        ON g.channel_id = c.id AND g.token = c.runtime_token AND g.holder = c.runtime_holder
     WHERE c.lease_until > clock_timestamp() AND c.enabled AND c.deleted_at IS NULL
     ORDER BY c.id
       FOR SHARE OF c
)
SELECT g.run_id, n.*
  FROM given g
  JOIN live l ON l.id = g.run_id
  JOIN owner w ON w.id = g.channel_id
  LEFT JOIN LATERAL (
       SELECT d.id, d.kind, d.state, coalesce((d.payload ->> 'seq')::bigint, 0) AS seq, d.payload ->> 'text' AS text,
              CASE WHEN d.state = 'sent' THEN d.sent_message_id ELSE d.payload ->> 'message_id' END AS message_id,
              coalesce(d.error ->> 'code' = 'overtaken' AND NOT d.error ? 'resolved_by', false) AS overtaken,
              extract(epoch FROM clock_timestamp() - coalesce(d.settled_at, d.created_at))::float8 AS waited,
              d.not_before > clock_timestamp() AS held
         FROM channel_outbox d
        WHERE d.run_id = g.run_id AND d.channel_id = g.channel_id AND d.kind NOT IN ('edit_prompt', 'reaction')
        ORDER BY d.lane_seq DESC LIMIT 1) n ON true
 ORDER BY g.run_id
"""

# Of an op that has left meanwhile nothing is changed; what it edits stays.
_MERGE = """
WITH pending AS (
    SELECT o.id, m.payload FROM channel_outbox o JOIN unnest($1::bigint[], $2::jsonb[]) AS m(id, payload) ON m.id = o.id
     WHERE o.state = 'pending' AND (o.payload ->> 'seq')::bigint < (m.payload ->> 'seq')::bigint
     ORDER BY o.id
       FOR NO KEY UPDATE OF o
)
UPDATE channel_outbox o SET payload = o.payload || p.payload FROM pending p WHERE o.id = p.id
"""


@dataclass(frozen=True)
class LiveRun:
    """A running run that answers on an owned channel. `age` is seconds since it began; `direct` that the chat is one-to-one.

    `events` are those after the place that was asked for, of the kinds that are shown; `last` is how far they reach.
    """

    run_id: int
    run: UUID
    reply_to: ReplyTo
    age: float
    direct: bool
    last: int
    events: Sequence[tuple[int, str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Drawing:
    """A draft to be shown under `lease`: `shown` is the text at the run's event `seq`, `interval` the seconds between two edits."""

    run_id: int
    run: UUID
    lease: ChannelLease
    reply_to: ReplyTo
    seq: int
    shown: str
    interval: float

    @property
    def text(self) -> str:
        """What the message says while it goes on."""
        return unfinished(self.shown)


async def live(db: Database, channels: Sequence[int], places: Mapping[int, int], limit: int) -> list[LiveRun]:
    """The running runs that answer on these channels, each with up to `limit` events after its place (run id: seq; none: from the first)."""
    rows = await db.read(
        lambda c: c.fetch(_LIVE, list(channels), list(places), list(places.values()), list(KINDS), limit)
    )
    return [
        LiveRun(
            run_id=row["id"],
            run=row["public_id"],
            reply_to=ReplyTo.model_validate_json(row["reply_to"]),
            age=row["age"],
            direct=row["direct"],
            last=row["last"] or places.get(row["id"], 0),
            events=[tuple(event) for event in orjson.loads(row["events"] or "[]")],
        )
        for row in rows
    ]


async def draw(db: Database, drawings: Sequence[Drawing]) -> dict[int, Step]:
    """Plan or merge the drafts of runs that still run on channels that are still ours. Returns what was done for each of those runs."""

    async def work(connection: Connection) -> dict[int, Step]:
        rows = await connection.fetch(
            _STANDING,
            [one.run_id for one in drawings],
            [one.lease.channel_id for one in drawings],
            [one.lease.token for one in drawings],
            [one.lease.holder for one in drawings],
        )
        found = {row["run_id"]: row for row in rows}
        steps = {
            one.run_id: next_step(_standing(found[one.run_id]), one.seq, one.text, one.interval)
            for one in drawings
            if one.run_id in found
        }
        merges = [one for one in drawings if steps.get(one.run_id) is Step.MERGE]
        if merges:
            ids = [found[one.run_id]["id"] for one in merges]
            await connection.execute(_MERGE, ids, [encode(_payload(one)) for one in merges])
        news = [one for one in drawings if steps.get(one.run_id) in (Step.SEND, Step.EDIT)]
        await plan(connection, [_op(one, steps[one.run_id], found[one.run_id]) for one in news])
        return steps

    return await db.transact(work, idempotent=True)


def _standing(row: Mapping[str, Any]) -> Standing | None:
    if row["id"] is None:
        return None
    return Standing(
        kind=row["kind"],
        state=OpState(row["state"]),
        seq=row["seq"],
        text=row["text"] or "",
        message_id=row["message_id"],
        overtaken=row["overtaken"],
        waited=row["waited"],
        held=row["held"],
    )


def _op(one: Drawing, step: Step, before: Mapping[str, Any]) -> NewOp:
    edits = {"message_id": before["message_id"]} if step is Step.EDIT else {}
    return NewOp(
        channel_id=one.reply_to.channel_id,
        lane=one.reply_to.lane(),
        kind="draft_update",
        address={"chat": one.reply_to.chat, "thread": one.reply_to.thread},
        payload={**_payload(one), **edits},
        delivery_key=draft_key(one.run, one.seq),
        run_id=one.run_id,
        account_key=one.reply_to.account_key,
    )


def _payload(one: Drawing) -> dict[str, Any]:
    return {
        "text": one.text,
        "shown": one.shown,
        "markdown": True,
        "reply_to": one.reply_to.message_id,
        "seq": one.seq,
    }
