"""The terminal client's reader of server-sent events, and what it does to text before a terminal sees it."""

from __future__ import annotations

import pytest

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
