"""Who may do what: principals, their identities on platforms, and the access tokens that prove them, kept as SHA-256 only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from stratus.effects import Ids
from stratus.store.database import Connection, Database, Resolved

SIGNIN_SECONDS = 15 * 60.0
SESSION_SECONDS = 30 * 24 * 3600.0

# Beside the routers' lock in ingress: makes the first owner, and the principals of a platform, once.
_OWNER_LOCK = 7306
_IDENTITY_LOCK = 7307

_AUTHENTICATE = """
SELECT p.id, p.public_id, p.name, p.role FROM access_token t JOIN principal p ON p.id = t.principal_id
 WHERE t.hash = $1 AND t.kind IN ('api', 'session') AND t.revoked_at IS NULL AND p.disabled_at IS NULL
   AND (t.expires_at IS NULL OR t.expires_at > clock_timestamp())
"""

_CREATE_TOKEN = """
INSERT INTO access_token (principal_id, kind, name, hash, expires_at)
VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5::float8))
    ON CONFLICT (hash) DO UPDATE SET name = EXCLUDED.name
RETURNING public_id, expires_at
"""

_REDEEM = """
WITH code AS (
    UPDATE access_token t SET used_at = clock_timestamp()
      FROM principal p
     WHERE t.hash = $1 AND t.kind = 'signin' AND t.used_at IS NULL AND t.revoked_at IS NULL
       AND t.expires_at > clock_timestamp() AND p.id = t.principal_id AND p.disabled_at IS NULL
    RETURNING t.principal_id
)
INSERT INTO access_token (principal_id, kind, name, hash, expires_at)
SELECT principal_id, 'session', 'browser', $2::bytea, clock_timestamp() + make_interval(secs => $3::float8) FROM code
RETURNING id
"""

_LOCK_TOKEN = "SELECT id FROM access_token WHERE hash = $1 FOR UPDATE"
_HAS_TOKEN = "SELECT id FROM access_token WHERE hash = $1"

_LOCK = "SELECT pg_advisory_xact_lock($1::int, hashtext($2))"

_ENSURE_OWNER = """
WITH found AS (
    SELECT id, public_id, name, role FROM principal WHERE role = 'owner' AND disabled_at IS NULL ORDER BY id LIMIT 1
), made AS (
    INSERT INTO principal (name, role) SELECT 'owner', 'owner' WHERE NOT EXISTS (SELECT 1 FROM found)
    RETURNING id, public_id, name, role
)
SELECT * FROM found UNION ALL SELECT * FROM made
"""

_LIST = """
SELECT t.public_id AS id, t.kind, t.name, p.public_id AS principal, p.name AS principal_name, t.created_at, t.expires_at
  FROM access_token t JOIN principal p ON p.id = t.principal_id
 WHERE t.kind IN ('api', 'session') AND t.revoked_at IS NULL AND ($1::bigint IS NULL OR t.principal_id = $1)
   AND (t.expires_at IS NULL OR t.expires_at > stratus_now())
 ORDER BY t.id DESC LIMIT 500
"""

_REVOKE = """
UPDATE access_token SET revoked_at = coalesce(revoked_at, clock_timestamp())
 WHERE public_id = $1::uuid AND ($2::bigint IS NULL OR principal_id = $2) RETURNING id
"""

_REVOKE_SECRET = "UPDATE access_token SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE hash = $1"

_BY_ID = "SELECT id, public_id, name, role FROM principal WHERE id = $1"

_KNOWN = """
SELECT sender_key, principal_id FROM identity WHERE platform = $1 AND sender_key = ANY($2)
"""

_MAKE_GUESTS = """
WITH stranger AS (
    SELECT s.*, nextval(pg_get_serial_sequence('principal', 'id')) AS id
      FROM unnest($2::text[], $3::text[]) AS s(sender_key, name)
), made AS (
    INSERT INTO principal (id, name, role) OVERRIDING SYSTEM VALUE SELECT id, name, 'guest' FROM stranger
)
INSERT INTO identity (platform, sender_key, principal_id, name)
SELECT $1, sender_key, id, name FROM stranger
RETURNING sender_key, principal_id
"""


@dataclass(frozen=True)
class Principal:
    """Somebody who acts: `id` is the row's, `public_id` is what the outside sees."""

    id: int
    public_id: UUID
    name: str
    role: str

    @property
    def may_see_all(self) -> bool:
        """Whether other people's sessions, and administration, are open to them."""
        return self.role in ("owner", "admin")


