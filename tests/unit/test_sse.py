"""The encoding of server-sent events: framing that no payload can break, ids on durable run events only."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stratus.domain.event import StoredEvent, parse_cursor
from stratus.observe import sse

RUN = UUID(int=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abkind\r\n", max_size=5), inner, max_size=3),
)


def event(payload: object, run: UUID | None = RUN) -> StoredEvent:
    return StoredEvent("s1", 7, run, 2, "text.delta", json.dumps(payload), datetime(2030, 1, 1, tzinfo=UTC))


@given(st.dictionaries(st.sampled_from(["text", "run", "seq", "kind", "at", "x\r\ny"]), JSON, max_size=6))
def test_no_payload_breaks_the_framing(payload: dict[str, object]) -> None:
    encoded = sse.encode(event(payload)).decode()
    assert "\r" not in encoded
    assert encoded.endswith("\n\n")
    lines = encoded[:-2].split("\n")
    assert [line.partition(": ")[0] for line in lines] == ["id", "event", "data"]
    data = json.loads(lines[2].removeprefix("data: "))
    assert (data["run"], data["seq"], data["attempt"], data["kind"]) == (str(RUN), 7, 2, "text.delta")
    assert data.get("text") == payload.get("text")
    cursor = parse_cursor(lines[0].removeprefix("id: "))
    assert (cursor.run, cursor.seq) == (RUN, 7)


def test_an_event_of_the_session_itself_has_no_id() -> None:
    assert b"id:" not in sse.encode(event({}, run=None))
