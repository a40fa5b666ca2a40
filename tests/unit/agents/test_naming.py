"""Names of tool servers' tools: a provider takes each, no two are alike, every replica makes the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratus.agents.naming import exact_mcp_tool, may_name_tool_of, mcp_policy_name, mcp_tool_name
from stratus.domain.agent import TOOL_NAME

SERVERS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)
TOOLS = st.text(min_size=1, max_size=100) | st.from_regex(r"[a-zA-Z0-9_./-]{1,80}", fullmatch=True)


def test_a_name_that_fits_is_kept() -> None:
    assert mcp_tool_name("files", "read_text") == "mcp__files__read_text"
    assert mcp_policy_name("files", "read_text") == "mcp:files/read_text"


def test_a_name_that_does_not_fit_is_the_same_everywhere() -> None:
    assert mcp_tool_name("files", "read.text") == "mcp__files__read_text-dbad652031"


@given(SERVERS, TOOLS)
def test_every_provider_takes_it(server: str, tool: str) -> None:
    assert TOOL_NAME.fullmatch(mcp_tool_name(server, tool))


@given(SERVERS, TOOLS, SERVERS, TOOLS)
def test_different_tools_have_different_names(server: str, tool: str, other: str, other_tool: str) -> None:
    alike = mcp_tool_name(server, tool) == mcp_tool_name(other, other_tool)
    assert alike == ((server, tool) == (other, other_tool))


def test_similar_names_stay_apart() -> None:
    assert len({mcp_tool_name("a", tool) for tool in ("b.c", "b_c", "b/c", "b c", "b" * 80, "b" * 81)}) == 6


def test_a_pattern_may_name_a_tool_of_a_server() -> None:
    for pattern in ("mcp:files/*", "mcp:files/read", "mcp:*", "*", "m?p:files/x", "mcp:f*"):
        assert may_name_tool_of(pattern, "files"), pattern
    for pattern in ("mcp:other/*", "mcp:filesystem/*", "notify", "mcp:files", "mcp:g*"):
        assert not may_name_tool_of(pattern, "files"), pattern


def test_an_exact_name_is_recognised() -> None:
    assert exact_mcp_tool("mcp:files/read", "files") == "read"
    for pattern in ("mcp:files/*", "mcp:files/", "mcp:other/read", "notify"):
        assert exact_mcp_tool(pattern, "files") is None