@dataclass(frozen=True)
class NewToken:
    """A token as it is shown, once. Its `repr` does not show the secret."""

    public_id: UUID
    secret: str
    expires_at: datetime | None

    def __repr__(self) -> str:
        return f"NewToken({self.public_id})"


async def authenticate(db: Database, secret: str) -> Principal | None:
    """Whom an API token or a browser session's secret proves; None when it is unknown, expired, revoked, or its principal is disabled."""
    row = await db.read(lambda c: c.fetchrow(_AUTHENTICATE, _hash(secret)), pool="ingress")
    return None if row is None else Principal(**dict(row))


async def create_token(
    db: Database, principal_id: int, kind: str, *, name: str = "", ttl: float | None = None, ids: Ids | None = None
) -> NewToken:
    """Make a token of kind `api` or `signin` that lasts `ttl` seconds; None: for ever. Only this answer has the secret."""
    secret = (ids or Ids()).secret()

    async def work(connection: Connection) -> Any:
        return await connection.fetchrow(_CREATE_TOKEN, principal_id, kind, name, _hash(secret), ttl)

    row = await db.transact(work, idempotent=True)
    return NewToken(row["public_id"], secret, row["expires_at"])


async def redeem_signin(db: Database, code: str, *, ids: Ids | None = None) -> str | None:
    """Exchange a sign-in code, once, for a browser session's secret; None when it is used, expired or unknown."""
    secret = (ids or Ids()).secret()

    async def work(connection: Connection) -> str | None:
        made = await connection.fetchval(_REDEEM, _hash(code), _hash(secret), SESSION_SECONDS)
        return None if made is None else secret

    async def resolve(connection: Connection) -> Resolved[str | None] | None:
        await connection.execute(_LOCK_TOKEN, _hash(code))
        return Resolved(secret) if await connection.fetchval(_HAS_TOKEN, _hash(secret)) is not None else None

    return await db.transact(work, resolve=resolve)


async def ensure_owner(db: Database) -> Principal:
    """The first owner, made if there is none."""

    async def work(connection: Connection) -> Principal:
        await connection.execute(_LOCK, _OWNER_LOCK, "")
        return Principal(**dict(await connection.fetchrow(_ENSURE_OWNER)))

    return await db.transact(work, idempotent=True)


async def listing(db: Database, principal_id: int | None) -> list[dict[str, Any]]:
    """Valid tokens, newest first; of one principal if given. Never their secrets."""
    return [dict(row) for row in await db.read(lambda c: c.fetch(_LIST, principal_id))]


async def revoke(db: Database, token: UUID, principal_id: int | None) -> bool:
    """End a token by its public id; only one of `principal_id`'s if given. False when there is no such token."""

    async def work(connection: Connection) -> bool:
        return await connection.fetchval(_REVOKE, token, principal_id) is not None

    return await db.transact(work, idempotent=True)


async def revoke_secret(db: Database, secret: str) -> None:
    """End a token by its secret."""

    async def work(connection: Connection) -> None:
        await connection.execute(_REVOKE_SECRET, _hash(secret))

    await db.transact(work, idempotent=True)


async def identify(connection: Connection, platform: str, senders: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The principals of a platform's senders, given as (immutable id, name); who is new becomes a guest, once however many routers ask."""
    names = dict(senders)
    found = await _known(connection, platform, names)
    if len(found) < len(names):
        await connection.execute(_LOCK, _IDENTITY_LOCK, platform)
        found = await _known(connection, platform, names)
        strangers = [key for key in names if key not in found]
        rows = await connection.fetch(_MAKE_GUESTS, platform, strangers, [names[key] for key in strangers])
        found.update({row["sender_key"]: row["principal_id"] for row in rows})
    return found


async def by_id(connection: Connection, principal_id: int) -> Principal:
    """A principal that exists."""
    row = await connection.fetchrow(_BY_ID, principal_id)
    assert row is not None
    return Principal(**dict(row))


async def _known(connection: Connection, platform: str, names: Mapping[str, str]) -> dict[str, int]:
    rows = await connection.fetch(_KNOWN, platform, list(names))
    return {row["sender_key"]: row["principal_id"] for row in rows}


def _hash(secret: str) -> bytes:
    """Plain SHA-256 is enough: the secrets are 256 random bits, there is nothing to guess."""
    return hashlib.sha256(secret.encode()).digest()
