"""The process between a replica and a tool server: starts the server in a process group of its own and ends that group.

Run by path as `python -I -S mcp_guard.py LIFELINE COMMAND…`, with nothing but the standard library. LIFELINE is the number of the
read end of a pipe whose other end only the replica has: it ends when the replica lets go of it, or is gone, however it died.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

NOT_STARTED = 127
# How long a server may take to end by itself after its input has ended, and after SIGTERM.
LEAVE_SECONDS, TERM_SECONDS = 0.5, 2.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PAUSE_SECONDS = 0.02
# prctl(2), Linux only.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(lifeline: int, command: list[str]) -> int:
    """Guard one server to its end. Returns its exit code, or 127 when it cannot be started."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A service manager signals every process of a service, but the replica ends its servers in its own time.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(lifeline, False)
    server = os.fork()
    if server == 0:
        _become(command)
    _let_go_of_its_pipes()
    code = _wait(server, [lifeline, woken], None)
    if code is None:
        code = _wait(server, [woken], LEAVE_SECONDS)
    _end(server, code is not None)
    return code if code is not None else 128 + signal.SIGKILL


def _become(command: list[str]) -> None:
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # What is ignored stays so across exec; Python itself ignores SIGPIPE and SIGXFSZ.
        for number in (*_ENDING, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _let_go_of_its_pipes() -> None:
    """What the server speaks over must end with the server."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)


def _wait(server: int, watched: list[int], seconds: float | None) -> int | None:
    """The server's exit code, or None when the time is over or the lifeline, the first of two `watched`, has ended."""
    while True:
        code = _reap(server)
        if code is not None:
            return code
        ready = select.select(watched, [], [], seconds)[0]
        if not ready or (len(watched) == 2 and watched[0] in ready):
            return _reap(server)
        os.read(watched[-1], 512)


def _reap(server: int) -> int | None:
    """Collect children that have ended, those inherited from the server too. The server's exit code when it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == server:
            found = os.waitstatus_to_exitcode(status)


def _end(server: int, gone: bool) -> None:
    """SIGTERM to the group, SIGKILL when that does not help; on Linux then also to what has left the group."""
    if _signal(server, signal.SIGTERM):
        pauses = round(TERM_SECONDS / _PAUSE_SECONDS)
        while pauses and (_signal(server, 0) or not gone):
            gone = _reap(server) is not None or gone
            select.select([], [], [], _PAUSE_SECONDS)
            pauses -= 1
    if not _signal(server, signal.SIGKILL) and not gone:
        os.kill(server, signal.SIGKILL)  # it has not come to make its group
    for _ in range(500):  # not for ever: what hangs in the kernel cannot be killed
        strays = _children()
        if not strays:
            break
        for pid in strays:
            os.kill(pid, signal.SIGKILL)  # a child that has ended keeps its id until it is reaped, just below
        _reap(server)
        select.select([], [], [], _PAUSE_SECONDS)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _children() -> list[int]:
    """Children as Linux lists them (proc(5)): descendants of the server are ours once their parent has died."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
