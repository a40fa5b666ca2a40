"""Names of tools: what policies call the tool of a tool server, and what a model, which takes fewer signs, calls it."""

from __future__ import annotations

import hashlib
import re

from stratus.domain.agent import TOOL_NAME

_PREFIX = "mcp:"
_LENGTH_MAX = 64


def mcp_policy_name(server: str, tool: str) -> str:
    """Such as `mcp:files/read`."""
    return f"{_PREFIX}{server}/{tool}"


def mcp_tool_name(server: str, tool: str) -> str:
    """Such as `mcp__files__read`: the same on every replica, whatever else is there. Server names have no underscore, so two
    tools whose names fit stay apart; a name that does not fit gets a digest of itself.
    """
    name = f"mcp__{server}__{tool}"
    if TOOL_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:10]
    return f"{re.sub('[^a-zA-Z0-9_-]', '_', name)[: _LENGTH_MAX - len(digest) - 1]}-{digest}"


def exact_mcp_tool(pattern: str, server: str) -> str | None:
    """The tool that an exact `mcp:SERVER/TOOL` names; None for wildcards and for what is another server's."""
    tool = pattern.removeprefix(mcp_policy_name(server, ""))
    return tool if tool and tool != pattern and not set("*?[") & set(pattern) else None


def may_name_tool_of(pattern: str, server: str) -> bool:
    """Whether a pattern can match any tool of that server: as far as it is literal, it leads there."""
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    start = mcp_policy_name(server, "")
    return literal.startswith(start) or (literal != pattern and start.startswith(literal))
