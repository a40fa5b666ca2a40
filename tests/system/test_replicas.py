"""Replica sets as process control: with a stand-in for `stratus serve` that only answers, counts and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from testbed.eventually import eventually
from testbed.fakes.model import FakeModel
from testbed.fakes.server import FakeServer
from testbed.replicas import ROOT, ReplicaSet

DSN = "postgresql://u:p@/stratus?host=/nowhere&port=1"
STAND_IN = """
import http.server, json, os, signal, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(dict(os.environ)).encode())

if os.environ.get("STAND_IN") == "broken":
    sys.exit("no such setting")
host, port = os.environ["STRATUS_BIND"].split(":")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("serving", flush=True)
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""
OWNER = """
import asyncio, sys
from pathlib import Path
from testbed.replicas import ReplicaSet

async def main():
    async with ReplicaSet(1, dsn=sys.argv[1], settings={"PYTHONPATH": sys.argv[2]}, folder=Path(sys.argv[2])) as replicas:
        print(replicas[0].pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    package = tmp_path / "stand_in" / "stratus"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    return str(package.parent)


def gone(pid: int) -> bool:
    """Whether the process ended; one that waits for its parent's notice has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def environment(url: str) -> dict[str, str]:
    async with httpx.AsyncClient(trust_env=False, timeout=0.3) as client:
        answer: dict[str, str] = (await client.get(url)).json()
        return answer


async def test_each_replica_has_its_own_address_proxies_and_role(stand_in: str) -> None:
    roles = [{"STRATUS_RUN_WORKER": "off"}]
    async with FakeServer(FakeModel().app) as platform:
        settings = {"PYTHONPATH": stand_in, "STRATUS_SWEEP": "9s"}
        async with ReplicaSet(2, dsn=DSN, roles=roles, settings=settings, platform=platform.url) as replicas:
            first, second = [await environment(replica.url) for replica in replicas]
            async with httpx.AsyncClient(trust_env=False, timeout=0.3) as client:
                assert (await client.get(f"{first['TESTCHAN_BASE_URL']}/log")).json() == []
                await replicas[0].cut_platform(rst=True)
                with pytest.raises(httpx.TransportError):
                    await client.get(f"{first['TESTCHAN_BASE_URL']}/log")
                assert (await client.get(f"{second['TESTCHAN_BASE_URL']}/log")).json() == []
                await replicas[0].heal()
                assert (await client.get(f"{first['TESTCHAN_BASE_URL']}/log")).json() == []
    assert (first["STRATUS_RUN_WORKER"], second.get("STRATUS_RUN_WORKER")) == ("off", None)
    assert (first["STRATUS_SWEEP"], first["STRATUS_LEASE_TTL"]) == ("9s", "3s")
    for name in ("STRATUS_DATABASE_URL", "STRATUS_BIND", "STRATUS_HOME", "TESTCHAN_BASE_URL"):
        assert first[name] != second[name]
    assert first["STRATUS_DATABASE_URL"] == f"postgresql://u:p@127.0.0.1:{replicas[0].database_proxy.port}/stratus"
    assert all(gone(replica.pid) for replica in replicas)


async def test_a_replica_is_killed_restarted_paused_and_drained(stand_in: str) -> None:
    async with ReplicaSet(1, dsn=DSN, settings={"PYTHONPATH": stand_in}) as replicas:
        replica = replicas[0]
        killed = replica.pid
        await replica.kill()
        assert gone(killed)
        await replica.restart()
        assert replica.pid != killed
        assert replica.log_text().count("serving") == 2
        replica.pause()
        with pytest.raises(httpx.TimeoutException):
            await environment(replica.url)
        replica.resume()
        assert await environment(replica.url)
        assert await replica.drain() == 7


async def test_one_that_does_not_start_says_why(stand_in: str) -> None:
    with pytest.raises(AssertionError, match="no such setting"):
        await ReplicaSet(1, dsn=DSN, settings={"PYTHONPATH": stand_in, "STAND_IN": "broken"}).__aenter__()


async def test_logs_are_printed_when_a_test_fails(stand_in: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ReplicaSet(1, dsn=DSN, settings={"PYTHONPATH": stand_in}):
            raise ZeroDivisionError
    assert "serving" in capsys.readouterr().out


async def test_replicas_die_with_a_testbed_that_is_killed(stand_in: str) -> None:
    command = [sys.executable, "-c", OWNER, DSN, stand_in]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(await asyncio.to_thread(owner.stdout.readline))
        os.kill(owner.pid, signal.SIGKILL)
    try:
        await eventually(lambda: gone(pid), what="the orphan's end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
