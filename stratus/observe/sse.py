"""Encodes session events as server-sent events (WHATWG HTML §9.2): one JSON line each, an id on durable run events only."""

from __future__ import annotations

import orjson

from stratus.domain.event import Cursor, StoredEvent

KEEP_ALIVE = b": keep-alive\n\n"


def encode(event: StoredEvent) -> bytes:
    """One event. JSON escapes CR and LF, so the payload cannot break the framing; the envelope's fields win over the payload's."""
    envelope = {
        "run": None if event.run is None else str(event.run),
        "seq": event.seq,
        "attempt": event.attempt,
        "kind": event.kind,
        "at": event.at.isoformat(),
    }
    data = orjson.dumps({**orjson.loads(event.payload), **envelope})
    name = b"" if event.run is None else f"id: {Cursor(event.run, event.seq)}\n".encode()
    return b"%bevent: %b\ndata: %b\n\n" % (name, event.kind.encode(), data)


def retry(milliseconds: int) -> bytes:
    """How long a client waits before it connects again."""
    return b"retry: %d\n\n" % milliseconds
