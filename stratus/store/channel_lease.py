"""The lease on a channel's runtime: by it one replica at a time polls and sends, knows the account, and tells how the channel does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from stratus.domain.errors import Conflict, LeaseLost
from stratus.effects import Ids
from stratus.store.channel import ChannelRow, channel_row
from stratus.store.database import Connection, Database, Resolved
from stratus.store.inbox import ChannelLease

# Lock order: the account's advisory lock, then channel rows by id (state-machines.md §10).

# A namespace for advisory transaction locks, beside which an account's hash is the key.
ACCOUNT_LOCK = 7306
# What a replica that may own channels of a platform has among its capabilities, with the platform's name behind it.
PLATFORM = "platform:"
# A replica says every 2 s that it is there.
ALIVE_SECONDS = 10.0

# Up to its share of the channels a replica takes what is free; beyond that only what nobody else has wanted for a moment.
_ACQUIRE = """
WITH share AS (
    SELECT ceil(count(*)::numeric / (SELECT greatest(count(*), 1) FROM replica
                                      WHERE NOT draining AND seen_at > stratus_now() - make_interval(secs => $8) AND capabilities && $6)) AS n
      FROM channel WHERE enabled AND deleted_at IS NULL AND ($5::text[] IS NULL OR platform = ANY($5))
), free AS (
    SELECT c.id FROM channel c, share
     WHERE c.enabled AND c.deleted_at IS NULL AND (c.lease_until IS NULL OR c.lease_until <= clock_timestamp()) AND NOT c.id = ANY($4)
       AND ($5::text[] IS NULL OR c.platform = ANY($5))
       AND (share.n > $7 OR coalesce(c.lease_until, (c.health ->> 'deaf_since')::timestamptz, c.created_at)
                            <= clock_timestamp() - make_interval(secs => $9))
     ORDER BY c.id LIMIT (SELECT least(cardinality($3::uuid[]), greatest(n - $7, 1)) FROM share)
       FOR NO KEY UPDATE OF c SKIP LOCKED
), numbered AS (
    SELECT id, row_number() OVER (ORDER BY id) AS n FROM free
)
UPDATE channel c
   SET runtime_token = c.runtime_token + 1, runtime_holder = ($3::uuid[])[f.n], runtime_replica = $1,
       lease_until = clock_timestamp() + make_interval(secs => $2),
       health = jsonb_build_object('deaf_since', coalesce(c.lease_until, clock_timestamp())) || c.health
  FROM numbered f WHERE c.id = f.id
RETURNING c.id, c.public_id, c.platform, c.name, c.agent_id, c.config, c.credentials, c.enabled, c.config_revision, c.account_key,
          c.running_revision, c.health, c.last_error, c.created_at, c.runtime_replica AS replica, c.runtime_token, c.runtime_holder, c.cursor,
          extract(epoch FROM clock_timestamp() - (c.health ->> 'deaf_since')::timestamptz)::float8 AS away
"""

# A row that a doubtful acquire wrote still looks free; only its lock tells of it. So all are locked, and read anew after that.
_AWAIT_ACQUIRE = (
    "SELECT id FROM channel WHERE deleted_at IS NULL AND NOT id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE"
)

_ACQUIRED = """
SELECT id, public_id, platform, name, agent_id, config, credentials, enabled, config_revision, account_key, running_revision, health,
       last_error, created_at, runtime_replica AS replica, runtime_token, runtime_holder, cursor,
       extract(epoch FROM clock_timestamp() - (health ->> 'deaf_since')::timestamptz)::float8 AS away
  FROM channel WHERE runtime_holder = ANY($1) AND lease_until > clock_timestamp() ORDER BY id
"""

_RENEW = """
WITH asked AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[]) AS a(id, token, holder)
), held AS (
    SELECT c.id FROM channel c JOIN asked a ON a.id = c.id AND a.token = c.runtime_token AND a.holder = c.runtime_holder
     WHERE c.lease_until > clock_timestamp()
     ORDER BY c.id
       FOR NO KEY UPDATE OF c
), renewed AS (
    UPDATE channel c SET lease_until = clock_timestamp() + make_interval(secs => $4) FROM held h WHERE c.id = h.id
    RETURNING c.id
)
SELECT a.id, a.token, a.holder, r.id IS NOT NULL AS ours, coalesce(c.enabled, false) AS enabled,
       c.id IS NULL OR c.deleted_at IS NOT NULL AS deleted, coalesce(c.config_revision, 0) AS config_revision
  FROM asked a LEFT JOIN channel c ON c.id = a.id LEFT JOIN renewed r ON r.id = a.id
 ORDER BY a.id
