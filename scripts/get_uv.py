"""Puts `uv` into a folder with nothing but Python at hand: by pip in a venv, else by pip alone, else from its wheel.

A bare Debian has neither venv nor pip, and PEP 668 forbids pip to install for the user; the library always works.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

INDEX = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple"


def by_venv(folder: Path) -> None:
    """The usual way; fails where ensurepip is packaged apart (Debian's python3-venv)."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "uv"], check=True)


def by_pip(folder: Path) -> None:
    """pip without a venv; `--target` is exempt from PEP 668."""
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "uv"], check=True)


def by_wheel(folder: Path) -> None:
    """The newest wheel of this platform, from the index's JSON form (PEP 691), its hash checked."""
    page = f"{INDEX.rstrip('/')}/uv/"
    request = urllib.request.Request(page, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = [file for file in json.load(answer)["files"] if _fits(file["filename"]) and not file.get("yanked")]
    if not files:
        raise LookupError(f"no wheel of uv for {platform.system()} {platform.machine()}")
    file = max(files, key=_version)
    with urllib.request.urlopen(urllib.parse.urljoin(page, file["url"]), timeout=120) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != file["hashes"]["sha256"]:
        raise LookupError("the wheel of uv does not have the hash that the index names")
    program = folder / "bin" / "uv"
    program.parent.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
        program.write_bytes(wheel.read(member))
    program.chmod(0o755)


def _fits(name: str) -> bool:
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if platform.system() == "Darwin":
        return "-macosx_" in name and name.endswith(f"_{platform.machine()}.whl")
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    return libc in name and name.endswith(f"_{machine}.whl")


def _version(file: dict[str, Any]) -> tuple[int, ...]:
    parts = str(file["filename"]).split("-")[1].split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (-1,)


def main() -> int:
    """Try each way until `FOLDER/bin/uv` runs."""
    folder = Path(sys.argv[1])
    for way in (by_venv, by_pip, by_wheel):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            way(folder)
            subprocess.run([str(folder / "bin" / "uv"), "--version"], check=True)
        except (OSError, subprocess.CalledProcessError, LookupError, ValueError) as error:
            print(f"uv {way.__name__.replace('_', ' ')}: {error}", file=sys.stderr)
            continue
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        return 0
    print("could not get uv; install it by hand: https://docs.astral.sh/uv/", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
