"""`stratus up` from nothing: a database in the box, a first agent, a link that signs in, edits that are followed, a clean end."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from testbed.eventually import eventually
from testbed.sockets import ReservedPort
from tests.system.commands import Command, ended

LINK = re.compile(r"(http://\S+)/ui/#signin=(\S+)")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that PostgreSQL's account can enter, unlike pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="stratus-up-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@asynccontextmanager
async def _running(stratus: Command) -> AsyncIterator[tuple[asyncio.subprocess.Process, re.Match[str]]]:
    process = await stratus.start("up")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while (line := (await process.stdout.readline()).decode()) and not (link := LINK.search(line)):
                pass
        assert line, await ended(process)
        assert link is not None
        yield process, link
    finally:
        if process.returncode is None:
            process.terminate()
            await ended(process)


async def _ready(url: str) -> None:
    async def ready() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.get(f"{url}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    await eventually(ready, 20, "up is ready")


async def test_from_nothing_to_an_answer_and_a_clean_end(folder: Path) -> None:
    with ReservedPort() as port:
        stratus = Command(folder, STRATUS_BIND=f"127.0.0.1:{port.number}")
        async with _running(stratus) as (process, link):
            url, code = link.groups()
            await _ready(url)
            async with httpx.AsyncClient(base_url=url, trust_env=False) as browser:
                assert (await browser.post("/auth/signin", json={"code": code})).status_code == 200
                assert (await browser.get("/auth/me")).json()["role"] == "owner"
                assert (await browser.post("/auth/signin", json={"code": code})).status_code == 401
            assert "You said: hello" in (await stratus("chat", "--once", "hello")).out
            assert (await stratus("doctor", "--json")).json()["ok"] is True
            await _edits_are_followed(stratus)
            process.terminate()
            assert (await ended(process)).code == 0
        key = (folder / "home/secret.key").read_text()
        async with _running(stratus) as (process, link):
            [agent] = (await stratus("agents", "list", "--json")).json()
            assert (agent["revision"], agent["definition"]["name"]) == (2, "Other")
            process.terminate()
            assert (await ended(process)).code == 0
        assert (folder / "home/secret.key").read_text() == key


async def _edits_are_followed(stratus: Command) -> None:
    agents = stratus.folder / "home/agents"
    (agents / "broken.md").write_text("---\nid: BROKEN\n---\n")
    (agents / "demo.md").write_text((agents / "demo.md").read_text().replace("name: Demo", "name: Other"))

    async def followed() -> bool:
        listed = (await stratus("agents", "list", "--json")).json()
        return [one["definition"]["name"] for one in listed] == ["Other"]

    await eventually(followed, 30, "the edit in the database, although another file is broken")


async def test_a_port_in_use_is_said_in_one_line(folder: Path) -> None:
    with ReservedPort() as port:
        stratus = Command(folder, STRATUS_BIND=f"127.0.0.1:{port.number}")
        async with _running(stratus) as (_, link):
            await _ready(link[1])
            second = await stratus("serve")
    assert second.code == 1 and "Traceback" not in second.err
    assert f"STRATUS_BIND: 127.0.0.1:{port.number} cannot be used" in second.err.splitlines()[-1]
