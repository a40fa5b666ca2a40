"""Bytes of files, by their SHA-256, in chunks: written with what names them, read by any replica."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stratus.store.database import Connection, Database

# A row of this size goes through the client and TOAST without trouble.
CHUNK_BYTES = 256 * 1024

_PUT = """
INSERT INTO outbox_blob (sha256, chunk, data) SELECT $1, c.chunk, c.data FROM unnest($2::int[], $3::bytea[]) AS c(chunk, data)
    ON CONFLICT DO NOTHING
"""

_GET = "SELECT data FROM outbox_blob WHERE sha256 = $1 ORDER BY chunk"


_CHUNK = "SELECT data FROM outbox_blob WHERE sha256 = $1 AND chunk = $2"


async def put(connection: Connection, data: bytes) -> bytes:
    """Store bytes, in the caller's transaction; the same bytes are stored once. Returns their SHA-256."""
    digest = hashlib.sha256(data).digest()
    chunks = _chunks(data)
    await connection.execute(_PUT, digest, list(range(len(chunks))), chunks)
    return digest


async def put_all(connection: Connection, files: Sequence[bytes]) -> None:
    """Store several, in the order of their digests: two transactions that store the same files wait for each other, not both ways."""
    for data in sorted(files, key=lambda data: hashlib.sha256(data).digest()):
        await put(connection, data)


async def get(db: Database, digest: bytes) -> bytes | None:
    """The bytes with this SHA-256, or None."""
    rows = await db.read(lambda c: c.fetch(_GET, digest))
    return b"".join(row["data"] for row in rows) if rows else None


async def chunk(db: Database, digest: bytes, number: int) -> bytes | None:
    """The piece `number`, from 0, of the bytes with this SHA-256; None after the last. Each has CHUNK_BYTES but the last."""
    data: bytes | None = await db.read(lambda c: c.fetchval(_CHUNK, digest, number), pool="ingress")
    return data


def _chunks(data: bytes) -> Sequence[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)] or [b""]
