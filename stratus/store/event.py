"""Reads a session's event log: one batched tail for all watchers of a replica, and where a client stands in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.event import StoredEvent
from stratus.domain.run import OPEN_STATES
from stratus.store.database import Database

OPEN_MAX = 100

_TAIL = """
SELECT w.ordinal, e.seq, r.public_id AS run, e.attempt, e.kind, e.payload, e.at
  FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS w(session_id, after, ordinal)
 CROSS JOIN LATERAL (
       SELECT seq, run_id, attempt, kind, payload, at FROM session_event
        WHERE session_id = w.session_id AND seq > w.after ORDER BY seq LIMIT $3) e
  LEFT JOIN agent_run r ON r.id = e.run_id
 ORDER BY w.ordinal, e.seq
"""

# One statement, so that the heads, the cursor's run and the open runs are of the same moment.
_STANDING = """
SELECT s.owner_id, s.event_seq, s.event_floor,
       (SELECT jsonb_build_object('run', r.public_id, 'state', r.state, 'first_seq', coalesce(b.seq, 1), 'last_seq', coalesce(l.seq, 0))
          FROM agent_run r
          LEFT JOIN session_event b ON b.run_id = r.id AND b.run_seq = 1
          LEFT JOIN LATERAL (SELECT max(e.seq) AS seq FROM session_event e WHERE e.run_id = r.id) l ON true
         WHERE r.public_id = $2::uuid AND r.session_id = s.id) AS named,
       (SELECT jsonb_agg(jsonb_build_object('run', o.public_id, 'state', o.state, 'first_seq', coalesce(b.seq, 1), 'last_seq', 0)
                         ORDER BY o.rank, o.turn)
          FROM (SELECT r.id, r.public_id, r.state, r.turn, array_position(ARRAY['running', 'waiting', 'queued'], r.state) AS rank
                  FROM agent_run r WHERE r.session_id = s.id AND r.state IN ('queued', 'running', 'waiting')
                 ORDER BY rank, r.turn LIMIT $3) o
          LEFT JOIN session_event b ON b.run_id = o.id AND b.run_seq = 1) AS open
  FROM session s WHERE s.id = $1
"""


@dataclass(frozen=True)
class RunPlace:
    """A run in its session's log. `last_seq` is its last event's so far, which is the terminal one once `ended`; 0 for open runs."""

    run: UUID
    state: str
    first_seq: int
    last_seq: int

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state not in OPEN_STATES


@dataclass(frozen=True)
class Standing:
    """A session's log at one moment: its heads, the run that a cursor named, and its open runs, running before waiting before queued."""

    owner_id: int | None
    event_seq: int
    event_floor: int
    named: RunPlace | None
    open: Sequence[RunPlace]


async def tail(db: Database, watches: Sequence[tuple[str, int]], limit: int) -> list[list[StoredEvent]]:
    """For each (session, seq): up to `limit` events after it, in order. One statement, whatever the number of watches."""
    pages: list[list[StoredEvent]] = [[] for _ in watches]
    rows = await db.read(lambda c: c.fetch(_TAIL, [one[0] for one in watches], [one[1] for one in watches], limit))
    for row in rows:
        place = row["ordinal"] - 1
        pages[place].append(
            StoredEvent(
                session_id=watches[place][0],
                seq=row["seq"],
                run=row["run"],
                attempt=row["attempt"],
                kind=row["kind"],
                payload=row["payload"],
                at=row["at"],
            )
        )
    return pages


async def standing(db: Database, session_id: str, run: UUID | None) -> Standing | None:
    """Where the session's log stands, and in it `run` if that is one of the session's. None when there is no such session."""
    row = await db.read(lambda c: c.fetchrow(_STANDING, session_id, run, OPEN_MAX), pool="ingress")
    if row is None:
        return None
    named = None if row["named"] is None else _place(orjson.loads(row["named"]))
    opened = [] if row["open"] is None else [_place(one) for one in orjson.loads(row["open"])]
    return Standing(row["owner_id"], row["event_seq"], row["event_floor"], named, opened)


def _place(value: Mapping[str, Any]) -> RunPlace:
    return RunPlace(UUID(value["run"]), value["state"], value["first_seq"], value["last_seq"])
