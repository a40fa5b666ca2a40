"""The one error that the server in the box raises."""

from stratus.domain.errors import StratusError


class EmbeddedError(StratusError):
    """The embedded PostgreSQL cannot be had; the message says why and which setting mends it."""

    code = "embedded_postgres"
