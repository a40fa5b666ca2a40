"""Decisions on approvals: compare-and-set by an allowed approver, expiry by database time; the run goes on once nothing is open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from string import hexdigits
from typing import Any, Literal
from uuid import UUID

from stratus.domain.approval import APPROVAL, ApprovalEvent, ApprovalState, Approvers
from stratus.domain.errors import AlreadyDecided, ApprovalExpired, ArgumentsDiffer, Forbidden, NotFound
from stratus.domain.event import NewEvent
from stratus.domain.tool_call import CallEvent
from stratus.store.database import Connection, Database
from stratus.store.log import LOCK_SESSIONS, LogWrite, write_log
from stratus.store.prompts import close_prompts
from stratus.store.tool_call import CallMove, move_calls
from stratus.store.waiting import resume

Verdict = Literal["approve", "deny"]

_SESSION_OF = "SELECT r.session_id FROM approval a JOIN agent_run r ON r.id = a.run_id WHERE a.public_id = $1"

_LOOK = """
SELECT a.id, a.public_id, a.run_id, a.call_id, encode(a.args_hash, 'hex') AS args_hash, a.state, a.approvers, a.decided_by, a.note,
       a.expires_at <= clock_timestamp() AS late, r.session_id, r.claims, s.owner_id, c.name,
       (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq
  FROM approval a JOIN agent_run r ON r.id = a.run_id JOIN session s ON s.id = r.session_id
  JOIN tool_call c ON c.run_id = a.run_id AND c.call_id = a.call_id
 WHERE a.public_id = $1 FOR UPDATE OF a
"""

# The moment decides, not the look before it.
_DECIDE = """
UPDATE approval SET state = $2, decided_at = clock_timestamp(), decided_by = $3, note = $4
 WHERE id = $1 AND state = ANY($5) AND expires_at > clock_timestamp() RETURNING id
"""

_OVERDUE = """
SELECT r.session_id FROM approval a JOIN agent_run r ON r.id = a.run_id
 WHERE a.state = 'pending' AND a.expires_at <= stratus_now() ORDER BY a.expires_at LIMIT $1
"""

_EXPIRE = """
WITH late AS (
    SELECT a.id FROM approval a JOIN agent_run r ON r.id = a.run_id
     WHERE r.session_id = ANY($1) AND a.state = ANY($2) AND a.expires_at <= clock_timestamp() ORDER BY a.id FOR UPDATE OF a
), gone AS (
    UPDATE approval a SET state = 'expired', decided_at = clock_timestamp() FROM late WHERE a.id = late.id
    RETURNING a.id, a.public_id, a.run_id, a.call_id
)
SELECT g.id, g.public_id, g.run_id, g.call_id, r.session_id, r.claims,
       (SELECT coalesce(max(e.run_seq), 0) FROM session_event e WHERE e.run_id = r.id) AS run_seq
  FROM gone g JOIN agent_run r ON r.id = g.run_id ORDER BY g.run_id, g.id
"""

_LIST = """
SELECT a.public_id AS id, r.session_id AS session, r.public_id AS run, r.agent_id AS agent, a.call_id, c.name, c.args,
       encode(a.args_hash, 'hex') AS args_hash, a.state, a.requested_at, a.expires_at, a.decided_by, a.note, a.approvers,
       s.owner_id
  FROM approval a
  JOIN agent_run r ON r.id = a.run_id
  JOIN session s ON s.id = r.session_id
  JOIN tool_call c ON c.run_id = a.run_id AND c.call_id = a.call_id
 WHERE a.state = $1 AND ($2::text IS NULL OR r.session_id = $2)
   AND ($3::bigint IS NULL OR s.owner_id = $3 OR a.approvers -> 'principals' @> to_jsonb($3))
 ORDER BY a.id DESC LIMIT $4
"""

_NAMED = """
SELECT public_id FROM approval WHERE replace(public_id::text, '-', '') LIKE $1 || '%' AND (state = 'pending' OR length($1) = 32) LIMIT 2
"""

# A chat's own questions, and those of the runs that its runs have delegated to.
_OPEN_IN = """
WITH RECURSIVE family AS (
    SELECT id FROM agent_run WHERE session_id = $1 AND state IN ('queued', 'running', 'waiting')
    UNION ALL
    SELECT r.id FROM agent_run r JOIN family f ON r.parent_run_id = f.id WHERE r.state IN ('queued', 'running', 'waiting')
)
SELECT a.public_id, c.name FROM approval a JOIN family f ON f.id = a.run_id
  JOIN tool_call c ON c.run_id = a.run_id AND c.call_id = a.call_id
 WHERE a.state = 'pending' ORDER BY a.id
"""


@dataclass(frozen=True)
class Decider:
    """Who decides: `principal_id` is the row's, `name` is shown to others; `knows` says that the question is no secret to them."""

    principal_id: int
    role: str
    name: str
    knows: bool = False


@dataclass(frozen=True)
class Decision:
    """What now holds of an approval; `repeated` says that the same decider had said so before."""

    public_id: UUID
    session_id: str
    call: str
    state: ApprovalState
    by: str
    repeated: bool = False


@dataclass(frozen=True)
class Listed:
    """An approval as people see it. `args_hash` is hexadecimal, `expires_at` the database's time."""

    id: UUID
    session: str
    run: UUID
    agent: str
    call_id: str
    name: str
    args: str
    args_hash: str
    state: str
    requested_at: datetime
    expires_at: datetime
    decided_by: str | None
    note: str | None
    approvers: Approvers
    owner_id: int | None

    def shown(self) -> dict[str, Any]:
        """What anybody may see who may see the approval at all."""
        values = dict(self.__dict__)
        for name in ("approvers", "owner_id"):
            del values[name]
        return values


async def decide(
    db: Database,
    public_id: UUID,
    verdict: Verdict,
    by: Decider,
    *,
    note: str | None = None,
    args_hash: str | None = None,
) -> Decision:
    """Decide a pending approval, once. `args_hash` is that of the arguments that the decider saw.

    Raises NotFound for who may not even know of it, Forbidden, AlreadyDecided, ApprovalExpired, ArgumentsDiffer. A repeat of the same
    decision by the same decider answers as the first did.
    """

    async def work(connection: Connection) -> Decision:
        return await decide_in(connection, public_id, verdict, by, note=note, args_hash=args_hash)

    return await db.transact(work, idempotent=True, pool="ingress")


async def decide_in(
    connection: Connection,
    public_id: UUID,
    verdict: Verdict,
    by: Decider,
    *,
    note: str | None = None,
    args_hash: str | None = None,
) -> Decision:
    """The decision itself, for a caller whose transaction holds no session's lock yet."""
    session_id = await connection.fetchval(_SESSION_OF, public_id)
    if session_id is None:
        raise NotFound("there is no such question, or it is not yours")
    await connection.fetch(LOCK_SESSIONS, [session_id])
    row = await connection.fetchrow(_LOOK, public_id)
    assert row is not None
    event = ApprovalEvent(verdict)
    wanted = APPROVAL.target(event)
    _allowed(row, by)
    if row["state"] != ApprovalState.PENDING:
        return _as_decided(row, wanted, by)
    if args_hash is not None and args_hash != row["args_hash"]:
        raise ArgumentsDiffer("the arguments are not those that you were shown; look again")
    decided = await connection.fetchval(_DECIDE, row["id"], str(wanted), by.name, note, list(APPROVAL.sources(event)))
    if decided is None:
        raise ApprovalExpired("the time to answer is over; the call was not made")
    await move_calls(connection, row["run_id"], [CallMove(row["call_id"], CallEvent(verdict))])
    payload = {"id": str(public_id), "call_id": row["call_id"], "state": str(wanted), "by": by.name, "note": note}
    await _tell(connection, row, [NewEvent("approval.resolved", payload)])
    await resume(connection, [row["run_id"]])
    await close_prompts(connection, [row["id"]])
    return Decision(public_id, session_id, row["name"], wanted, by.name)


def _allowed(row: Mapping[str, Any], by: Decider) -> None:
    approvers = Approvers.model_validate_json(row["approvers"])
    if approvers.may(by.principal_id, by.role):
        return
    if by.knows or row["owner_id"] in (None, by.principal_id):
        raise Forbidden("you are not one of those who may decide this")
    raise NotFound("there is no such question, or it is not yours")


def _as_decided(row: Mapping[str, Any], wanted: ApprovalState, by: Decider) -> Decision:
    state = ApprovalState(row["state"])
    said = ApprovalState.APPROVED if state is ApprovalState.CONSUMED else state
    if said is wanted and row["decided_by"] == by.name:
        return Decision(row["public_id"], row["session_id"], row["name"], said, by.name, repeated=True)
    if state is ApprovalState.EXPIRED:
        raise ApprovalExpired("the time to answer is over; the call was not made")
    if state is ApprovalState.CLOSED:
        raise AlreadyDecided("the turn that asked is over; the call was not made")
    raise AlreadyDecided(f"{row['decided_by'] or 'somebody'} has {said} this already")


async def _tell(connection: Connection, row: Mapping[str, Any], events: Sequence[NewEvent]) -> None:
    await write_log(connection, [LogWrite(row["session_id"], row["run_id"], row["run_seq"], row["claims"], events)])


async def expire(db: Database, limit: int) -> list[str]:
    """End approvals whose time is over, of up to `limit` sessions; returns the sessions. Only database time counts."""

    async def work(connection: Connection) -> list[str]:
        sessions = sorted({row["session_id"] for row in await connection.fetch(_OVERDUE, limit)})
        if not sessions:
            return []
        await connection.fetch(LOCK_SESSIONS, sessions)
        rows = await connection.fetch(_EXPIRE, sessions, list(APPROVAL.sources(ApprovalEvent.EXPIRE)))
        by_run: dict[int, list[Any]] = {}
        for row in rows:
            by_run.setdefault(row["run_id"], []).append(row)
        for run_id, gone in by_run.items():  # rarely more than one: a turn asks all its questions at once
            await move_calls(connection, run_id, [CallMove(one["call_id"], CallEvent.EXPIRE) for one in gone])
            events = [
                NewEvent(
                    "approval.resolved", {"id": str(one["public_id"]), "call_id": one["call_id"], "state": "expired"}
                )
                for one in gone
            ]
            await _tell(connection, gone[0], events)
        await resume(connection, list(by_run))
        await close_prompts(connection, [row["id"] for row in rows])
        return sessions

    return await db.transact(work, idempotent=True)


async def listing(
    db: Database, *, state: str, session_id: str | None, principal_id: int | None, limit: int = 200
) -> list[Listed]:
    """Approvals in a state, newest first; `principal_id` None lists everybody's, else those of their sessions and those that they may decide."""
    rows = await db.read(lambda c: c.fetch(_LIST, state, session_id, principal_id, limit))
    return [Listed(**{**dict(row), "approvers": Approvers.model_validate_json(row["approvers"])}) for row in rows]


async def named(db: Database, key: str) -> UUID:
    """The approval with this id, or the only pending one whose id begins so. Raises NotFound."""
    begins = key.lower().replace("-", "")
    rows = await db.read(lambda c: c.fetch(_NAMED, begins)) if begins and set(begins) <= set(hexdigits) else []
    if len(rows) != 1:
        raise NotFound(f"there is no question {key!r}" if not rows else f"more than one question begins with {key!r}")
    found: UUID = rows[0]["public_id"]
    return found


async def open_in(connection: Connection, session_id: str) -> list[tuple[UUID, str]]:
    """Pending approvals (id, tool) of a chat's session and of whom its runs have delegated to, in the order in which they were asked."""
    return [(row["public_id"], row["name"]) for row in await connection.fetch(_OPEN_IN, session_id)]
