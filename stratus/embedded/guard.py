"""The guard: parent of `postgres`. It restarts the server after a crash and stops it when the last user is gone.

Run as `python -m stratus.embedded.guard HOME` by `EmbeddedPostgres.start`, from which it inherits the descriptor that
holds GUARD, so that the lock is held from before its birth to its death.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from stratus.embedded import remains
from stratus.embedded.account import clean_env, identity, server_account
from stratus.embedded.folder import ANSWERS, COUNT, USERS, Record, ServerFolder, append

FIRST_TRIES = 3
SLOWEST_RETRY = 10.0  # seconds
LARGEST_LOG = 16 * 2**20  # bytes
SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


class Guard:
    """One server's watcher; lives as long as the server is wanted."""

    def __init__(self, folder: ServerFolder, record: Record) -> None:
        self._folder, self._record = folder, record
        self._account = server_account(folder.data)
        self._postgres: subprocess.Popen[bytes] | None = None
        self._was_up = self._asked_to_stop = False
        self._failures = 0
        self._retry_at = 0.0

    def run(self) -> int:
        """Watch until the last user leaves or a signal asks; 1 when the server never came up."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while not self._asked_to_stop:
            self._tend()
            if not self._was_up and self._failures >= FIRST_TRIES:
                return 1
            if self._stopped_unused():
                return 0
            time.sleep(0.25 if self._was_up else 0.05)
        self._stop()
        return 0

    def _ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._asked_to_stop = True

    def _tend(self) -> None:
        if self._postgres is None:
            if time.monotonic() >= self._retry_at:
                self._spawn()
        elif self._postgres.poll() is not None:
            self._note(f"postgres {self._postgres.pid} ended with {self._postgres.returncode}")
            self._postgres = None
            self._failed()
        elif (self._failures or not self._was_up) and self._folder.probe() == ANSWERS:
            self._was_up, self._failures = True, 0

    def _failed(self) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + min(0.05 * 2**self._failures, SLOWEST_RETRY)

    def _spawn(self) -> None:
        settings = {
            **self._record.settings,
            "listen_addresses": "",
            "port": str(self._record.port),
            "unix_socket_directories": '"' + self._record.socket_folder.replace('"', '""') + '"',
            "unix_socket_permissions": "0700",
        }
        command = [f"{self._record.programs}/postgres", "-D", str(self._folder.data)]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        try:
            remains.clear(self._folder, self._account)
            with append(self._folder.log) as log:
                self._postgres = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=clean_env(),
                    start_new_session=True,
                    preexec_fn=_die_with(os.getpid()),  # safe: this process has one thread
                    **identity(self._account),
                )
        except OSError as error:
            self._note(f"postgres cannot be run: {error}")
            self._failed()

    def _stopped_unused(self) -> bool:
        """Stop the server if nobody uses it; both locks are then held to the end of this process."""
        count = self._folder.take(COUNT)
        if count is None:
            return False
        if self._folder.take(USERS) is None:
            os.close(count)
            return False
        self._stop()
        return True

    def _stop(self) -> None:
        if self._postgres is None or self._postgres.poll() is not None:
            return
        for number, patience in ((signal.SIGINT, 60), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
            self._postgres.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._postgres.wait(patience)
                break
        self._note(f"postgres {self._postgres.pid} stopped with {self._postgres.returncode}")

    def _note(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the guard
            print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), line, flush=True)


def _die_with(guard: int) -> Callable[[], None]:
    """For the child, between fork and exec: a fast shutdown when the guard dies, even by kill -9 (Linux only)."""
    prctl = ctypes.CDLL(None).prctl if remains.LINUX else None

    def arrange() -> None:
        if prctl is not None:
            prctl(SET_DEATH_SIGNAL, signal.SIGINT)
            if os.getppid() != guard:  # it died before the line above
                os._exit(1)

    return arrange


def main(home: str) -> int:
    """Clear the ground while the starter waits, then go on as a child of init."""
    folder = ServerFolder(Path(home))
    record = folder.record()
    if record is None:
        print(f"{folder.home} has no server.json")
        return 1
    remains.clear(folder, server_account(folder.data))
    for log in (folder.log, folder.guard_log):
        if log.exists() and log.stat().st_size > LARGEST_LOG:
            log.replace(log.with_suffix(".log.1"))
    if os.fork():
        os._exit(0)
    folder.guard_pid.write_text(str(os.getpid()))
    return Guard(folder, record).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
