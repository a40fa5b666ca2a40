"""Writes docs/machines/<name>.md from the tables in stratus.domain: `make machines`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stratus.domain.machine import Machine
from stratus.domain.machines import ALL_MACHINES

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "machines"


def render(machine: Machine[Any, Any]) -> str:
    """The page of one machine: its chart, and who moves each state on."""
    module = inspect.getmodule(machine.states)
    assert module is not None
    source = "/".join(module.__name__.split(".")) + ".py"
    lines = [
        f"# {machine.name.replace('_', ' ').capitalize()}",
        "",
        f"Generated from `{source}` by `make machines`; do not edit. {_kept(machine)}",
        "",
        "```mermaid",
        machine.mermaid().rstrip("\n"),
        "```",
        "",
        "| state | who moves it on | by |",
        "|---|---|---|",
        *(_row(machine, state, comment) for state, comment in moved_by(machine).items()),
        "",
    ]
    if machine.columns:
        lines += ["| column | is set exactly in |", "|---|---|"]
        lines += [f"| `{column}` | {_listed(states)} |" for column, states in sorted(machine.columns.items())]
    return "\n".join(lines) + "\n"


def _kept(machine: Machine[Any, Any]) -> str:
    if machine.table:
        return f"The rows are in the table `{machine.table}`."
    return "Its state is kept in no column: it follows from the run's messages, calls, approvals and children."


def moved_by(machine: Machine[Any, Any]) -> dict[str, str]:
    """State to the comment beside its enum member, in the order of the enum."""
    text = inspect.getsource(machine.states)
    lines = text.splitlines()
    body = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)).body
    return {
        str(node.value.value): lines[node.lineno - 1].partition("#")[2].strip()
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


def _row(machine: Machine[Any, Any], state: str, comment: str) -> str:
    if state in machine.terminal():
        return f"| `{state}` | nobody: it is final{f' ({comment})' if comment else ''} | |"
    return f"| `{state}` | {comment} | {_listed(event for old, event in machine.moves if old == state)} |"


def _listed(names: Iterable[object]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(str(name) for name in names))


def main() -> None:
    """Write every page and remove those whose machine is gone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for page in FOLDER.glob("*.md"):
        page.unlink()
    for machine in ALL_MACHINES:
        (FOLDER / f"{machine.name}.md").write_text(render(machine), encoding="utf-8")


if __name__ == "__main__":
    main()
