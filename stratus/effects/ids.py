"""Unguessable identities: 122 or more random bits, so that an id tells nothing and collides with nothing."""

from __future__ import annotations

import secrets
import uuid
from uuid import UUID


class Ids:
    """Makes ids and secrets; a test may hand in a seeded one."""

    def uuid(self) -> UUID:
        """A random (version 4) UUID."""
        return uuid.uuid4()

    def secret(self, octets: int = 32) -> str:
        """A URL-safe secret of `octets` random bytes."""
        return secrets.token_urlsafe(octets)
