"""The terminal client's reader of server-sent events, and what it does to text before a terminal sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratus.cli.chat import print_text
from stratus.cli.output import printable, printable_lines, shown
from stratus.cli.sse import Decoder, ServerEvent
from stratus.cli.telling import Teller
from stratus.cli.typed import is_answer, meant
from stratus.domain.transcript import Approval

STREAM = (
    'retry: 2000\n\n: keep-alive\n\nid: r:1\nevent: text.delta\ndata: {"text": "a\u2028b\x85\u00e9"}\n\n'
    "event: x\r\ndata: one\r\ndata:two\r\n\r\nevent: nothing\n\nid: r:2\rdata: 3\r\rretry: soon\n\ndata: cut"
).encode()
EVENTS = [
    ServerEvent("", "message", "", 2000),
    ServerEvent("r:1", "text.delta", '{"text": "a\u2028b\x85\u00e9"}'),
    ServerEvent("", "x", "one\ntwo"),
    ServerEvent("r:2", "message", "3"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_come_whole_however_the_bytes_are_cut(size: int) -> None:
    decoder = Decoder()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def test_an_event_cut_off_by_the_end_is_not_given() -> None:
    assert list(Decoder().feed(b"id: 1\ndata: {}\n")) == []


def test_a_terminal_gets_no_control_characters() -> None:
    evil = "a\x1b[31mb\x07\x9bc\r\nd\te"
    assert printable(evil) == "a\ufffd[31mb\ufffd\ufffdc  d e"
    assert printable_lines(evil) == "a\ufffd[31mb\ufffd\ufffdc\ufffd\nd\te"
    assert shown({"a": [evil[:3], None, True]}) == "a=a\ufffd[, -, yes"


def _delta(text: str, part: int = 0, **fields: Any) -> dict[str, Any]:
    return {"kind": "text.delta", "part": part, "text": text, **fields}


def _completed(text: str, part: int = 0) -> dict[str, Any]:
    return {"kind": "text.completed", "part": part, "text": text}


SAID, AGAIN, END = {"kind": "message.assistant"}, {"kind": "run.resumed", "attempt": 2}, {"kind": "run.completed"}
TURNS = {
    "streamed whole": ([_delta("a"), _delta("b"), _completed("ab"), SAID, END], "ab\n"),
    "never streamed": ([_completed("ab"), SAID, END], "ab\n"),
    "streamed in part": ([_delta("a"), _completed("ab"), SAID, END], "ab\n"),
    "two parts, both streamed first": (
        [_delta("a"), _delta("b", 1), _completed("a"), _completed("b", 1), SAID, END],
        "ab\n",
    ),
    "two answers": ([_delta("a"), _completed("a"), SAID, _delta("b"), _completed("b"), SAID, END], "a\nb\n"),
    "begun again": ([_delta("a"), AGAIN, _delta("ab"), _completed("ab"), SAID, END], "a\nab\n"),
    "a lost attempt's late words": (
        [AGAIN, _delta("b", attempt=2), _delta("x", attempt=1), _completed("b"), SAID, END],
        "b\n",
    ),
    "completed otherwise": ([_delta("a"), _completed("b"), SAID, END], "a\nb\n"),
    "taken up": ([_delta("a"), {"kind": "run.merged", "into": "r"}, _delta("b"), _completed("b"), SAID, END], "a\nb\n"),
}


@pytest.mark.parametrize(("events", "printed"), TURNS.values(), ids=TURNS.keys())
async def test_a_turns_text_is_printed_once(
    events: list[dict[str, Any]], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def turn() -> AsyncIterator[dict[str, Any]]:
        for event in events:
            yield event

    assert await print_text(turn())
    assert capsys.readouterr().out == printed


ASKS = {
    "kind": "approval.requested",
    "id": "a1b2c3d4-0000",
    "call_id": "c",
    "name": "pay\x1b[2J",
    "args": '{"\u202e": 1}',
}
CALL = {"kind": "tool.proposed", "call_id": "c", "name": "pay", "args": "{}"}
LINES = {
    "taken up again": ([_delta("a"), AGAIN], "taken up again by another worker, attempt 2; the unfinished text above is written anew"),
    "handed on": ([{**AGAIN, "reason": "yielded"}], "handed on to another worker, attempt 2"),
    "goes on after an answer": ([{**AGAIN, "reason": "answered"}], ""),
    "lost once, then goes on after an answer": (
        [AGAIN, {**AGAIN, "attempt": 3, "reason": "answered"}],
        "taken up again by another worker, attempt 2",
    ),
    "outcome unknown": (
        [CALL, {"kind": "tool.failed", "call_id": "c", "outcome": "unknown", "content": ""}],
        "pay: outcome unknown: its worker was lost; it was not run again, so look before you repeat it",
    ),
    "denied": ([CALL, {"kind": "tool.failed", "call_id": "c", "outcome": "denied", "content": ""}], "pay: denied"),
    "asks": (
        [ASKS, {"kind": "run.waiting", "for": [{"approval": "a1b2c3d4-0000", "call_id": "c"}]}],
        'asks to run pay\ufffd[2J with {"\ufffd": 1}\nanswer with /approve a1b2c3 or /deny a1b2c3, and a note if you like\n'
        "waits for an approval of pay\ufffd[2J",
    ),
    "answered": (
        [{**ASKS, "name": "pay"}, {"kind": "approval.resolved", "id": ASKS["id"], "call_id": "c", "state": "denied", "by": "Ada", "note": "no"}],
        'asks to run pay with {"\ufffd": 1}\nanswer with /approve a1b2c3 or /deny a1b2c3, and a note if you like\npay: denied by Ada: no',
    ),
    "delegates": (
        [
            {"kind": "delegate.started", "call_id": "c", "agent": "researcher", "run": "r", "session": "s"},
            {"kind": "run.waiting", "for": [{"run": "r", "agent": "researcher", "call_id": "c"}]},
            {"kind": "delegate.done", "call_id": "c", "run": "r", "outcome": "failed"},
        ],
        "handed to researcher, session s\nwaits for researcher\nresearcher: failed",
    ),
    "a file": ([{"kind": "file.produced", "name": "a.txt", "mime": "t", "size": 3, "sha256": ""}], "made the file a.txt, 3 bytes"),
    "compacted": ([{"kind": "history.compacted", "left_out": 3}], "3 earlier messages no longer fit and were left out of what the agent reads"),
    "merged": ([{"kind": "run.merged", "into": "r"}], "taken up by the answer that is being written"),
    "failed": ([{"kind": "run.failed", "error": {"code": "x", "message": "Away."}}], "failed: Away."),
}  # fmt: skip


@pytest.mark.parametrize(("events", "told"), LINES.values(), ids=LINES.keys())
async def test_what_happens_around_the_text_is_told_on_stderr(
    events: list[dict[str, Any]], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    teller = Teller()
    for event in events:
        teller.tell(event)
    lines = [line.removeprefix("stratus: ") for line in capsys.readouterr().err.splitlines()]
    assert lines == told.splitlines()


def test_a_code_names_one_approval() -> None:
    one, two = (Approval("e", approval, "c", "pay", "{}") for approval in ("a1b2c3d4-1", "ffff0000-2"))
    complaints: list[str] = []
    assert meant([one], "", complaints.append) == (one, "")
    assert meant([one, two], "a1b2c3d4 not  today", complaints.append) == (one, "not  today")
    assert complaints == []
    for pending, words in (([one, two], ""), ([one, two], "a2"), ([one, one], "a1b2"), ([one], "not today")):
        assert meant(pending, words, complaints.append) is None
    assert complaints[0] == "say which: a1b2c3 (pay), ffff00 (pay)" and len(complaints) == 4
    assert is_answer("/approve x") and not is_answer("/approved x")
