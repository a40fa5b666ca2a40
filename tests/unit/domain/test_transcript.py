"""A run's view, in Python and in the console's JavaScript: both give what the shared vectors expect."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from functools import reduce
from typing import Any

import pytest

from stratus.domain.event import KINDS
from stratus.domain.transcript import TurnView, fold
from stratus.http.console import FOLDER
from tests.view_vectors import VIEW, Vector, vectors

VECTORS = vectors()
NODE = """
import { readFileSync } from 'node:fs';
const [module, vectors] = JSON.parse(readFileSync(0, 'utf8'));
const turn = await import(`data:text/javascript;base64,${module}`);
const view = %s;
console.log(JSON.stringify(vectors.map(({ events }) => view(events, turn))));
"""
NO_STEP = {"usage", "session.renamed", "session.archived", "delivery.sent", "delivery.unknown"}


def seen(events: list[dict[str, Any]]) -> dict[str, Any]:
    return reduce(fold, events, TurnView()).plain()


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS.keys())
def test_the_view_is_as_expected(vector: Vector) -> None:
    assert seen(vector["events"]) == vector["view"]


def test_the_console_s_module_gives_the_same_views() -> None:
    node = shutil.which("node")
    if node is None and "CI" not in os.environ:
        pytest.skip("Node.js is not installed; tests/e2e asks the same of the browser")
    assert node is not None
    module = base64.b64encode((FOLDER / "turn.js").read_bytes()).decode()
    given = json.dumps([module, list(VECTORS.values())])
    ran = subprocess.run(
        [node, "--input-type=module", "-e", NODE % VIEW], input=given, capture_output=True, text=True, timeout=60
    )
    assert ran.stderr == ""
    views = json.loads(ran.stdout)
    assert dict(zip(VECTORS, views, strict=True)) == {name: one["view"] for name, one in VECTORS.items()}


def test_the_vectors_have_every_kind_that_the_view_knows() -> None:
    told = {event["kind"] for one in VECTORS.values() for event in one["events"]}
    assert KINDS - told - NO_STEP == {"run.interrupted"}


def test_a_view_says_whether_it_has_ended_and_what_it_asks() -> None:
    asks = {"kind": "approval.requested", "id": "a", "call_id": "c", "name": "pay", "args": "{}"}
    view = reduce(fold, [{"kind": "run.started"}, asks], TurnView())
    assert (view.ended, [one.approval for one in view.pending()]) == (False, ["a"])
    after = fold(view, {"kind": "run.merged", "into": "r2"})
    assert (after.ended, after.pending(), after.into) == (True, [], "r2")
