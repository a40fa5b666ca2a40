"""`domain` and `channel` read no clock, no luck and no outside, and say the same bytes in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tidy.purity import impurities
from tests.tidy.tree import ROOT, Source, sources

OWN = {"stratus/domain": ("stratus.domain", "stratus.channel"), "stratus/channel": ("stratus.channel",)}

# The registry looks up installed adapters, the one thing that channel asks of its surroundings; the suite is a test.
_SUITE = ("suite", "suite_receiving", "suite_rig", "suite_sending")
ASKS_OUTSIDE = {"stratus/channel/registry.py", *(f"stratus/channel/{name}.py" for name in _SUITE)}

DERIVED = """
from stratus.domain.machines import MACHINES
from stratus.store.ddl import statements
from testbed.machine_docs import render
for machine in MACHINES:
    print(render(machine), machine.check_states(), machine.check_columns())
    print([machine.sources(event) for _, event in machine.moves])
for statement in statements():
    print(statement)
"""


@pytest.mark.parametrize("folder", OWN)
def test_pure_packages_are_pure(folder: str) -> None:
    pure = [source for source in sources() if source.under(folder) and source.path not in ASKS_OUTSIDE]
    assert pure
    found = [finding for source in pure for finding in impurities(source, OWN[folder])]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os.path",
        "from asyncio import Event",
        "from stratus.effects import Clock",
        "from stratus.channels import x",
        "from . import x",
        "from uuid import uuid4",
        "x = field(default_factory=datetime.now)",
        "x = uuid.uuid4",
        "x = open('a')",
        "x = hash('a')",
        "async def f(): await g()",
    ],
)
def test_an_impure_line_is_found(line: str) -> None:
    assert len(list(impurities(Source("stratus/domain/a.py", line), OWN["stratus/domain"]))) == 1


def test_a_pure_line_passes() -> None:
    text = "from uuid import UUID\nfrom stratus.channel import Op\nimport re\nx = re.compile('a')\n"
    assert not list(impurities(Source("stratus/domain/a.py", text), OWN["stratus/domain"]))


def _said(code: str, hash_seed: int) -> bytes:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    return done.stdout


def test_what_is_derived_is_the_same_in_every_process() -> None:
    said = _said(DERIVED, 1)
    assert b"stateDiagram-v2" in said
    assert said == _said(DERIVED, 2)


def test_an_unordered_derivation_would_be_seen() -> None:
    code = "print(*{f'state{n}' for n in range(30)})"
    assert _said(code, 1) != _said(code, 2)
