"""PostgreSQL for tests: one shared server per checkout with a migrated template, and private servers to be stopped.

`STRATUS_TEST_DATABASE_URL` names another server to use as the shared one; its role must be able to create databases.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit, urlunsplit

import asyncpg

if TYPE_CHECKING:
    from stratus.embedded import EmbeddedPostgres

ROOT = Path(__file__).resolve().parent.parent
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
_TEMPLATE_LOCK = 0x5354_5241
_numbers = itertools.count(1)


class TestCluster:
    """An async context manager around the shared server; every process of a test run may have one of its own at once.

    `.url` is the server's administrative database.
    The embedded server stops with its last user. Databases that a killed process left behind are dropped at the start.
    """

    __test__ = False

    def __init__(self) -> None:
        self._embedded: EmbeddedPostgres | None = None
        self.url = os.environ.get("STRATUS_TEST_DATABASE_URL", "")

    async def __aenter__(self) -> Self:
        if not self.url:
            self._embedded = await asyncio.to_thread(_started, shared_home())
            self.url = self._embedded.dsn("postgres")
            await self._drop_abandoned()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._embedded is not None:
            await asyncio.to_thread(self._embedded.close)

    async def template(self) -> str:
        """The name of the migrated template database, made once for each state of the migrations."""
        name = f"stratus_template_{_migrations_digest()}"
        async with self._admin() as admin:
            await admin.execute("SELECT pg_advisory_lock($1)", _TEMPLATE_LOCK)  # released with the connection
            if not await _exists(admin, name):
                await self._make_template(admin, name)
        return name

    async def create(self, name: str | None = None) -> str:
        """A fresh copy of the template; answers its DSN. Without a name, one that no other process uses."""
        name = name or f"stratus_test_{os.getpid()}_{next(_numbers)}"
        template = await self.template()
        async with self._admin() as admin:
            await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return with_database(self.url, name)

    async def drop(self, dsn: str) -> None:
        """Drops a database that `create` made, ending its connections."""
        async with self._admin() as admin:
            await admin.execute(f'DROP DATABASE IF EXISTS "{urlsplit(dsn).path[1:]}" WITH (FORCE)')

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """The DSN of a fresh database that is dropped at the end of the block."""
        dsn = await self.create()
        try:
            yield dsn
        finally:
            await self.drop(dsn)

    async def _make_template(self, admin: asyncpg.Connection[Any], name: str) -> None:
        from stratus.store import migrate

        unfinished = f"{name}_unfinished"
        await admin.execute(f'DROP DATABASE IF EXISTS "{unfinished}" WITH (FORCE)')
        await admin.execute(f'CREATE DATABASE "{unfinished}" TEMPLATE template0')
        await migrate.upgrade(with_database(self.url, unfinished))
        await admin.execute(f'ALTER DATABASE "{unfinished}" RENAME TO "{name}"')

    async def _drop_abandoned(self) -> None:
        async with self._admin() as admin:
            names = await admin.fetch(r"SELECT datname FROM pg_database WHERE datname ~ '^stratus_test_\d+_\d+$'")
            for (name,) in names:
                if not Path(f"/proc/{name.split('_')[2]}").exists():
                    await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        admin = await asyncpg.connect(self.url)
        try:
            yield admin
        finally:
            await admin.close()


class PrivateServer:
    """A server of one test alone: it can be stopped, started and crashed, and keeps its data and its address.

    An async context manager; it makes and removes its own folder, one that PostgreSQL's account can enter.
    """

    def __init__(self) -> None:
        self._home = Path()
        self._embedded: EmbeddedPostgres | None = None

    async def __aenter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="stratus-private-"))
        self._home.chmod(0o711)
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._home)

    async def start(self) -> None:
        """Returns when the server answers."""
        if self._embedded is None:
            self._embedded = await asyncio.to_thread(_started, self._home)

    async def stop(self) -> None:
        """A fast shutdown: connections end, nothing listens until `start`."""
        if self._embedded is not None:
            embedded, self._embedded = self._embedded, None
            await asyncio.to_thread(embedded.close)

    async def kill(self) -> None:
        """A crash: the postmaster gets SIGKILL. Its guard then starts it again, with crash recovery."""
        os.kill(self.postmaster(), signal.SIGKILL)

    def postmaster(self) -> int:
        """The process id of the postmaster. Raises OSError when the server is stopped."""
        (pid_file,) = self._home.glob("**/postmaster.pid")
        return int(pid_file.read_text().split()[0])

    def dsn(self, name: str) -> str:
        """The DSN of a database of this server, the same over `stop` and `start`."""
        assert self._embedded is not None, "the server is stopped"
        return self._embedded.dsn(name)

    async def create(self, name: str = "stratus") -> str:
        """A migrated database; answers its DSN."""
        from stratus.store import migrate

        assert self._embedded is not None, "the server is stopped"
        await self._embedded.ensure_database(name)
        await migrate.upgrade(self.dsn(name))
        return self.dsn(name)


def shared_home() -> Path:
    """The folder of this user's test server for this checkout."""
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:10]
    return Path(tempfile.gettempdir()) / f"stratus-test-{os.getuid()}-{checkout}"


def with_database(dsn: str, name: str) -> str:
    """The same server and user, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


def _started(home: Path) -> EmbeddedPostgres:
    from stratus.embedded import EmbeddedPostgres

    home.mkdir(parents=True, exist_ok=True)
    return EmbeddedPostgres(home, settings=_SETTINGS).start()


def _migrations_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "migrations").rglob("*"), *(ROOT / "stratus" / "store").glob("*.py")]):
        if path.is_file() and re.search(r"\.(py|sql|mako|ini)$", path.name):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


async def _exists(admin: asyncpg.Connection[Any], name: str) -> bool:
    return bool(await admin.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name))
