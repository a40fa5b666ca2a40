"""The pages in docs/machines/ say what the machines say: `make machines` writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratus.domain.machine import Machine
from stratus.domain.machines import ALL_MACHINES
from stratus.domain.run import RUN, RunEvent, RunState
from testbed.machine_docs import FOLDER, moved_by, render


def stale(folder: Path) -> list[str]:
    """Names of pages that are missing, differ, or belong to no machine."""
    wanted = {f"{machine.name}.md": render(machine) for machine in ALL_MACHINES}
    present = {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def test_pages_are_fresh() -> None:
    assert not stale(FOLDER), "run `make machines`"


def test_a_stale_a_missing_and_a_left_over_page_are_found(tmp_path: Path) -> None:
    for machine in ALL_MACHINES:
        (tmp_path / f"{machine.name}.md").write_text(render(machine), encoding="utf-8")
    assert stale(tmp_path) == []
    changed = replace(RUN, moves={**RUN.moves, (RunState.WAITING, RunEvent.FAIL): RunState.FAILED})
    (tmp_path / "run.md").write_text(render(changed), encoding="utf-8")
    (tmp_path / "inbox.md").unlink()
    (tmp_path / "gone.md").write_text("", encoding="utf-8")
    assert stale(tmp_path) == ["gone.md", "inbox.md", "run.md"]


@pytest.mark.parametrize("machine", ALL_MACHINES, ids=lambda machine: str(machine.name))
def test_every_open_state_says_who_moves_it_on(machine: Machine[Any, Any]) -> None:
    said = moved_by(machine)
    assert [str(state) for state in machine.states] == list(said)
    assert not [state for state, comment in said.items() if not comment and state not in machine.terminal()]
