"""PostgreSQL in the box: one server under a folder, shared by the processes that start it, gone with the last of them.

It runs before and outside of any event loop, and needs only the standard library until a database is made.
"""

from stratus.embedded.errors import EmbeddedError
from stratus.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedError", "EmbeddedPostgres"]
