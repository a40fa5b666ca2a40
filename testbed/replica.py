"""One replica: a real `stratus serve` process that can be killed, paused, cut off and drained, each by its pid."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from testbed.eventually import eventually
from testbed.pgproxy import PgProxy
from testbed.tcpproxy import TcpProxy

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_running: dict[int, subprocess.Popen[bytes]] = {}


class Replica:
    """One `stratus serve` process with its address, its log file and its proxies, which all outlive a restart."""

    def __init__(
        self, name: str, environment: Mapping[str, str], folder: Path, database: PgProxy, platform: TcpProxy | None
    ) -> None:
        self.name = name
        self.database_proxy = database
        self.log_path = folder / f"{name}.log"
        self._platform = platform
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._environment['STRATUS_BIND']}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def platform_proxy(self) -> TcpProxy:
        assert self._platform is not None, "the replica set was made without `platform`"
        return self._platform

    def log_text(self) -> str:
        """What the process wrote so far, over all its restarts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process; `wait_ready` says when it serves."""
        assert not self.running(), f"{self.name} runs already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stratus", "serve"],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        _running[self._process.pid] = self._process

    async def wait_ready(self, timeout: float = 30) -> None:
        """Returns when `/readyz` answers 200. Raises AssertionError with the log's end if it exits or is too slow."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:

            async def ready() -> bool:
                if not self.running():
                    raise AssertionError(f"{self.name} exited with {self.process.returncode}:\n{self._tail()}")
                with contextlib.suppress(httpx.TransportError):
                    return (await client.get(f"{self.url}/readyz")).status_code == httpx.codes.OK
                return False

            try:
                await eventually(ready, timeout, f"{self.name} ready")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self._tail()}") from None

    async def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        if self.running():
            self.process.kill()
        await self._gone(10)

    def pause(self) -> None:
        """SIGSTOP: the process stands still, its connections stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    async def cut_database(self, *, rst: bool = False) -> None:
        """Cuts this replica off from the database, silently or (`rst`) with resets and refusals, until `heal`."""
        await self.database_proxy.cut(rst=rst)

    async def cut_platform(self, *, rst: bool = False) -> None:
        """Cuts this replica off from the platform until `heal`."""
        await self.platform_proxy.cut(rst=rst)

    async def heal(self) -> None:
        """Ends every cut, loss and delay on both proxies."""
        await self.database_proxy.heal()
        if self._platform is not None:
            await self._platform.heal()

    async def drain(self, timeout: float = 20) -> int:
        """SIGTERM; answers the exit code. Raises AssertionError when it has not ended within `timeout` seconds."""
        self.process.terminate()
        return await self._gone(timeout)

    async def restart(self) -> None:
        """Kills it if it runs, starts it on the same address, and waits until it is ready."""
        await self.kill()
        self.start()
        await self.wait_ready()

    async def _gone(self, timeout: float) -> int:
        await eventually(lambda: not self.running(), timeout, f"{self.name} ended")
        _running.pop(self.pid, None)
        return self.process.returncode

    def _tail(self) -> str:
        return self.log_text()[-4000:]


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@atexit.register
def _kill_running() -> None:
    for process in _running.values():
        if process.poll() is None:
            process.kill()
            process.wait()
