"""What an agent needs of a replica, and what it declares of its tools."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratus.domain.agent import AgentDefinition, ToolEffect


def agent(**fields: Any) -> AgentDefinition:
    return AgentDefinition(**{"id": "a", "model": "openai:gpt-x", **fields})


def test_needs_name_provider_version_exact_tools_and_transports() -> None:
    assert agent().needs() == ["agent:v1", "provider:openai"]
    blair = agent(
        tools=["send_file", "delegate", "web_*", "mcp:files/read", "send_file", "no tool"],
        mcp={"files": {"command": ["x"]}, "more": {"command": ["y"]}, "web": {"url": "https://x"}, "odd": 3},
    )
    assert blair.needs() == ["agent:v1", "provider:openai", "tool:send_file", "mcp:http", "mcp:stdio"]


@given(st.lists(st.text(max_size=8), max_size=4))
def test_no_need_contains_white_space(tools: list[str]) -> None:
    for need in agent(tools=tools).needs():
        assert need.split() == [need]


@pytest.mark.parametrize(
    ("name", "effect"), [("pay", "read"), ("pay_all", "once"), ("play", "idempotent"), ("other", None)]
)
def test_an_exact_name_counts_first_and_of_several_patterns_the_most_cautious(
    name: str, effect: ToolEffect | None
) -> None:
    declared = {"p*": "idempotent", "pay*": "once", "pa*": "read", "pay": "read"}
    for order in (declared, dict(reversed(declared.items()))):
        assert agent(effects=order).effect_of(name) == effect