"""

_INSPECT = """
SELECT a.id, a.token, a.holder,
       coalesce(a.token = c.runtime_token AND a.holder = c.runtime_holder AND c.lease_until > clock_timestamp(), false) AS ours,
       coalesce(c.enabled, false) AS enabled, c.id IS NULL OR c.deleted_at IS NOT NULL AS deleted,
       coalesce(c.config_revision, 0) AS config_revision
  FROM unnest($1::bigint[], $2::bigint[], $3::uuid[]) AS a(id, token, holder) LEFT JOIN channel c ON c.id = a.id
 ORDER BY a.id
"""

_CENSUS = """
SELECT (SELECT count(*) FROM channel WHERE enabled AND deleted_at IS NULL AND platform = ANY($1::text[])) AS channels,
       (SELECT count(*) FROM replica
         WHERE NOT draining AND seen_at > stratus_now() - make_interval(secs => $3) AND capabilities && $2::text[]) AS replicas
"""

# Whoever has the adapter takes the channel and then says how it does; what failed for another reason keeps that.
_UNSERVED = """
UPDATE channel
   SET health = health || jsonb_build_object('v', 1, 'state', 'failed', 'cause', 'no_adapter', 'since', clock_timestamp()),
       last_error = format('no replica that runs has an adapter for the platform %s: install its package on one', platform)
 WHERE enabled AND deleted_at IS NULL AND (lease_until IS NULL OR lease_until <= clock_timestamp()) AND NOT platform = ANY($1::text[])
   AND coalesce(lease_until, (health ->> 'deaf_since')::timestamptz, created_at) <= clock_timestamp() - make_interval(secs => $2)
   AND health ->> 'state' IS DISTINCT FROM 'failed'
RETURNING name
"""

# `deaf_since`, kept until contact is made, is since when nobody has listened to the platform.
_RELEASE = """
WITH held AS (
    SELECT c.id FROM channel c JOIN unnest($1::bigint[], $2::bigint[], $3::uuid[]) AS a(id, token, holder)
        ON a.id = c.id AND a.token = c.runtime_token AND a.holder = c.runtime_holder
     ORDER BY c.id
       FOR NO KEY UPDATE OF c
)
UPDATE channel c
   SET runtime_holder = NULL, runtime_replica = NULL, lease_until = NULL,
       health = jsonb_build_object('deaf_since', clock_timestamp()) || c.health
  FROM held h WHERE c.id = h.id
"""

# Two channels that learn of one account at once are told one after the other.
_ACCOUNT_LOCK = "SELECT pg_advisory_xact_lock($1, hashtext($2))"

# A cursor is a place in one account's events. `first_account` says that there have been several, whose events the inbox must tell apart.
_SET_ACCOUNT = """
WITH owner AS (
    SELECT id, platform, account_key, cursor FROM channel
     WHERE id = $1 AND runtime_token = $2 AND runtime_holder = $3 AND lease_until > clock_timestamp()
       FOR NO KEY UPDATE
), rival AS (
    SELECT r.name FROM channel r JOIN owner w ON r.platform = w.platform AND r.id <> w.id
     WHERE r.account_key = $4 AND r.enabled AND r.deleted_at IS NULL AND NOT r.health ? 'account_unproven'
       AND (w.account_key IS DISTINCT FROM $4 OR r.id < w.id)
     ORDER BY r.id LIMIT 1
), moved AS (
    UPDATE channel c
       SET account_key = $4, cursor = CASE WHEN w.account_key <> $4 THEN NULL ELSE c.cursor END,
           health = CASE WHEN w.account_key <> $4 THEN jsonb_build_object('first_account', w.account_key) ELSE '{}' END
                    || (c.health - 'account_unproven')
      FROM owner w
     WHERE c.id = w.id AND NOT EXISTS (SELECT 1 FROM rival) AND (w.account_key IS DISTINCT FROM $4 OR c.health ? 'account_unproven')
)
SELECT account_key AS before, CASE WHEN account_key <> $4 THEN NULL ELSE cursor END AS cursor, (SELECT name FROM rival) AS rival
  FROM owner
