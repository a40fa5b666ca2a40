"""The framing of the PostgreSQL protocol that the proxy relies on."""

from __future__ import annotations

import struct

from testbed.pgwire import Backend, Frontend

STARTUP = struct.pack("!II", 8 + 9, 196608) + b"user\0me\0\0"
SSL_REQUEST = struct.pack("!II", 8, 80877103)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def prepare(name: bytes, sql: bytes) -> bytes:
    return message(b"P", name + b"\0" + sql + b"\0\0\0")


def execute(name: bytes, portal: bytes = b"") -> bytes:
    bind = message(b"B", portal + b"\0" + name + b"\0\0\0\0\0\0\0")
    return bind + message(b"E", portal + b"\0\0\0\0\0") + message(b"S", b"")


def executed(frontend: Frontend, data: bytes) -> list[str]:
    return [request.executes for request in frontend.feed(data) if request.executes is not None]


def started() -> Frontend:
    frontend = Frontend()
    assert [request.raw for request in frontend.feed(STARTUP)] == [STARTUP]
    return frontend


def test_every_byte_comes_out_once_however_the_stream_is_cut() -> None:
    stream = STARTUP + message(b"Q", b"SELECT 1\0") + prepare(b"s", b"SELECT 2") + execute(b"s")
    for size in (1, 3, 7, len(stream)):
        frontend = Frontend()
        out = [request for at in range(0, len(stream), size) for request in frontend.feed(stream[at : at + size])]
        assert b"".join(request.raw for request in out) == stream
        assert [request.executes for request in out if request.executes] == ["SELECT 1", "SELECT 2"]


def test_encryption_is_asked_for_before_the_startup_message() -> None:
    requests = list(Frontend().feed(SSL_REQUEST + STARTUP))
    assert [request.asks_encryption for request in requests] == [True, False]


def test_a_prepared_statement_is_known_when_it_is_executed_later() -> None:
    frontend = started()
    assert executed(frontend, prepare(b"a", b"INSERT a") + prepare(b"b", b"INSERT b")) == []
    assert executed(frontend, execute(b"b")) == ["INSERT b"]
    assert executed(frontend, execute(b"a", portal=b"p")) == ["INSERT a"]


def test_a_bind_is_held_back_with_the_execution_that_it_is_for() -> None:
    frontend = started()
    list(frontend.feed(prepare(b"a", b"INSERT a")))
    bind, rest = execute(b"a")[:14], execute(b"a")[14:]
    assert (bind[:1], rest[:1]) == (b"B", b"E")
    assert list(frontend.feed(bind)) == []
    assert [request.raw[:1] for request in frontend.feed(rest)] == [b"B", b"S"]


def test_a_cancel_request_is_passed_on_untyped() -> None:
    cancel = struct.pack("!IIII", 16, 80877102, 1, 2)
    assert [request.raw for request in Frontend().feed(cancel)] == [cancel]


def test_the_server_says_when_a_transaction_is_over() -> None:
    backend = Backend()
    stream = message(b"C", b"COMMIT\0") + message(b"Z", b"I") + message(b"Z", b"T")
    answers = [answer for byte in stream for answer in backend.feed(bytes([byte]))]
    assert b"".join(answer.raw for answer in answers) == stream
    assert [answer.ready for answer in answers] == [None, "I", "T"]
