"""The link that signs the owner in to the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratus.store.database import Database


async def signin_link(db: Database, public_url: str, name: str) -> str:
    """A link with a new code, valid once and for 15 minutes. The code is in the fragment, which browsers do not send."""
    from stratus.store import principal

    owner = await principal.ensure_owner(db)
    made = await principal.create_token(db, owner.id, "signin", name=name, ttl=principal.SIGNIN_SECONDS)
    return f"{public_url}/ui/#signin={made.secret}"
