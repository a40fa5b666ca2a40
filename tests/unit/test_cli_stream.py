"""The terminal client's reader of server-sent events, and what it does to text before a terminal sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stratus.cli.chat import print_text
from stratus.cli.output import printable, printable_lines, shown
from stratus.cli.sse import Decoder, ServerEvent

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


def _delta(text: str) -> dict[str, Any]:
    return {"kind": "text.delta", "text": text}


def _completed(text: str) -> dict[str, Any]:
    return {"kind": "text.completed", "text": text}


SAID, AGAIN, END = {"kind": "message.assistant"}, {"kind": "run.resumed"}, {"kind": "run.completed"}
TURNS = {
    "streamed whole": ([_delta("a"), _delta("b"), _completed("ab"), SAID, END], "ab\n"),
    "never streamed": ([_completed("ab"), SAID, END], "ab\n"),
    "streamed in part": ([_delta("a"), _completed("ab"), SAID, END], "ab\n"),
    "two parts, both streamed first": ([_delta("a"), _delta("b"), _completed("a"), _completed("b"), SAID, END], "ab\n"),
    "two answers": ([_delta("a"), _completed("a"), SAID, _delta("b"), _completed("b"), SAID, END], "a\nb\n"),
    "begun again": ([_delta("a"), AGAIN, _delta("ab"), _completed("ab"), SAID, END], "a\nab\n"),
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
