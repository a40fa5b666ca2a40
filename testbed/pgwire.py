"""Framing of the PostgreSQL protocol, version 3, as far as a proxy must understand it.

Source: PostgreSQL documentation, "Frontend/Backend Protocol", chapters Message Flow and Message Formats.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SSL_REQUEST, _CANCEL_REQUEST, _GSS_REQUEST = 80877103, 80877102, 80877104


@dataclass(frozen=True)
class Request:
    """One message of the client. `executes` is the SQL text if the message makes the server run a statement.

    A Bind comes with the message after it: a server that has only the Bind waits without its idle-in-transaction limit.
    """

    raw: bytes
    executes: str | None = None
    asks_encryption: bool = False


@dataclass(frozen=True)
class Answer:
    """One message of the server. `ready` is the transaction status of a ReadyForQuery: I idle, T open, E failed."""

    raw: bytes
    ready: str | None = None


class Frontend:
    """Cuts a client's byte stream into messages, and remembers which SQL each prepared statement and portal stands for.

    Drivers keep prepared statements: most executions carry a name only.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._bound = b""

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yields each message that `data` completes."""
        self._buffer += data
        while (size := self._size()) is not None and len(self._buffer) >= size:
            raw = bytes(self._buffer[:size])
            del self._buffer[:size]
            if self._started and raw[:1] == b"B":
                self._bind(raw)
            else:
                yield self._typed(raw) if self._started else self._startup(raw)

    def _size(self) -> int | None:
        lead = 1 if self._started else 0
        if len(self._buffer) < lead + 4:
            return None
        return lead + int(struct.unpack_from("!I", self._buffer, lead)[0])

    def _startup(self, raw: bytes) -> Request:
        (code,) = struct.unpack_from("!I", raw, 4)
        if code in (_SSL_REQUEST, _GSS_REQUEST):
            return Request(raw, asks_encryption=True)
        self._started = code != _CANCEL_REQUEST
        return Request(raw)

    def _bind(self, raw: bytes) -> None:
        portal, name, _ = raw[5:].split(b"\0", 2)
        self._portals[portal] = self._statements.get(name, "")
        self._bound += raw

    def _typed(self, raw: bytes) -> Request:
        kind, body = raw[:1], raw[5:]
        raw, self._bound = self._bound + raw, b""
        if kind == b"Q":
            return Request(raw, executes=body.rstrip(b"\0").decode(errors="replace"))
        if kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self._statements[name] = sql.decode(errors="replace")
        elif kind == b"E":
            return Request(raw, executes=self._portals.get(body.split(b"\0", 1)[0], ""))
        return Request(raw)


class Backend:
    """Cuts a server's byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Answer]:
        """Yields each message that `data` completes."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= 5:
            end = start + 1 + int(struct.unpack_from("!I", self._buffer, start + 1)[0])
            if len(self._buffer) < end:
                break
            raw = bytes(self._buffer[start:end])
            start = end
            yield Answer(raw, ready=chr(raw[5]) if raw[:1] == b"Z" else None)
        del self._buffer[:start]
