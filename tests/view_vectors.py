"""The vectors that hold the two reducers of a run's view to the same behaviour: events in, expected view out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("vectors")
# JavaScript that makes of a turn what the vectors expect.
VIEW = """(events, { newTurn, step }) => {
    const turn = events.reduce(step, newTurn('r', 0, null));
    const { state, attempt, asked, into, error, waits, blocks } = turn;
    return { state, attempt, asked: asked?.text ?? null, into, error, waits, blocks };
}"""

Vector = dict[str, Any]


def vectors() -> dict[str, Vector]:
    """Each with what it is about, its events, and its view."""
    found = [(path, one) for path in sorted(FOLDER.glob("*.json")) for one in json.loads(path.read_text())]
    return {f"{path.stem}: {one['about']}": one for path, one in found}
