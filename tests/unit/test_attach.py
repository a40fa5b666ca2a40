"""The attach rules as a table: what each cursor meets in each state of a session."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from stratus.domain.errors import CursorExpired, NotFound
from stratus.domain.event import Cursor, StoredEvent
from stratus.observe.attach import Scope, attach
from stratus.store.event import RunPlace, Standing

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
DONE = RunPlace(A, "completed", 1, 9)
RUNNING = RunPlace(B, "running", 10, 0)
QUEUED = RunPlace(C, "queued", 12, 0)


def standing(*opened: RunPlace, named: RunPlace | None = None, floor: int = 0, seq: int = 20) -> Standing:
    return Standing(owner_id=1, event_seq=seq, event_floor=floor, named=named, open=opened)


def event(run: UUID | None, seq: int, kind: str = "text.delta") -> StoredEvent:
    return StoredEvent("s1", seq, run, 1, kind, "{}", datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("where", "cursor", "expected"),
    [
        pytest.param(standing(), None, None, id="nothing open, no cursor"),
        pytest.param(standing(RUNNING, QUEUED), None, Scope(9, frozenset({B})), id="the open run from its first event"),
        pytest.param(standing(RUNNING, named=RUNNING), Cursor(B, 15), Scope(15, frozenset({B})), id="resume"),
        pytest.param(standing(named=DONE), Cursor(A, 5), Scope(5, frozenset({A})), id="the rest of an ended run"),
        pytest.param(standing(named=DONE), Cursor(A, 9), None, id="ended, all told"),
        pytest.param(standing(named=DONE), Cursor(A, 20), None, id="ended, after its end"),
        pytest.param(standing(RUNNING, named=DONE), Cursor(A, 9), Scope(9, frozenset({B})), id="on to the open run"),
        pytest.param(standing(named=DONE, floor=5), Cursor(A, 5), Scope(5, frozenset({A})), id="at the floor"),
        pytest.param(
            standing(QUEUED, named=QUEUED, floor=15), Cursor(C, 12), Scope(12, frozenset({C})), id="an open run is kept"
        ),
    ],
)
def test_attach_to_a_run(where: Standing, cursor: Cursor | None, expected: Scope | None) -> None:
    assert attach(where, cursor, follow=False) == expected


@pytest.mark.parametrize(
    ("where", "cursor", "expected"),
    [
        pytest.param(standing(), None, Scope(20, frozenset(), 20), id="the current end"),
        pytest.param(standing(RUNNING, QUEUED), None, Scope(9, frozenset({B, C}), 20), id="the open runs whole"),
        pytest.param(standing(RUNNING, named=DONE), Cursor(A, 9), Scope(9, frozenset(), 9), id="from the cursor"),
        pytest.param(
            standing(QUEUED, named=QUEUED, floor=15),
            Cursor(C, 12),
            Scope(11, frozenset({C}), 20),
            id="an open run is kept",
        ),
    ],
)
def test_follow_a_session(where: Standing, cursor: Cursor | None, expected: Scope) -> None:
    assert attach(where, cursor, follow=True) == expected


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("where", "cursor", "error"),
    [
        pytest.param(standing(RUNNING), Cursor(A, 5), NotFound, id="another session's run"),
        pytest.param(standing(RUNNING, named=RUNNING), Cursor(B, 21), CursorExpired, id="the future"),
        pytest.param(standing(named=DONE, floor=6), Cursor(A, 5), CursorExpired, id="pruned"),
    ],
)
def test_cursors_that_lead_nowhere(where: Standing, cursor: Cursor, error: type[Exception], follow: bool) -> None:
    with pytest.raises(error):
        attach(where, cursor, follow=follow)


def test_a_run_s_stream_has_that_run_only_and_ends_with_it() -> None:
    scope = Scope(0, frozenset({B}))
    assert [scope.takes(one) for one in (event(A, 1), event(None, 2), event(B, 3))] == [False, False, True]
    assert not scope.ends_with(event(A, 4, "run.completed"))
    assert scope.ends_with(event(B, 5, "run.failed"))


def test_a_follower_gets_the_open_runs_and_then_everything_without_end() -> None:
    scope = Scope(0, frozenset({B}), all_after=10)
    assert [scope.takes(one) for one in (event(A, 9), event(B, 10), event(A, 11), event(None, 12))] == [
        False,
        True,
        True,
        True,
    ]
    assert not scope.ends_with(event(B, 13, "run.completed"))
