"""Replica sets: several replicas on one database, each behind proxies of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from testbed.eventually import eventually
from testbed.pgproxy import PgProxy
from testbed.postgres import TestCluster
from testbed.replica import Replica
from testbed.sockets import ReservedPort
from testbed.tcpproxy import TcpProxy

__all__ = ["Replica", "ReplicaSet", "eventually"]

ROOT = Path(__file__).resolve().parent.parent
SECRET_KEY = "c3RyYXR1cy10ZXN0YmVkLWtleS1vZi0zMi1ieXRlcyE="
SETTINGS = {
    "STRATUS_TEST_CHANNELS": "on",
    "STRATUS_SECRET_KEY": SECRET_KEY,
    "STRATUS_LEASE_TTL": "3s",
    "STRATUS_CHANNEL_TTL": "3s",
    "STRATUS_SWEEP": "0.5s",
    "STRATUS_POLL": "0.2s",
    "STRATUS_SEND_BUDGET": "1.5s",
    "STRATUS_SEND_GRACE": "1s",
    "STRATUS_DRAIN": "5s",
}


class ReplicaSet:
    """`n` replicas on one database, started and ready inside an `async with` block, killed at its end.

    Without `dsn` they get a fresh migrated database of their own; `.dsn` is its address past the proxies.
    `settings` are environment variables for all of them, over the testbed's own (short leases); `roles[i]` are more of
    them for the i-th. With `platform` (a base URL), each replica gets a proxy to it and its address in
    `TESTCHAN_BASE_URL`. Logs are files under `folder`; they are printed when the block ends with an exception.
    """

    def __init__(
        self,
        n: int = 2,
        *,
        dsn: str | None = None,
        roles: Sequence[Mapping[str, str]] = (),
        settings: Mapping[str, str] | None = None,
        platform: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.replicas: list[Replica] = []
        self.dsn = dsn or ""
        self._roles = [*roles, *[{}] * (n - len(roles))]
        self._settings = {**SETTINGS, **(settings or {})}
        self._platform = platform
        self._folder = folder
        self._stack = AsyncExitStack()

    def __getitem__(self, index: int) -> Replica:
        return self.replicas[index]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas)

    def __len__(self) -> int:
        return len(self.replicas)

    async def __aenter__(self) -> Self:
        folder = self._folder
        if folder is None:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stratus-replicas-")))
        try:
            if not self.dsn:
                cluster = await self._stack.enter_async_context(TestCluster())
                self.dsn = await self._stack.enter_async_context(cluster.database())
            for index, role in enumerate(self._roles):
                self.replicas.append(await self._make(f"replica-{index}", role, folder))
            for replica in self.replicas:
                replica.start()
            for replica in self.replicas:
                await replica.wait_ready()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.print_logs()
        await self._close()

    def print_logs(self) -> None:
        """Prints the end of each replica's log, for the report of a failed test."""
        for replica in self.replicas:
            print(f"---- {replica.log_path}\n{replica.log_text()[-20_000:]}")

    async def _make(self, name: str, role: Mapping[str, str], folder: Path) -> Replica:
        port = self._stack.enter_context(ReservedPort())
        database = await self._stack.enter_async_context(PgProxy(self.dsn))
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("STRATUS_", "OTEL_"))}
        environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "STRATUS_HOME": str(folder / f"{name}-home")}
        environment |= {"STRATUS_BIND": f"127.0.0.1:{port.number}", "STRATUS_DATABASE_URL": database.dsn}
        platform = None
        if self._platform is not None:
            parts = urlsplit(self._platform)
            platform = TcpProxy((parts.hostname or "127.0.0.1", parts.port or 80))
            await self._stack.enter_async_context(platform)
            environment["TESTCHAN_BASE_URL"] = platform.url
        return Replica(name, environment | self._settings | dict(role), folder, database, platform)

    async def _close(self) -> None:
        for replica in self.replicas:
            if replica.running():
                await replica.kill()
        await self._stack.aclose()