"""

_REPORT = """
WITH report AS (
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::bigint[])
           AS r(id, token, holder, state, cause, error, revision)
), owner AS (
    SELECT c.id FROM channel c JOIN report r ON r.id = c.id AND r.token = c.runtime_token AND r.holder = c.runtime_holder
     WHERE c.lease_until > clock_timestamp()
     ORDER BY c.id
       FOR NO KEY UPDATE OF c
)
UPDATE channel c
   SET health = CASE WHEN (c.health ->> 'state', c.health ->> 'cause') IS NOT DISTINCT FROM (r.state, r.cause) THEN c.health
                     ELSE c.health || jsonb_build_object('v', 1, 'state', r.state, 'cause', r.cause, 'since', clock_timestamp()) END
                - CASE WHEN r.state = 'connected' THEN 'deaf_since' ELSE '' END,
       last_error = coalesce(r.error, c.last_error), running_revision = r.revision
  FROM report r JOIN owner w ON w.id = r.id
 WHERE c.id = r.id
   AND ((c.health ->> 'state', c.health ->> 'cause', c.running_revision) IS DISTINCT FROM (r.state, r.cause, r.revision)
        OR (r.error IS NOT NULL AND r.error IS DISTINCT FROM c.last_error) OR (r.state = 'connected' AND c.health ? 'deaf_since'))
"""


@dataclass(frozen=True)
class Seeker:
    """Who acquires: the platforms it has adapters for (None: any), how many channels it has, and how many seconds it leaves others first."""

    platforms: Sequence[str] | None = None
    held: int = 0
    patience: float = 0.0
    ids: Ids = field(default_factory=Ids)


class AccountTaken(Conflict):
    """Another channel answers as the same bot."""

    code = "account_taken"


@dataclass(frozen=True)
class OwnedChannel:
    """A channel that this replica has just come to own. It goes on from `cursor`; nobody has heard its platform for `away` seconds."""

    row: ChannelRow
    lease: ChannelLease
    cursor: Mapping[str, Any] | None
    away: float


@dataclass(frozen=True)
class ChannelRenewal:
    """What a renewal found: whether the lease is (still) ours, and what the operator wants now."""

    lease: ChannelLease
    ours: bool
    enabled: bool
    deleted: bool
    config_revision: int


@dataclass(frozen=True)
class KnownAccount:
    """The account that the channel had `before` it was asked for, and where its events go on from."""

    before: str | None
    cursor: Mapping[str, Any] | None


@dataclass(frozen=True)
class HealthReport:
    """How a channel's runtime does. `cause` is a short stable code ("" while connected), `error` a sentence for operators."""

    lease: ChannelLease
    state: str
    cause: str
    error: str | None
    revision: int


async def acquire(
    db: Database, replica: str, ttl: float, limit: int, excluded: Sequence[int] = (), *, seeker: Seeker | None = None
) -> list[OwnedChannel]:
    """Take up to `limit` channels that nobody owns, for `ttl` seconds, save `excluded`: each with a new token and a new holder."""
    by = seeker or Seeker()
    holders = [by.ids.uuid() for _ in range(limit)]
    platforms = None if by.platforms is None else list(by.platforms)
    needs = [PLATFORM + name for name in by.platforms or ()]

    async def work(connection: Connection) -> list[OwnedChannel]:
        given = (replica, ttl, holders, list(excluded), platforms, needs, by.held, ALIVE_SECONDS, by.patience)
        return _owned(await connection.fetch(_ACQUIRE, *given))

    async def resolve(connection: Connection) -> Resolved[list[OwnedChannel]] | None:
        await connection.execute(_AWAIT_ACQUIRE, list(excluded))
        rows = await connection.fetch(_ACQUIRED, holders)
        return Resolved(_owned(rows)) if rows else None

    return await db.transact(work, resolve=resolve)


