"""What tests ask of processes that are not theirs, by way of `ps`, which every Unix has."""

from __future__ import annotations

import subprocess


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    state = _ps("stat", pid)
    return bool(state) and not state.startswith("Z")


def parent(pid: int) -> int:
    """The process that started it, or has inherited it."""
    return int(_ps("ppid", pid))


def _ps(column: str, pid: int) -> str:
    asked = ["ps", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
