"""Seals all stored credentials by the first key anew, so that older keys can be taken off the list. Nothing restarts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from stratus.store.database import Connection, Database
from stratus.store.vault import CredentialsUnreadable, Vault

_BATCH = 100

_SEALED = """
SELECT id, public_id, name, credentials FROM channel
 WHERE deleted_at IS NULL AND credentials IS NOT NULL AND id > $1
 ORDER BY id LIMIT $2
"""

# Only what still is as it was read: a change by an operator meanwhile is newer.
_REPLACE = """
WITH given AS (
    SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) AS g(id, before, after)
), same AS (
    SELECT c.id FROM channel c JOIN given g ON g.id = c.id AND g.before = c.credentials ORDER BY c.id FOR NO KEY UPDATE OF c
)
UPDATE channel c SET credentials = g.after FROM given g JOIN same s ON s.id = g.id WHERE c.id = g.id
"""


@dataclass
class Resealed:
    """How many channels' credentials were sealed anew, how many were by the first key already, and whose could not be opened."""

    resealed: int = 0
    current: int = 0
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SealedRow:
    """A channel's sealed credentials."""

    id: int
    public_id: UUID
    name: str
    credentials: bytes = field(repr=False)


async def sealed(db: Database, after: int = 0) -> list[SealedRow]:
    """The next channels with credentials behind the id `after`."""
    return [SealedRow(**row) for row in await db.read(lambda c: c.fetch(_SEALED, after, _BATCH))]


async def reseal(db: Database, vault: Vault) -> Resealed:
    """Go through all channels in batches, while they run. May be repeated at any time."""
    found = Resealed()
    batch = await sealed(db)
    while batch:
        await _replace(db, [one for row in batch if (one := _anew(vault, row, found)) is not None])
        batch = await sealed(db, batch[-1].id)
    return found


def _anew(vault: Vault, row: SealedRow, found: Resealed) -> tuple[SealedRow, bytes] | None:
    try:
        credentials = vault.open(row.public_id, row.credentials)
    except CredentialsUnreadable:
        found.unreadable.append(row.name)
        return None
    if vault.current(row.credentials):
        found.current += 1
        return None
    found.resealed += 1
    return row, vault.seal(row.public_id, credentials)


async def _replace(db: Database, anew: Sequence[tuple[SealedRow, bytes]]) -> None:
    if not anew:
        return

    async def work(connection: Connection) -> None:
        columns = [row.id for row, _ in anew], [row.credentials for row, _ in anew], [after for _, after in anew]
        await connection.execute(_REPLACE, *columns)

    await db.transact(work, idempotent=True)
