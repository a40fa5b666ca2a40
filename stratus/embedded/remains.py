"""Clears away what a guard or postmaster that was killed left behind, so that the next server can start."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import signal
import subprocess
import time
from pathlib import Path

from stratus.embedded.account import clean_env, identity
from stratus.embedded.folder import POLL, SILENT, ServerFolder

PID_FILE = "postmaster.pid"
LINUX = platform.system() == "Linux"
# Every process of a server has its data folder as working directory. -ef compares inodes through the link, which only
# the account itself may follow: in a container root often may not.
SCAN = 'for p in /proc/[0-9]*; do [ "$p/cwd" -ef "$0" ] && echo "${p#/proc/}"; done; :'


def clear(folder: ServerFolder, account: pwd.struct_passwd | None, patience: float = 60.0) -> None:
    """End every server process of this data folder, then drop lock files that name a stranger; holds GUARD.

    A postmaster without a guard gets `patience` seconds for a clean stop. What then remains, and backends whose
    postmaster is dead, get SIGQUIT, on which they leave without touching shared state
    (https://www.postgresql.org/docs/current/server-shutdown.html).
    """
    pids = _server_pids(folder.data, account)
    postmaster = _recorded_pid(folder.data / PID_FILE)
    if postmaster in pids:
        _send(postmaster, signal.SIGINT)
        pids = _wait_gone(folder.data, account, patience)
    for pid in pids:
        _send(pid, signal.SIGQUIT)
    if pids:
        pids = _wait_gone(folder.data, account, 5.0)
    record = folder.record()
    if LINUX and not pids and record is not None and folder.probe() == SILENT:
        _drop_if_stale(folder.data / PID_FILE)
        _drop_if_stale(Path(record.socket_folder, f".s.PGSQL.{record.port}.lock"))


def _drop_if_stale(pid_file: Path) -> None:
    """postgres will not start while the pid in its file is alive, be it a zombie or, in a new container, one of us."""
    pid = _recorded_pid(pid_file)
    if pid is None:
        return
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return  # postgres deals with that itself, and looks at shared memory too
    except PermissionError:
        pass
    pid_file.unlink(missing_ok=True)


def _recorded_pid(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _server_pids(data: Path, account: pwd.struct_passwd | None) -> set[int]:
    if LINUX:
        command = ["/bin/sh", "-c", SCAN, str(data)]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd="/", env=clean_env(), **identity(account))
        return {pid for pid in map(int, said.stdout.split()) if _name(pid) == "postgres"}
    pid = _recorded_pid(data / PID_FILE)
    return {pid} if pid is not None and _name(pid) == "postgres" else set()


def _name(pid: int) -> str:
    if LINUX:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
        return ""
    said = subprocess.run(["ps", "-p", str(pid), "-o", "comm="], capture_output=True, text=True, env=clean_env())
    return os.path.basename(said.stdout.strip())


def _send(pid: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, what)


def _wait_gone(data: Path, account: pwd.struct_passwd | None, seconds: float) -> set[int]:
    deadline = time.monotonic() + seconds
    while (pids := _server_pids(data, account)) and time.monotonic() < deadline:
        time.sleep(POLL)
    return pids
