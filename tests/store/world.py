"""Short ways to rows that a test needs: a channel, a queued run, a claimed one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import asyncpg

from stratus.channel.values import Event, Sender
from stratus.domain.event import NewEvent
from stratus.domain.run import RunEvent
from stratus.domain.values import Actor, Message, ReplyTo, RunInput, TextPart
from stratus.store.database import Database
from stratus.store.inbox import ChannelLease
from stratus.store.plan import NewOp
from stratus.store.run import ClaimedRun, Ending, claim
from stratus.store.session import Enqueued, NewRun, enqueue

ACTOR = Actor(principal="1", name="Ann")
_numbers = itertools.count(1)

MAKE_CHANNEL = """
INSERT INTO channel (platform, name, agent_id, config) VALUES ('testchan', $1, 'demo', '{"access": {"mode": "open"}}') RETURNING id
"""
OWN = """
UPDATE channel SET runtime_token = runtime_token + 1, runtime_holder = $2, lease_until = clock_timestamp() + make_interval(secs => $3)
 WHERE id = $1 RETURNING runtime_token
"""

# What waits for what is in pg_locks for everybody; pg_stat_activity tells it of one's own login only, which the store's role is not.
WAITING = """
SELECT DISTINCT a.pid FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid WHERE a.datname = current_database() AND NOT l.granted
"""


async def as_owner(dsn: str, sql: str) -> None:
    """What only the tables' owner may do."""
    owner = await asyncpg.connect(dsn)
    try:
        await owner.execute(sql)
    finally:
        await owner.close()


async def make_channel(db: Database) -> int:
    made: int = await db.transact(lambda c: c.fetchval(MAKE_CHANNEL, f"channel-{next(_numbers)}"))
    return made


async def own(db: Database, channel_id: int, seconds: float = 60.0) -> ChannelLease:
    holder = uuid4()
    token = await db.transact(lambda c: c.fetchval(OWN, channel_id, holder, seconds))
    return ChannelLease(channel_id, token, holder)


def event(key: str, text: str = "hello", chat: str = "c1", sender: str = "7") -> Event:
    return Event(key=key, kind="message", chat=chat, sender=Sender(id=sender, name="Ann"), text=text, message_id=key)


def new_run(
    session: str,
    text: str = "hello",
    *,
    channel_id: int | None = None,
    key: str | None = None,
    agent: str = "demo",
) -> NewRun:
    return NewRun(
        session_id=session,
        agent_id=agent,
        owner_id=None,
        principal_id=None,
        actor=ACTOR,
        input=RunInput.of(text),
        request_key=key,
        request_hash=text.encode(),
        reply_to=None if channel_id is None else ReplyTo(channel_id=channel_id, platform="testchan", chat="c1"),
    )


async def queue(db: Database, *runs: NewRun) -> list[Enqueued]:
    return await db.transact(lambda c: enqueue(c, runs), idempotent=True)


async def running(db: Database, session: str = "s1", *, ttl: float = 60.0, channel_id: int | None = None) -> ClaimedRun:
    """A run that has been queued and claimed."""
    await queue(db, new_run(session, channel_id=channel_id))
    claimed = await claim(db, "worker", 10, ttl)
    return next(one for one in claimed if one.lease.session_id == session)


def completion(
    claimed: ClaimedRun, *, run_seq: int | None = None, ops: list[NewOp] | None = None, token: UUID | None = None
) -> Ending:
    return Ending(
        lease=claimed.lease,
        attempt=claimed.attempt,
        run_seq=claimed.run_seq if run_seq is None else run_seq,
        event=RunEvent.COMPLETE,
        finish_token=token or uuid4(),
        events=[NewEvent("message.assistant", {"text": "done"})],
        messages=[Message(role="assistant", parts=[TextPart(text="done")])],
        ops=ops or [],
    )


async def rows(db: Database, sql: str, *args: object) -> list[dict[str, object]]:
    return [dict(row) for row in await db.read(lambda c: c.fetch(sql, *args))]


@asynccontextmanager
async def holding_the_lease(dsn: str, sessions: str = "%") -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A transaction that holds the rows of the leases of `sessions` (a LIKE pattern), committed at the end."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM session_execution WHERE session_id LIKE $1 FOR UPDATE", sessions)
            yield connection
    finally:
        await connection.close()


async def somebody_waits(db: Database, count: int = 1) -> bool:
    """Whether so many statements wait for a lock."""
    return len(await rows(db, WAITING)) == count