async def census(db: Database, platforms: Sequence[str]) -> tuple[int, int]:
    """How many channels of these platforms are enabled, and how many living replicas could run some of them."""
    row = await db.read(
        lambda c: c.fetchrow(_CENSUS, list(platforms), [PLATFORM + name for name in platforms], ALIVE_SECONDS)
    )
    return (0, 0) if row is None else (row["channels"], row["replicas"])


async def note_unserved(db: Database, platforms: Sequence[str], seconds: float) -> list[str]:
    """Tell of channels that nobody has run for `seconds` and this replica has no adapter for. Returns the names of those newly told of."""

    async def work(connection: Connection) -> list[str]:
        return [row["name"] for row in await connection.fetch(_UNSERVED, list(platforms), seconds)]

    return await db.transact(work, idempotent=True, autocommit=True)


async def renew(connection: Connection, leases: Sequence[ChannelLease], ttl: float) -> list[ChannelRenewal]:
    """Renew all leases in one statement, for `ttl` seconds from now by the database's clock; an expired one is lost, not renewed."""
    return _renewals(await connection.fetch(_RENEW, *_columns(leases), ttl))


async def inspect(db: Database, leases: Sequence[ChannelLease]) -> list[ChannelRenewal]:
    """What a renewal would find, without renewing."""
    return _renewals(await db.read(lambda c: c.fetch(_INSPECT, *_columns(leases))))


async def release(db: Database, leases: Sequence[ChannelLease]) -> None:
    """Give up leases, so that any replica may take the channels now. Those that are no longer ours are left alone."""

    async def work(connection: Connection) -> None:
        await connection.execute(_RELEASE, *_columns(leases))

    await db.transact(work, idempotent=True, autocommit=True)


async def set_account(db: Database, lease: ChannelLease, account: str) -> KnownAccount:
    """Record the account behind the credentials; ops of another account will fail from now on.

    Raises LeaseLost, and AccountTaken for one that another enabled channel answers as: of two that both did, the older goes on.
    """

    async def work(connection: Connection) -> KnownAccount:
        await connection.execute(_ACCOUNT_LOCK, ACCOUNT_LOCK, account)
        row = await connection.fetchrow(_SET_ACCOUNT, lease.channel_id, lease.token, lease.holder, account)
        if row is None:
            raise LeaseLost(f"channel {lease.channel_id} is another's")
        if row["rival"] is not None:
            raise AccountTaken(f"the channel {row['rival']} answers as this bot already")
        return KnownAccount(row["before"], _cursor(row))

    return await db.transact(work, idempotent=True)


async def report_health(db: Database, reports: Sequence[HealthReport]) -> None:
    """Store how runtimes do; what has not changed, or is no longer ours, is not written."""

    async def work(connection: Connection) -> None:
        await connection.execute(
            _REPORT,
            *_columns([report.lease for report in reports]),
            [report.state for report in reports],
            [report.cause for report in reports],
            [None if report.error is None else report.error[:500] for report in reports],
            [report.revision for report in reports],
        )

    await db.transact(work, idempotent=True, autocommit=True)


def _columns(leases: Sequence[ChannelLease]) -> tuple[list[int], list[int], list[UUID]]:
    return (
        [lease.channel_id for lease in leases],
        [lease.token for lease in leases],
        [lease.holder for lease in leases],
    )


def _renewals(rows: Sequence[Mapping[str, Any]]) -> list[ChannelRenewal]:
    return [
        ChannelRenewal(
            lease=ChannelLease(row["id"], row["token"], row["holder"]),
            ours=row["ours"],
            enabled=row["enabled"],
            deleted=row["deleted"],
            config_revision=row["config_revision"],
        )
        for row in rows
    ]


def _owned(rows: Sequence[Mapping[str, Any]]) -> list[OwnedChannel]:
    return [
        OwnedChannel(
            row=channel_row(row),
            lease=ChannelLease(row["id"], row["runtime_token"], row["runtime_holder"]),
            cursor=_cursor(row),
            away=row["away"],
        )
        for row in rows
    ]


def _cursor(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = None if row["cursor"] is None else orjson.loads(row["cursor"])
    return found
