"""Tool servers that are old, or that say what they should not: each is a failed result or a tool left out, never a crash."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stratus.agents.mcp_pool import tools_of
from stratus.agents.mcp_server import McpServer, ServerDown
from stratus.agents.mcp_tools import DESCRIPTION_CHARACTERS
from testbed.eventually import eventually
from tests.contract.mcp_rig import Rig, mcp_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with mcp_rig(tmp_path) as made:
        yield made


def old(rig: Rig, *arguments: str, **fields: Any) -> McpServer:
    return rig.server(
        command=[sys.executable, "-m", "testbed.mcp_old_server", *arguments], time_limit_seconds=1.0, **fields
    )


async def test_offers_that_no_model_can_take_are_left_out(rig: Rig) -> None:
    server = old(rig)
    await server.tools()
    tools = {tool.own_name: tool.spec for tool in tools_of(server)}
    assert set(tools) & {"no-schema", "huge"} == set()
    assert {"good", "with.dots and spaces", "elsewhere"} <= set(tools)
    assert tools["good"].description == "d" * DESCRIPTION_CHARACTERS + " [cut]"
    assert tools["with.dots and spaces"].name.startswith("mcp__box__with_dots_and_spaces-")
    assert tools["with.dots and spaces"].policy_name == "mcp:box/with.dots and spaces"


async def test_an_invalid_list_is_said(rig: Rig) -> None:
    with pytest.raises(ServerDown, match=r"box did not list its tools \(ValidationError.*inputSchema.type"):
        await old(rig, "broken").tools()


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("malformed", "did not end within 1 seconds and was abandoned"),
        ("wrong-shape", "mcp__box__wrong-shape failed: ValidationError"),
        ("error", "mcp__box__error failed: the disk is full"),
        ("promised", "mcp__box__promised failed: RuntimeError"),
    ],
)
async def test_a_bad_answer_is_a_failed_result(rig: Rig, tool: str, said: str) -> None:
    outcome = await rig.run(old(rig), tool)
    assert outcome.failed
    assert said in outcome.content


async def test_a_reference_out_of_the_schema_is_not_followed(rig: Rig) -> None:
    asked = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        server = old(rig, env={"ELSEWHERE": f"http://127.0.0.1:{elsewhere.server_port}/schema"})
        outcome = await rig.run(server, "elsewhere", '{"a": 1}')
        elsewhere.shutdown()
    assert asked == []
    assert outcome.failed
    assert "Its parameters are described wrongly, so they cannot be checked" in outcome.content


async def test_what_is_no_text_is_named(rig: Rig) -> None:
    assert (await rig.run(old(rig), "picture")).content == "picture\n[image image/png, not shown]"


async def test_an_old_server_tells_of_a_changed_list_too(rig: Rig) -> None:
    server = old(rig)
    assert (await rig.run(server, "grow")).content == "grow"

    async def grown() -> bool:
        return "grown" in [offer.name for offer in await server.tools()]

    await eventually(grown, 10, "the new tool is known")
