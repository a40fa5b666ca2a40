"""Each import contract can fail: a tiny copy of the package tree, one forbidden import, the real `.importlinter`."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

CONFIG = ROOT / ".importlinter"
STRATUS = (
    "cli replica http embedded ingress execution delivery observe agents store domain channel effects telemetry config"
).split()
FORBIDDEN = [
    ("layers", "stratus/domain/a.py", "import stratus.store"),
    ("layers", "stratus/store/a.py", "import stratus.agents"),
    ("layers", "stratus/agents/a.py", "import stratus.ingress"),
    ("layers", "stratus/ingress/a.py", "import stratus.delivery"),
    ("layers", "stratus/execution/a.py", "from stratus.observe import tail"),
    ("layers", "stratus/delivery/a.py", "import stratus.execution"),
    ("layers", "stratus/observe/a.py", "import stratus.http"),
    ("layers", "stratus/http/a.py", "import stratus.replica"),
    ("layers", "stratus/replica/a.py", "import stratus.cli"),
    ("layers", "stratus/effects/a.py", "import stratus.config"),
    ("layers", "stratus/telemetry/a.py", "import stratus.domain"),
    ("layers", "stratus/newcomer/__init__.py", ""),
    ("domain", "stratus/domain/a.py", "import asyncio"),
    ("domain", "stratus/domain/a.py", "import asyncpg"),
    ("domain", "stratus/domain/a.py", "from stratus.effects import Clock"),
    ("channel", "stratus/channel/a.py", "import httpx"),
    ("channel", "stratus/channel/a.py", "import stratus.domain"),
    ("adapters", "adapters/a.py", "import stratus.store"),
    ("adapters", "adapters/a.py", "from stratus.domain import machine"),
    ("adapters", "adapters/a.py", "import testbed"),
    ("product", "stratus/cli/a.py", "import testbed"),
    ("product", "stratus/replica/a.py", "import adapters"),
    ("embedded", "stratus/embedded/a.py", "import stratus.store"),
    ("embedded", "stratus/embedded/a.py", "import stratus.domain.machine"),
    ("embedded-users", "stratus/http/a.py", "import stratus.embedded"),
]
ALLOWED = {
    "stratus/cli/a.py": "import stratus.replica, stratus.embedded, stratus.store",
    "stratus/replica/a.py": "import stratus.http, stratus.ingress, stratus.delivery, stratus.config",
    "stratus/execution/a.py": "import stratus.agents, stratus.store, stratus.effects",
    "stratus/domain/a.py": "import uuid\nfrom stratus.channel import values",
    "stratus/channel/suite.py": "import asyncio, httpx",
    "stratus/embedded/a.py": "import asyncpg\nfrom stratus.domain.errors import StratusError",
    "adapters/a.py": "import httpx\nimport stratus.channel\nfrom stratus.channel.values import Op",
}


def _contracts() -> list[str]:
    config = configparser.ConfigParser()
    config.read(CONFIG)
    return [section.rpartition(":")[2] for section in config.sections() if ":contract:" in section]


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n", encoding="utf-8")


def _lint(root: Path, extra: Mapping[str, str], *contract: str) -> subprocess.CompletedProcess[str]:
    packages = ["stratus", "adapters", "testbed", *(f"stratus/{name}" for name in STRATUS)]
    _write(root, {f"{package}/__init__.py": "" for package in packages})
    _write(root, dict.fromkeys(("stratus/__main__.py", "stratus/domain/errors.py", "stratus/domain/machine.py"), ""))
    _write(root, {"stratus/channel/values.py": "", ".importlinter": CONFIG.read_text(encoding="utf-8"), **extra})
    code = "import sys; from importlinter.cli import lint_imports; sys.path.insert(0, '.'); sys.exit(lint_imports("
    code += f"no_cache=True, no_logo=True, limit_to_contracts={contract!r}))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_a_tree_with_only_allowed_imports_passes(tmp_path: Path) -> None:
    done = _lint(tmp_path, ALLOWED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("contract", "file", "line"), FORBIDDEN)
def test_a_forbidden_import_is_found(tmp_path: Path, contract: str, file: str, line: str) -> None:
    done = _lint(tmp_path, {file: line}, contract)
    assert done.returncode == 1, done.stdout + done.stderr
    assert " BROKEN" in done.stdout or "newcomer" in done.stdout, done.stdout + done.stderr


def test_every_contract_has_a_forbidden_import() -> None:
    assert set(_contracts()) == {contract for contract, _, _ in FORBIDDEN}


def test_migrations_do_not_import_what_may_change_under_them() -> None:
    assert not _unfrozen(ROOT / "migrations")


def test_a_migration_that_imports_what_may_change_is_found(tmp_path: Path) -> None:
    _write(
        tmp_path, {"env.py": "from stratus.store.schema import metadata", "versions/0001.py": "from alembic import op"}
    )
    assert not _unfrozen(tmp_path)
    _write(tmp_path, {"env.py": "import stratus.domain.run", "versions/0002.py": "from stratus.store import schema"})
    assert _unfrozen(tmp_path) == ["env.py", "versions/0002.py"]


def _unfrozen(folder: Path) -> list[str]:
    """Files that import stratus.domain, and revisions that import anything of ours: they mean the same for ever."""
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*.py"))
        for wanted in [r"stratus\b" if path.parent.name == "versions" else r"stratus\.domain\b"]
        if re.search(rf"^\s*(from|import)\s+{wanted}", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
