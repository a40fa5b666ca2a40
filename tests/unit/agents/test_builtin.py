"""The built-in tools: the time in a zone, and arithmetic that cannot be made to do anything else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from stratus.agents.builtin import calculate, current_time, current_time_tool
from stratus.agents.tools import ToolContext
from stratus.effects import Clock
from tests.unit.agents.rows import NO_ROWS

CONTEXT = ToolContext(session_id="s", run=UUID(int=7), call_id="c1", agent_id="a", rows=NO_ROWS)


class Noon(Clock):
    def now(self) -> datetime:
        return datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("{}", "2026-01-02T12:00:00+00:00 (Friday, UTC)"),
        ('{"zone": "Asia/Tokyo"}', "2026-01-02T21:00:00+09:00 (Friday, Asia/Tokyo)"),
    ],
)
async def test_the_time_in_a_zone(args: str, said: str) -> None:
    outcome = await current_time_tool(Noon()).run(args, CONTEXT)
    assert (outcome.content, outcome.failed) == (said, False)


@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "/etc/passwd", "", "Europe", "a\0b"])
async def test_an_unknown_zone_is_a_failed_result(zone: str) -> None:
    outcome = await current_time.run(json.dumps({"zone": zone}), CONTEXT)
    assert outcome.failed
    assert "is not a time zone that is known here" in outcome.content


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        (" (2 + 3) * -4 ", "-20"),
        ("7 / 2", "3.5"),
        ("7 // 2 + 7 % 4", "6"),
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("sqrt(16) + abs(-1)", "5.0"),
        ("round(10 / 3, 2)", "3.33"),
        ("max(1, 2, min(9, 8))", "8"),
        ("round(sin(pi / 2))", "1"),
    ],
)
async def test_calculates(expression: str, value: str) -> None:
    outcome = await calculate.run(json.dumps({"expression": expression}), CONTEXT)
    assert (outcome.content, outcome.failed) == (value, False)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')", "().__class__", "x", "'a' * 3", "True + 1", "[1] * 9", "1 if 1 else 2", "lambda: 1",
        "sqrt(x=4)", "open('f')", "1 +", "", "(" * 250, "9 ** 9 ** 9", "2 ** 100000", "(-8) ** 0.5", "1 / 0",
        "1e400 * 0 + 10 ** 400 / 3", "sqrt(-1)", "1" * 301, "1j", "round(1, 2, 3)", "a" * 300,
    ],
)  # fmt: skip
async def test_refuses_all_else(expression: str) -> None:
    outcome = await calculate.run(json.dumps({"expression": expression}), CONTEXT)
    assert outcome.failed, outcome.content
