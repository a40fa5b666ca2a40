"""Runs the `stratus` command as people and programs do: a process of its own, its exit code, and what it printed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.replicas import ROOT, SECRET_KEY

SECONDS = 60


@dataclass(frozen=True)
class Done:
    """An ended command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed as JSON, having succeeded."""
        assert self.code == 0, self
        return json.loads(self.out)

    def refused(self) -> str:
        """Its one line on stderr: what every expected fault looks like."""
        assert self.code == 1, self
        [line] = self.err.splitlines()
        assert line.startswith("stratus: "), line
        return line.removeprefix("stratus: ")


class Command:
    """`stratus` with the settings of one test. An empty working folder keeps a developer's own `.env` out."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("STRATUS_", "OTEL_"))}
        self.environment = {**inherited, "PYTHONPATH": str(ROOT), "STRATUS_HOME": str(folder / "home"), **settings}

    @classmethod
    def on(cls, dsn: str, folder: Path, **settings: str) -> Command:
        """On a database."""
        return cls(folder, STRATUS_DATABASE_URL=dsn, STRATUS_SECRET_KEY=SECRET_KEY, **settings)

    async def start(
        self,
        *arguments: str,
        settings: Mapping[str, str] | None = None,
        stdin: int = asyncio.subprocess.PIPE,
        stdout: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "stratus",
            *arguments,
            cwd=self.folder,
            env={**self.environment, **(settings or {})},
            stdin=stdin,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
        )

    async def __call__(self, *arguments: str, said: str = "", settings: Mapping[str, str] | None = None) -> Done:
        """Run to the end; `said` is its stdin."""
        process = await self.start(*arguments, settings=settings)
        return await ended(process, said)


async def ended(process: asyncio.subprocess.Process, said: str = "") -> Done:
    """Wait for a command's end. Kills it when that takes too long."""
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate(said.encode() if process.stdin else None)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return Done(process.returncode, (out or b"").decode(), err.decode())
