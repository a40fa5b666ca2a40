"""The handle on the server in the box: start it or join it, reach it, leave it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import stratus
from stratus.embedded.account import clean_env
from stratus.embedded.cluster import prepare
from stratus.embedded.errors import EmbeddedError
from stratus.embedded.folder import ANSWERS, COUNT, GUARD, POLL, USERS, Record, ServerFolder, append


class EmbeddedPostgres:
    """One PostgreSQL under `home`, shared by every process that starts it there, stopped with its last user.

    `settings` are server settings (postgresql.conf names and values); they take effect when this start is the one that
    launches the server. The server listens on a Unix socket only. POSIX only; run on Linux.
    """

    def __init__(self, home: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._folder = ServerFolder(home)
        self._settings = dict(settings or {})
        self._users: int | None = None

    def start(self, timeout: float = 60) -> Self:
        """Join the running server or launch it; returns when it answers. Blocks, at most about `timeout` seconds.

        Call it again when connections fail: it brings back a server whose guard was killed. Raises EmbeddedError.
        """
        deadline = time.monotonic() + timeout
        try:
            self._folder.create()
            with contextlib.ExitStack() as undo:
                if self._users is None:
                    self._users = self._folder.join(deadline)
                    undo.callback(self._leave)
                self._bring_up(deadline)
                undo.pop_all()
        except OSError as error:
            raise EmbeddedError(
                f"cannot keep PostgreSQL in {self._folder.home} ({error}); "
                "set STRATUS_HOME to a folder that this account can write to, or STRATUS_DATABASE_URL"
            ) from error
        return self

    def _bring_up(self, deadline: float) -> None:
        launched = False
        while True:
            lock = self._folder.take(GUARD)
            if lock is not None:
                try:
                    if launched:
                        raise EmbeddedError(f"PostgreSQL did not start. {self._folder.log_tail()}")
                    prepare(self._folder, self._settings)
                    self._launch(lock, deadline)
                finally:
                    os.close(lock)
                launched = True
            if self._folder.probe() == ANSWERS:
                return
            if time.monotonic() > deadline:
                raise EmbeddedError(f"PostgreSQL does not answer yet. {self._folder.log_tail()}")
            time.sleep(POLL)

    def _launch(self, lock: int, deadline: float) -> None:
        env = clean_env() | {"PYTHONPATH": str(Path(stratus.__file__).parent.parent)}
        command = [sys.executable, "-P", "-m", "stratus.embedded.guard", str(self._folder.home)]
        with append(self._folder.guard_log) as log:
            try:
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    cwd="/",
                    env=env,
                    start_new_session=True,
                    check=True,
                    timeout=max(deadline - time.monotonic(), 1.0),
                )
            except subprocess.SubprocessError as error:
                raise EmbeddedError(f"the guard of PostgreSQL did not start. {self._folder.log_tail()}") from error

    def close(self, wait: float = 30) -> None:
        """Leave the server; the last to leave stops it and waits up to `wait` seconds for that. Blocks."""
        if self._users is None:
            return
        self._leave()
        deadline = time.monotonic() + wait
        while not self._folder.is_free(GUARD) and not self._is_used() and time.monotonic() < deadline:
            time.sleep(POLL)

    def _leave(self) -> None:
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def _is_used(self) -> bool:
        count = self._folder.take(COUNT)
        if count is None:  # the guard is stopping the server, or somebody else counts: look again
            return False
        try:
            return not self._folder.is_free(USERS)
        finally:
            os.close(count)

    def _reach(self) -> Record:
        record = self._folder.record()
        if record is None:
            raise EmbeddedError(f"PostgreSQL in {self._folder.home} was never started")
        return record

    def dsn(self, database: str = "stratus") -> str:
        """A URL for asyncpg or libpq. It contains the password: never log it. Raises EmbeddedError before any start."""
        record = self._reach()
        where = urllib.parse.urlencode({"host": record.socket_folder, "port": record.port})
        return f"postgresql://{record.user}:{record.password}@/{urllib.parse.quote(database, safe='')}?{where}"

    async def ensure_database(self, name: str = "stratus") -> None:
        """Create the database unless it is there; any number of processes may ask at once.

        Raises asyncpg's errors when the server cannot be reached.
        """
        import asyncpg

        connection = await asyncpg.connect(self.dsn("postgres"))
        try:
            if not await connection.fetchval("select exists (select from pg_database where datname = $1)", name):
                quoted = name.replace('"', '""')
                # the second is what the loser of a race gets when both passed the first check (pg_database's index)
                with contextlib.suppress(asyncpg.DuplicateDatabaseError, asyncpg.UniqueViolationError):
                    await connection.execute(f'create database "{quoted}"')
        finally:
            await connection.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
