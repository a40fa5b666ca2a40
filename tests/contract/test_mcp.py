"""Tool servers over stdio, as real processes: their tools, their limits, how they fail, and that none is left over."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stratus.agents.mcp_server import Moments, ServerDown
from stratus.agents.mcp_tools import McpTool
from stratus.agents.tools import SIZE_LIMIT_BYTES
from testbed.eventually import eventually
from testbed.processes import alive, parent
from tests.contract.mcp_rig import ROOT, Rig, mcp_rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with mcp_rig(tmp_path) as made:
        yield made


async def test_tools_are_called_and_shared_by_turns(rig: Rig) -> None:
    server = rig.server()
    outcome = await rig.run(server, "add", '{"a": 2, "b": 3}')
    assert (outcome.content, outcome.failed) == ("5", False)
    assert await asyncio.gather(*(rig.run(server, "add", f'{{"a": {n}, "b": 1}}') for n in range(3)))
    assert rig.server() is server
    assert len(rig.noted("server")) == 1


async def test_effects_come_from_the_hints_and_nothing_said_means_once(rig: Rig) -> None:
    server = rig.server()
    effects = {name: (await rig.tool(server, name)).spec.effect for name in ("add", "put", "die")}
    assert effects == {"add": "read", "put": "idempotent", "die": "once"}
    spec = (await rig.tool(server, "add")).spec
    assert (spec.name, spec.policy_name) == ("mcp__box__add", "mcp:box/add")


async def test_another_agent_and_another_configuration_get_another_server(rig: Rig) -> None:
    assert rig.server() is not rig.server(agent="other")
    assert rig.server() is not rig.server(env={"OTHER": "1"})


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("{", "Invalid JSON"),
        ("[1]", "They have to be an object."),
        ('{"a": "x", "b": 1}', "a: 'x' is not of type 'integer'"),
        ('{"a": 1}', "'b' is a required property"),
    ],
)
async def test_bad_arguments_are_a_failed_result_that_says_why(rig: Rig, args: str, said: str) -> None:
    outcome = await rig.run(rig.server(), "add", args)
    assert outcome.failed
    assert outcome.content.startswith("The arguments of mcp__box__add are not valid.")
    assert said in outcome.content


async def test_a_server_sees_nothing_of_the_replicas_environment(tmp_path: Path) -> None:
    secrets = {"STRATUS_SECRET_KEY": "k", "OPENAI_API_KEY": "k", "PATH": os.environ["PATH"], "GIVEN": "its own"}
    async with mcp_rig(tmp_path, environment=secrets) as rig:
        seen = json.loads((await rig.run(rig.server(env={"NAMED": "${GIVEN}"}), "environment")).content)
    assert seen["NAMED"] == "its own"
    assert set(seen) - {"LC_CTYPE"} == {"PATH", "NAMED", "PYTHONPATH", "MCP_LEDGER"}


async def test_a_variable_that_is_not_set_is_named(rig: Rig) -> None:
    with pytest.raises(ValueError, match="the environment variable NOT_THERE is not set on this replica"):
        rig.server(env={"A": "${NOT_THERE}"})


async def test_progress_is_told(rig: Rig) -> None:
    outcome = await rig.run(rig.server(time_limit_seconds=1.0), "hang")
    assert (outcome.content, outcome.failed) == ("mcp__box__hang did not end within 1 seconds and was abandoned.", True)
    assert rig.told == ["one of three"]


async def test_what_a_server_raises_is_a_failed_result(rig: Rig) -> None:
    outcome = await rig.run(rig.server(), "fail")
    assert outcome.failed
    assert "no such thing" in outcome.content


async def test_a_large_result_is_cut_with_a_note(rig: Rig) -> None:
    outcome = await rig.run(rig.server(), "much", f'{{"size": {SIZE_LIMIT_BYTES + 1}}}')
    assert not outcome.failed
    assert len(outcome.content.encode()) == SIZE_LIMIT_BYTES
    assert outcome.content.endswith(f"at most {SIZE_LIMIT_BYTES} are shown]")


async def test_a_huge_message_ends_the_server_and_is_a_failed_result(rig: Rig) -> None:
    server = rig.server()
    outcome = await rig.run(server, "much", f'{{"size": {17 * 1024 * 1024}}}')
    assert outcome.failed
    assert "sent a message of more than 16777216 bytes while it worked" in outcome.content
    await rig.all_gone()


async def test_noise_between_messages_is_passed_over(rig: Rig) -> None:
    assert (await rig.run(rig.server(), "lie")).content == "the truth"


async def test_a_server_that_dies_in_a_call_is_a_failed_result_and_is_started_again(rig: Rig) -> None:
    server = rig.server()
    outcome = await rig.run(server, "die")
    assert outcome.failed
    assert outcome.content == (
        "The tool server box ended with exit code 3 while it worked on the call; whether that took effect is not known."
    )
    assert (await rig.run(server, "add", '{"a": 1, "b": 1}')).content == "2"
    assert len(rig.noted("server")) == 2


async def test_one_that_keeps_dying_is_left_alone_for_longer_and_longer(rig: Rig) -> None:
    server = rig.server(command=[sys.executable, "-c", "raise SystemExit(4)"])
    said = []
    for _ in range(3):
        with pytest.raises(ServerDown) as down:
            await server.tools()
        said.append(str(down.value))
    with pytest.raises(ServerDown, match=r"box ended with exit code 4\. It is tried again in [34] seconds\."):
        await server.tools()
    assert set(said) == {"The tool server box ended with exit code 4."}


async def test_a_command_that_is_not_there_is_said(rig: Rig) -> None:
    with pytest.raises(ServerDown, match="cannot be started: its command was not found"):
        await rig.server(command=["no-such-program"]).tools()
    with pytest.raises(ServerDown, match="cannot be reached"):
        await rig.server(name="other", cwd="/no/such/folder").tools()


async def test_a_slow_start_does_not_hold_a_turn_up(tmp_path: Path) -> None:
    async with mcp_rig(tmp_path, Moments(wait=0.05)) as rig:
        server = rig.server()
        with pytest.raises(ServerDown, match="still starting"):
            await server.tools()

        async def listed() -> bool:
            try:
                return bool(await server.tools())
            except ServerDown:
                return False

        await eventually(listed, 20, "it has started meanwhile")
        assert len(rig.noted("server")) == 1


async def test_a_changed_list_is_asked_for_again(rig: Rig) -> None:
    server = rig.server()
    assert (await rig.run(server, "grow")).content == "grown"

    async def grown() -> bool:
        return "grown" in [offer.name for offer in await server.tools()]

    await eventually(grown, 10, "the new tool is known")


async def test_an_idle_server_is_ended_unless_a_turn_holds_it(tmp_path: Path) -> None:
    async with mcp_rig(tmp_path, Moments(idle=0.3)) as rig:
        server = rig.server()
        with server.held():
            await server.tools()
            [pid] = rig.noted("server")
            await asyncio.sleep(0.6)
            assert alive(pid), "held, though idle"
        await rig.all_gone()
        await eventually(lambda: rig.server() is not server, 10, "it is forgotten")


async def abandoned(rig: Rig, tool: McpTool, note: str) -> None:
    call = asyncio.create_task(rig.run(tool.server, tool.own_name))
    await rig.has_noted(note)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()


@pytest.mark.parametrize("prepare", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
@pytest.mark.parametrize("what", ["hang", "block"])
async def test_an_aborted_call_ends_the_whole_group(rig: Rig, what: str, prepare: str) -> None:
    server = rig.server()
    assert (await rig.run(server, "spawn", json.dumps({"prepare": prepare}))).content == "started"
    await rig.has_noted("child")
    await abandoned(rig, await rig.tool(server, what), what)
    await rig.all_gone()
    assert (await rig.run(server, "add", '{"a": 1, "b": 1}')).content == "2", "a new process serves the next call"


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_CHILD_SUBREAPER")
async def test_even_a_child_that_left_the_group_is_ended(rig: Rig) -> None:
    server = rig.server()
    await rig.run(server, "spawn", '{"prepare": "os.setsid(); os.fork() and os._exit(0)"}')
    await rig.has_noted("child")
    await abandoned(rig, await rig.tool(server, "hang"), "hang")
    await rig.all_gone()


async def test_an_aborted_call_leaves_other_calls_time(rig: Rig) -> None:
    server = rig.server()
    other = asyncio.create_task(rig.run(server, "hold", '{"seconds": 2}'))
    await rig.has_noted("hold")
    await abandoned(rig, await rig.tool(server, "hang"), "hang")
    assert (await rig.run(server, "add", '{"a": 1, "b": 1}')).content == "2"
    assert len(rig.noted("server")) == 2, "no new call went to the process with the abandoned one"
    assert (await other).content == "held"
    await eventually(lambda: not alive(rig.noted("server")[0]), 10, "then it is ended")


async def test_nothing_is_left_when_the_pool_ends(tmp_path: Path) -> None:
    async with mcp_rig(tmp_path) as rig:
        await rig.run(rig.server(), "spawn")
        await rig.has_noted("child")
    await rig.all_gone()


_REPLICA = """
import asyncio, pathlib, sys
from tests.contract.mcp_rig import mcp_rig
async def main():
    async with mcp_rig(pathlib.Path(sys.argv[1])) as rig:
        await rig.run(rig.server(), "spawn", sys.argv[2])
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("prepare", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
async def test_nothing_is_left_after_kill_9_of_the_replica(rig: Rig, tmp_path: Path, prepare: str) -> None:
    replica = subprocess.Popen(
        [sys.executable, "-c", _REPLICA, str(tmp_path), json.dumps({"prepare": prepare})], cwd=ROOT
    )
    try:
        await rig.has_noted("child")
        replica.send_signal(signal.SIGKILL)
        await rig.all_gone()
    finally:
        replica.kill()
        replica.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
async def test_a_server_does_not_outlive_its_guard(rig: Rig) -> None:
    await rig.server().tools()
    [pid] = rig.noted("server")
    os.kill(parent(pid), signal.SIGKILL)
    await rig.all_gone()
