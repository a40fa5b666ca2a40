"""Agent files: what is read, what is refused and how it says so, and that rendering is the inverse."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratus.agents.souls import parse, read_folder, render
from stratus.domain.agent import AgentDefinition
from stratus.domain.errors import BadInput

BLAIR = """---
id: blair
model: anthropic:claude-sonnet-5-5        # provider:name
tools: [delegate, send_file, notify, mcp:files/*]
approve: [mcp:files/write_*]              # ask a human first
approval_window: 30m
delegates: [researcher]
busy: steer
idle_limit: 2m
mcp: {files: {command: [uvx, mcp-server-files, /data]}}
settings: {temperature: 0.2}
effects: {mcp:files/write_*: idempotent}
---

You are Blair.

---

A rule above is part of the soul.
"""


def test_reads_every_field() -> None:
    blair = parse(BLAIR, source="blair.md")
    assert blair == AgentDefinition(
        id="blair",
        model="anthropic:claude-sonnet-5-5",
        soul="You are Blair.\n\n---\n\nA rule above is part of the soul.",
        tools=["delegate", "send_file", "notify", "mcp:files/*"],
        approve=["mcp:files/write_*"],
        approval_window_seconds=1800.0,
        delegates=["researcher"],
        busy="steer",
        idle_limit_seconds=120.0,
        mcp={"files": {"command": ["uvx", "mcp-server-files", "/data"]}},
        settings={"temperature": 0.2},
        effects={"mcp:files/write_*": "idempotent"},
    )


def test_rendering_is_the_inverse() -> None:
    blair = parse(BLAIR, source="blair.md")
    assert parse(render(blair), source="again") == blair


@given(
    st.builds(
        AgentDefinition,
        id=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True),
        model=st.sampled_from(["demo", "openai:gpt-x", "anthropic:a:b"]),
        name=st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30),
        soul=st.text(max_size=100).map(lambda text: text.replace("\r", "").strip()),
        tools=st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=10), min_size=1, max_size=3),
        idle_limit_seconds=st.floats(0.01, 1e6).map(lambda number: round(number, 3)),
        first_token_limit_seconds=st.floats(0.01, 1e6).map(lambda number: round(number, 3)),
        max_steps=st.integers(1, 1000),
        max_concurrent=st.none() | st.integers(1, 1000),
    )
)
def test_rendering_is_the_inverse_for_any_agent(definition: AgentDefinition) -> None:
    assert parse(render(definition), source="again") == definition


@pytest.mark.parametrize(
    ("written", "seconds"), [("120s", 120), ("2m", 120), ("1.5m", 90), ("1h", 3600), ("45", 45), ("0.5", 0.5)]
)
def test_durations(written: str, seconds: float) -> None:
    text = f"---\nid: a\nmodel: demo\nidle_limit: {written}\n---\n"
    assert parse(text, source="a.md").idle_limit_seconds == seconds


def test_line_ends_and_a_byte_order_mark_do_not_matter() -> None:
    assert parse("\ufeff---\r\nid: a\r\nmodel: demo\r\n---\r\nHello\r\n", source="a.md").soul == "Hello"


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("model: demo", "a.md: `id` is missing: expected up to 64 lower-case letters"),
        ("id: Blair\nmodel: demo", "a.md: `id` is not acceptable"),
        ("id: 12\nmodel: demo", "a.md: `id` is not acceptable"),
        ("id: a", "a.md: `model` is missing"),
        ("id: a\nmodel: gpt", "a.md: `model` is not acceptable: expected `demo`, or a provider and a name"),
        (
            "id: a\nmodel: demo\nbusy: never",
            "`busy` is not acceptable: expected one of queue, steer, interrupt, reject",
        ),
        ("id: a\nmodel: demo\ntools: current_time", "`tools` is not acceptable: expected a list of names"),
        ("id: a\nmodel: demo\nidle_limit: soon", "`idle_limit` is not acceptable: expected a duration"),
        ("id: a\nmodel: demo\nfirst_token_limit: soon", "`first_token_limit` is not acceptable: expected a duration"),
        ("id: a\nmodel: demo\nfirst_token_limit: 0", "`first_token_limit` is not acceptable: expected a duration"),
        (
            "id: a\nmodel: demo\nmax_concurrent: 0",
            "`max_concurrent` is not acceptable: expected a whole number above 0",
        ),
        (
            "id: a\nmodel: demo\napi_key_env: sk-REAL",
            "`api_key_env` is not acceptable: expected the name of an environ",
        ),
        ("id: a\nmodel: demo\nidle_limit: 0s", "`idle_limit` is not acceptable: expected a duration"),
        ("id: a\nmodel: demo\nidle_limit: true", "`idle_limit` is not acceptable: expected a duration"),
        ("id: a\nmodel: demo\nmax_steps: 0", "`max_steps` is not acceptable: expected a whole number above 0"),
        ("id: a\nmodel: demo\nmcp: []", "`mcp` is not acceptable: expected a mapping"),
        (
            "id: a\nmodel: demo\nmcp: {f: {command: [a, '${B}']}}",
            "a.md: mcp.f.command: other users of the machine can read",
        ),
        (
            "id: a\nmodel: demo\neffects: {pay: twice}",
            "`effects` is not acceptable: expected what a repeat of a tool does",
        ),
        ("id: a\nmodel: demo\nsettings: high", "`settings` is not acceptable: expected a mapping"),
        ("id: a\nmodel: demo\ntemprature: 1", "unknown field `temprature`; known are api_key_env, approval_window"),
        ("id: a\nmodel: demo\nsoul: x", "unknown field `soul`"),
        ("id: a\nmodel: [", "a.md, line 3: the front matter is not valid YAML"),
        ("id: 2024-13-45\nmodel: demo", "the front matter is not valid YAML"),
        ("- id", "the front matter is not a list of `field: value` lines"),
    ],
)
def test_says_which_file_which_field_and_how_to_mend_it(front: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(f"---\n{front}\n---\nHello\n", source="a.md")
    assert expected in str(caught.value)
    assert str(caught.value).startswith("a.md")


@pytest.mark.parametrize("text", ["", "Hello", "---\nid: a\nmodel: demo\n", "# x\n---\nid: a\n---\n"])
def test_front_matter_is_required(text: str) -> None:
    with pytest.raises(BadInput, match="a.md: an agent file begins with front matter"):
        parse(text, source="a.md")


def _write(folder: Path, name: str, agent: str) -> None:
    (folder / name).write_text(f"---\nid: {agent}\nmodel: demo\n---\nHello\n")


def test_a_folder_is_read_by_name_without_hidden_and_other_files(tmp_path: Path) -> None:
    _write(tmp_path, "b.md", "first")
    _write(tmp_path, "c.md", "second")
    _write(tmp_path, ".#b.md", "editor")
    _write(tmp_path, "notes.txt", "notes")
    assert [agent.id for agent in read_folder(tmp_path)] == ["first", "second"]


def test_an_id_belongs_to_one_file(tmp_path: Path) -> None:
    _write(tmp_path, "b.md", "same")
    _write(tmp_path, "c.md", "same")
    with pytest.raises(BadInput, match=r"c\.md: `id` 'same' is taken by .*b\.md"):
        read_folder(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_bytes(b"---\n\xff\xfe")
    with pytest.raises(BadInput, match=r"x\.md: is not UTF-8"):
        read_folder(tmp_path)


def test_what_was_stored_as_json_renders_without_empty_fields() -> None:
    stored = AgentDefinition.model_validate_json(AgentDefinition(id="a", model="demo").model_dump_json())
    assert render(stored) == render(AgentDefinition(id="a", model="demo"))
