"""Reads server-sent events from a byte stream (WHATWG HTML §9.2.6); lines end at CR, LF or CRLF and nowhere else.

httpx' own `aiter_lines` also breaks lines at U+2028 and the like, which JSON may hold unescaped (`str.splitlines`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


@dataclass(frozen=True)
class ServerEvent:
    """One event. `id` is "" where it had none; `data` is "" for what only sets `retry_ms`."""

    id: str
    kind: str
    data: str
    retry_ms: int | None = None


class Decoder:
    """Takes bytes in any pieces, gives whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: list[tuple[str, str]] = []

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that `piece` completes."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        for line in lines:
            if line:
                name, _, value = line.decode("utf-8", "replace").partition(":")
                self._fields.append((name, value.removeprefix(" ")))
            elif event := self._complete():
                yield event

    def _complete(self) -> ServerEvent | None:
        fields, self._fields = self._fields, []
        last = {name: value for name, value in fields if name}
        retry_ms = int(last["retry"]) if re.fullmatch("[0-9]{1,9}", last.get("retry", "")) else None
        data = "\n".join(value for name, value in fields if name == "data")
        if not data and retry_ms is None:
            return None
        return ServerEvent(last.get("id", ""), last.get("event", "message"), data, retry_ms)


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    """The events of a response's bytes."""
    decoder = Decoder()
    async for piece in pieces:
        for event in decoder.feed(piece):
            yield event
