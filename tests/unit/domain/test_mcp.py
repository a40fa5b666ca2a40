"""What may be written of a tool server, and that secrets are named and never written."""

from __future__ import annotations

from typing import Any

import pytest

from stratus.domain.mcp import CommandServer, UrlServer, mcp_servers, resolved


def test_both_kinds_are_read() -> None:
    assert mcp_servers(
        {
            "files": {"command": ["uvx", "x"], "env": {"LEVEL": "1", "X_TOKEN": "${MINE}"}, "cwd": "/data"},
            "web": {"url": "https://x.org/mcp", "headers": {"Authorization": "Bearer ${T}"}, "time_limit_seconds": 300},
        }
    ) == {
        "files": CommandServer(command=["uvx", "x"], env={"LEVEL": "1", "X_TOKEN": "${MINE}"}, cwd="/data"),
        "web": UrlServer(url="https://x.org/mcp", headers={"Authorization": "Bearer ${T}"}, time_limit_seconds=300),
    }


@pytest.mark.parametrize(
    ("name", "entry", "said"),
    [
        ("f", {"command": ["a", "--key=${KEY}"]}, "mcp.f.command: other users of the machine can read a command"),
        ("f", {"command": []}, "mcp.f.command: names no program"),
        ("f", {"command": "a b"}, "mcp.f.command"),
        ("f", {"command": ["a"], "env": {"API_KEY": "sk-1"}}, "API_KEY looks like a secret: write ${VARIABLE}"),
        ("f", {"command": ["a"], "env": {"A": "${STRATUS_SECRET_KEY}"}}, "is a setting of Stratus"),
        ("f", {"command": ["a"], "env": {"A": "${a b}"}}, "${a b} does not name an environment variable"),
        ("f", {"command": ["a"], "env": {"A=B": "x"}}, "'A=B' is not the name of an environment variable"),
        ("f", {"command": ["a"], "env": {"A": "x\0"}}, "contains a NUL"),
        ("f", {"command": ["a"], "enviroment": {}}, "mcp.f.enviroment: Extra inputs are not permitted"),
        ("f", {"command": ["a"], "time_limit_seconds": 0}, "mcp.f.time_limit_seconds"),
        ("w", {"url": "https://user:pw@x.org"}, "mcp.w.url: contains a password; send a header instead"),
        ("w", {"url": "file:///etc/passwd"}, "mcp.w.url: is not an address"),
        ("w", {"url": "https://x", "headers": {"X-Api-Key": "1"}}, "X-Api-Key looks like a secret"),
        ("w", {"url": "https://x", "headers": {"X": "a\r\nY: b"}}, "is not a header with a printable value"),
        ("w", {"url": "https://x", "command": ["a"]}, "mcp.w: has both `command` and `url`"),
        ("w", {}, "mcp.w: needs a `command: [program, …]` or a `url: https://…`"),
        ("w", 3, "mcp.w: needs a `command"),
        ("a_b", {"command": ["a"]}, "mcp: 'a_b' is not a name"),
    ],
)
def test_says_which_entry_is_wrong_in_what(name: str, entry: Any, said: str) -> None:
    with pytest.raises(ValueError, match="mcp") as caught:
        mcp_servers({name: entry})
    assert said in str(caught.value)


def test_references_are_replaced_within_a_value() -> None:
    assert resolved({"A": "Bearer ${T}", "B": "plain"}, {"T": "t$1\\1"}) == {"A": "Bearer t$1\\1", "B": "plain"}


def test_a_missing_variable_is_named_and_its_neighbours_values_are_not() -> None:
    with pytest.raises(ValueError, match="^the environment variable U is not set on this replica$"):
        resolved({"A": "${T}", "B": "${U}"}, {"T": "secret"})
