"""An adapter that is no part of Stratus: built, installed and run as a stranger's package, in a fleet where not every replica has it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stratus.store import channel
from testbed.replicas import ROOT, eventually
from testbed.stage import Stage, process_in

EXAMPLE = ROOT / "examples" / "stratus-adapter-pigeon"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, copied, made into a wheel and installed into a directory of its own, all without a network."""
    folder = tmp_path_factory.mktemp("stranger")
    source, wheels, target = folder / "source", folder / "wheels", folder / "installed"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    wheels.mkdir()
    build = f"from hatchling.build import build_wheel; build_wheel({str(wheels)!r})"
    _run([sys.executable, "-c", build], source)
    [wheel] = wheels.glob("*.whl")
    assert [name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("stratus_adapter_pigeon")] == []
    install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel)]
    _run([sys.executable, *install], folder)
    return target


def _run(command: list[str], folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass_outside_of_the_repository(package: Path) -> None:
    tests = package.parent / "source"
    said = _run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"], tests, PYTHONPATH=str(package)
    )
    assert " passed" in said and "failed" not in said


async def test_the_replica_that_has_it_runs_its_channels_and_the_other_never_tries(
    stage: Stage, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE / "tests"))
    server = importlib.import_module("pigeon")

    await stage.add_agent()
    async with server.Pigeon() as pigeon, stage.replicas(2, roles=[{}, _with(package)]) as (without, having):
        await having.kill()
        options = {"host": "127.0.0.1", "port": pigeon.port, "wait": 1, "access": {"mode": "open"}}
        row = await stage.install("pigeon", "loft", options, {"token": server.TOKEN})
        await stage.add_channel()

        await _health_is(stage, row.id, "failed", "no_adapter")
        assert "pigeon" in str((await channel.get(stage.db, "loft")).last_error)
        await stage.say("hello")
        await stage.answered(1)  # its other channels go on

        await having.restart()
        await _health_is(stage, row.id, "connected", "")
        await pigeon.inject("slow 1 coo")
        await eventually(lambda: pigeon.messages, 20, "Pigeon's answer")
        [message] = pigeon.messages.values()
        assert message["text"].startswith("You said: coo") and message["chat"] == "loft"

        token = "SELECT runtime_token, runtime_replica FROM channel WHERE id = $1"
        [owned] = await stage.rows(token, row.id)
        assert process_in(owned["runtime_replica"]) == having.pid
        assert owned["runtime_token"] == 1, "the replica without the adapter has taken the channel"
        await stage.settled(2)
        assert without.running()


def _with(package: Path) -> Mapping[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}


async def _health_is(stage: Stage, channel_id: int, state: str, cause: str) -> None:
    async def told() -> bool:
        health: dict[str, Any] = {row.id: row for row in await channel.listing(stage.db)}[channel_id].health  # type: ignore[assignment]
        return (health.get("state"), health.get("cause")) == (state, cause)

    await eventually(told, 30, f"channel {channel_id} is {state} {cause}")
