"""Reads the identifiers that clients send, and answers a malformed one as one that is not there."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

from fastapi import Depends

from stratus.domain.errors import BadInput, KeyMissing, NotFound

_KEY = re.compile(r"[\x20-\x7e]{16,255}")
_SESSION_MAX = 256


def public_id(text: str) -> UUID:
    """A public id. Raises NotFound."""
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("there is no such thing, or it is not yours") from None


async def _session_id(session_id: str) -> str:
    """A session's id: 1 to 256 printable characters. Raises BadInput."""
    if not 1 <= len(session_id) <= _SESSION_MAX or not session_id.isprintable():
        raise BadInput(f"a session id has 1 to {_SESSION_MAX} printable characters")
    return session_id


SessionId = Annotated[str, Depends(_session_id)]


def idempotency_key(key: str | None) -> str:
    """The client's idempotency key. Raises KeyMissing."""
    if key is None or _KEY.fullmatch(key) is None:
        raise KeyMissing("send an Idempotency-Key header of 16 to 255 printable ASCII characters")
    return key


def scoped(principal: UUID, key: str) -> str:
    """A key as it is stored: one principal's keys never meet another's."""
    return f"{principal}:{key}"
