"""A tool in a real replica that runs hand-written SQL gets the rows of the agent whose turn it is, and no others."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.eventually import eventually
from testbed.postgres import ROOT
from testbed.stage import Stage
from tests.store.world import new_run, queue

TOOL = '''
"""A tool that asks the database whatever it is told to ask."""

from stratus.agents.tools import ToolContext, tool


@tool(effect="read")
async def ask(sql: str, context: ToolContext) -> list[dict]:
    """Run SQL."""
    return await context.rows.fetch(sql)
'''
FINISHED = "SELECT count(*) FROM agent_run WHERE state = 'completed'"
OUTCOMES = "SELECT call_id, outcome ->> 'content' AS content, state FROM tool_call ORDER BY step, ordinal"
EVERYTHING = "SELECT s.id, s.agent_id, m.parts FROM message m JOIN session s ON s.id = m.session_id"
ESCAPES = [
    "SELECT set_config('role', 'none', true), (SELECT string_agg(parts::text, '') FROM message)",
    "SELECT set_config('stratus.agent', 'bravo', true), (SELECT string_agg(parts::text, '') FROM message)",
    "SELECT definition FROM agent",
    "SELECT credentials FROM channel",
]


def installed(folder: Path) -> dict[str, str]:
    """The tool as an installed distribution with its entry point, and the setting that puts it on a replica's path."""
    (folder / "askdb.py").write_text(TOOL)
    info = folder / "askdb-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: askdb\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stratus.tools]\nask = askdb:ask\n")
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


async def test_a_tools_hand_written_query_gets_its_own_agents_rows_only(stage: Stage, tmp_path: Path) -> None:
    await stage.add_agent("bravo")
    await stage.add_agent("alpha", model="fake", tools=["ask"])
    calls = [{"name": "ask", "id": f"c{n}", "args": {"sql": sql}} for n, sql in enumerate([EVERYTHING, *ESCAPES])]
    stage.model.script({"tools": calls}, {"text": "done"}, match="look around")
    async with stage.replicas(1, settings=installed(tmp_path)):
        await queue(stage.db, new_run("sb", "the code is 4711", agent="bravo"))
        await eventually(lambda: finished_are(stage, 1), timeout=30, what="bravo has answered")
        await queue(stage.db, new_run("sa", "look around", agent="alpha"))
        await eventually(lambda: finished_are(stage, 2), timeout=30, what="alpha has answered")
    told = await stage.rows(OUTCOMES)
    assert [row["state"] for row in told] == ["done", "failed", "done", "failed", "failed"]
    assert {(row["id"], row["agent_id"]) for row in json.loads(told[0]["content"])} == {("sa", "alpha")}
    assert "look around" in told[0]["content"]
    assert json.loads(told[2]["content"]) == [{"set_config": "bravo", "string_agg": None}]
    assert "4711" not in "".join(row["content"] for row in told)


async def finished_are(stage: Stage, count: int) -> bool:
    return bool(await stage.value(FINISHED) == count)
