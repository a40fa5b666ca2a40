"""Decides where a reader joins a session's log: the attach rules of the HTTP interface, without I/O."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stratus.domain.errors import CursorExpired, NotFound
from stratus.domain.event import Cursor, StoredEvent
from stratus.store.event import RunPlace, Standing


@dataclass(frozen=True)
class Scope:
    """Which of a session's events a reader gets: of `runs` all after seq `after`; of the whole session what follows `all_after`.

    With `all_after` None it is the stream of one run, which ends with its terminal event.
    """

    after: int
    runs: frozenset[UUID]
    all_after: int | None = None

    def takes(self, event: StoredEvent) -> bool:
        """Whether the reader gets it."""
        return event.run in self.runs or (self.all_after is not None and event.seq > self.all_after)

    def ends_with(self, event: StoredEvent) -> bool:
        """Whether it is the last."""
        return self.all_after is None and event.terminal() and event.run in self.runs


def attach(standing: Standing, cursor: Cursor | None, *, follow: bool) -> Scope | None:
    """Where to join; `follow` stays across runs. None when nothing is open and nothing is left to tell (204).

    Raises NotFound for a cursor into another session, CursorExpired for one that the log no longer, or not yet, reaches.
    """
    if cursor is not None:
        _check(standing, cursor)
    if follow:
        return _session(standing, cursor)
    named = standing.named if cursor is not None else None
    if cursor is not None and named is not None and not (named.ended and cursor.seq >= named.last_seq):
        return Scope(cursor.seq, frozenset({named.run}))
    return run_from_its_start(standing.open[0]) if standing.open else None


def run_from_its_start(place: RunPlace) -> Scope:
    """The stream of one run, from its first event."""
    return Scope(place.first_seq - 1, frozenset({place.run}))


def _check(standing: Standing, cursor: Cursor) -> None:
    if standing.named is None:
        raise NotFound("the cursor's run is not in this session")
    if cursor.seq > standing.event_seq:
        raise CursorExpired("the cursor is ahead of this session's log; fetch the transcript and go on from its cursor")
    # What belongs to a run that is still open is never pruned.
    if cursor.seq < standing.event_floor and standing.named.ended:
        raise CursorExpired(
            "the log no longer reaches back to the cursor; fetch the transcript and go on from its cursor"
        )


def _session(standing: Standing, cursor: Cursor | None) -> Scope:
    """Of what has ended a newcomer knows from the transcript, so it gets the open runs whole and then all that comes."""
    if cursor is not None and cursor.seq >= standing.event_floor:
        return Scope(cursor.seq, frozenset(), all_after=cursor.seq)
    open_runs = frozenset(place.run for place in standing.open)
    start = min((place.first_seq - 1 for place in standing.open), default=standing.event_seq)
    return Scope(start, open_runs, all_after=standing.event_seq)
