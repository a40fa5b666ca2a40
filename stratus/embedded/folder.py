"""The folder of one embedded server, where all who share it meet: paths, locks, and the record of how to reach it.

Locks are flock(2): the kernel drops them however their holder ends, so there is no list of pids to go stale.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO

from stratus.embedded.account import clean_env
from stratus.embedded.errors import EmbeddedError

COUNT = "count.lock"  # exclusive: whoever asks whether there are users; the guard keeps it while it stops the server
USERS = "users.lock"  # shared: every user; exclusive only under COUNT
GUARD = "guard.lock"  # exclusive: the guard, from before it is born (it inherits the descriptor)
ANSWERS, SILENT = 0, 2  # pg_isready's exit codes; 1 is "starting or stopping"
POLL = 0.03  # seconds between looks while somebody waits


@dataclass(frozen=True, slots=True)
class Record:
    """How to run the server and how to reach it; kept as `server.json`, readable by its owner only."""

    password: str = field(repr=False)
    socket_folder: str
    programs: str
    settings: dict[str, str]
    user: str = "stratus"
    port: int = 5432  # only names the socket file: the server does not listen on TCP


def append(log: Path) -> BinaryIO:
    """Open a log for writing at its end; nobody else may read it, for PostgreSQL's holds statements."""
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


class ServerFolder:
    """Paths and locks below `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home.absolute()
        self.data = self.home / "data"
        self.log = self.home / "postgres.log"
        self.guard_log = self.home / "guard.log"
        self.guard_pid = self.home / "guard.pid"
        self._record = self.home / "server.json"

    def create(self) -> None:
        """Make the folders that are missing. As root they let the server's account pass through, not look around."""
        mode = 0o711 if os.geteuid() == 0 else 0o700
        missing = [p for p in [self.home, *self.home.parents] if not p.exists()]
        for folder in reversed(missing):
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            folder.chmod(mode)  # after mkdir: a strict umask must not close it

    def record(self) -> Record | None:
        """What the last start wrote, if there was one. Raises OSError when it is not ours to read."""
        try:
            return Record(**json.loads(self._record.read_text()))
        except FileNotFoundError:
            return None

    def write(self, record: Record) -> None:
        """Replace the record, durably: without its password the data is lost to us."""
        draft = self._record.with_name(f".server.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(record), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._record)
        self.sync()

    def sync(self) -> None:
        """Make renames in `home` durable."""
        handle = os.open(self.home, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def major(self) -> int | None:
        """Major version of the PostgreSQL that made the data folder; None before it is made."""
        try:
            return int((self.data / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def take(self, lock: str, *, shared: bool = False) -> int | None:
        """Try a lock without waiting: the descriptor that holds it until it is closed (execs do not inherit it)."""
        handle = os.open(self.home / lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        return handle

    def join(self, deadline: float) -> int:
        """Take USERS shared, waiting until `deadline` (time.monotonic); raises EmbeddedError then."""
        while (handle := self.take(USERS, shared=True)) is None:
            if time.monotonic() > deadline:
                raise EmbeddedError(f"{self.home / USERS} stayed locked: another process is stopping PostgreSQL")
            time.sleep(POLL)
        return handle

    def is_free(self, lock: str) -> bool:
        """Whether nobody holds the lock at this moment."""
        handle = self.take(lock)
        if handle is not None:
            os.close(handle)
        return handle is not None

    def probe(self) -> int:
        """pg_isready's verdict (https://www.postgresql.org/docs/current/app-pg-isready.html); pids would lie."""
        record = self.record()
        if record is None:
            return SILENT
        ask = [f"{record.programs}/pg_isready", "-q", "-t", "3", "-h", record.socket_folder, "-p", str(record.port)]
        try:
            return subprocess.run(ask, cwd="/", env=clean_env()).returncode
        except FileNotFoundError:  # the programs were uninstalled; the next start records others
            return SILENT

    def log_tail(self) -> str:
        """The last lines of both logs, for an error message."""
        tails = [
            f"{path} ends:\n{path.read_bytes()[-800:].decode(errors='replace').strip()}"
            for path in (self.guard_log, self.log)
            if path.exists()
        ]
        return "\n".join(tails)
