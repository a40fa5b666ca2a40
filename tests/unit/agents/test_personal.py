"""The tools that reach a person: bounded files with harmless names, and messages."""

from __future__ import annotations

import base64
import json
from typing import Any
from uuid import UUID

import pytest

from stratus.agents.personal import FILE_LIMIT_BYTES, notify, send_file
from stratus.agents.tools import Notice, ProducedFile, ToolContext, ToolOutcome, installed_tools
from tests.unit.agents.rows import NO_ROWS

CONTEXT = ToolContext(session_id="s", run=UUID(int=7), call_id="c1", agent_id="a", rows=NO_ROWS)


async def send(**args: Any) -> ToolOutcome:
    return await send_file.run(json.dumps(args), CONTEXT)


async def test_a_text_becomes_a_file() -> None:
    outcome = await send(name="report.csv", content="a,b\n1,é\n")
    assert list(outcome.files) == [ProducedFile("report.csv", "text/csv", "a,b\n1,é\n".encode())]
    assert (outcome.failed, outcome.content) == (False, "report.csv (9 bytes) goes out with the answer.")


async def test_bytes_become_a_file() -> None:
    outcome = await send(name="blob", base64=base64.b64encode(b"\0\1\2").decode())
    assert list(outcome.files) == [ProducedFile("blob", "application/octet-stream", b"\0\1\2")]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"name": "a.txt"}, "give either content or base64"),
        ({"name": "a.txt", "content": "x", "base64": "eA=="}, "give either content or base64"),
        ({"name": "a.txt", "base64": "?"}, "this is not base64"),
        ({"name": "a.txt", "content": "x", "mime": "text/html\r\nX: y"}, "is not a MIME type"),
        ({"name": "..", "content": "x"}, "is not the name of a file"),
        ({"name": "", "content": "x"}, "not valid"),
        ({"name": "a.txt", "content": "x" * (FILE_LIMIT_BYTES + 1)}, "at most 10000000 can be sent"),
        ({"name": "a", "base64": base64.b64encode(b"x" * (FILE_LIMIT_BYTES + 1)).decode()}, "at most 10000000"),
    ],
)
async def test_what_is_no_file_is_a_failed_result_without_one(args: dict[str, str], said: str) -> None:
    outcome = await send(**args)
    assert outcome.failed
    assert said in outcome.content
    assert list(outcome.files) == []


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        (".bashrc", "bashrc"),
        ("a\n\0b.txt", "ab.txt"),
        ("x" * 300 + ".txt", "x" * 100 + ".txt"),
    ],
)
async def test_a_name_leads_nowhere_and_hides_nothing(name: str, kept: str) -> None:
    assert [file.name for file in (await send(name=name, content="x")).files] == [kept]


async def test_notify_hands_over_a_message() -> None:
    outcome = await notify.run('{"text": "half done", "channel": "phone"}', CONTEXT)
    assert list(outcome.notices) == [Notice("half done", "phone")]
    assert list((await notify.run('{"text": "half done"}', CONTEXT)).notices) == [Notice("half done", None)]
    assert (await notify.run('{"text": "  "}', CONTEXT)).failed


def test_both_are_installed_and_may_be_repeated() -> None:
    assert [(tool.spec.name, tool.spec.effect) for tool in installed_tools().select(["notify", "send_file"])] == [
        ("notify", "idempotent"),
        ("send_file", "idempotent"),
    ]
