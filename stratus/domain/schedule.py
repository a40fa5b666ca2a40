"""When a schedule is due, and what becomes of each time it was: a run, or a stated skip. Pure: every moment is an argument.

`cronsim` reads the expressions, `zoneinfo` the zones (docs/decisions/0010-cron.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum, unique
from itertools import islice
from re import compile as pattern
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from stratus.channel.text import clean
from stratus.domain.errors import BadInput
from stratus.domain.values import RunInput

GRACE = timedelta(seconds=60)
CATCH_UP_MAX = 100
# Occurrences that are looked at in one go. What is more waits for the next step, so that years of absence block nobody for long.
LOOK_MAX = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = 5
_CRON_CHARACTERS = 200
# Names as the IANA database writes them; its old aliases (`GB`, `EST`) and what a machine adds (`localtime`) are not the same everywhere.
_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SESSION_CHARACTERS = 256
_ZONE = pattern(r"UTC|[A-Z][A-Za-z]+(/[A-Za-z0-9_+-]+)+")
_CRON_MEND = "write five fields (minute, hour, day of month, month, day of week), such as '30 7 * * 1-5'"
_ZONE_MEND = "write UTC, or an area and a city of the IANA time zones, such as Europe/Berlin"


@unique
class CatchUp(StrEnum):
    """What is done about occurrences that came while no replica looked."""

    SKIP = "skip"
    ONE = "one"
    ALL = "all"


@unique
class OccurrenceState(StrEnum):
    """How an occurrence ends. It has no moves: its row is written once, with its end."""

    RUN = "run"
    SKIPPED = "skipped"


@unique
class SkipReason(StrEnum):
    """Why an occurrence is no run."""

    MISSED = "missed"  # found later than the grace, and the schedule says to skip such
    SUPERSEDED = "superseded"  # missed together with a later one, whose run stands for all of them
    TOO_MANY = "too_many"  # older than the newest `CATCH_UP_MAX` of those missed
    OVERLAP = "overlap"  # an earlier run of the schedule was still open
    AGENT_GONE = "agent_gone"
    OTHER_AGENT = "session_of_another_agent"
    CHANNEL_OFF = "channel_off"  # the channel of the answer is disabled or removed
    OWNER_DISABLED = "owner_disabled"
    UNREADABLE = "unreadable"  # this release reads the cron text or the zone no more; the schedule is disabled


@dataclass(frozen=True)
class Occurrence:
    """A time at which the schedule was due; without `skip` it is to run."""

    due_at: datetime
    skip: SkipReason | None = None


@dataclass(frozen=True)
class Due:
    """What is to be recorded now, oldest first, and when to look again; `next_at` in the past says that there is more."""

    occurrences: Sequence[Occurrence]
    next_at: datetime


def next_after(cron: str, zone: str, after: datetime) -> datetime:
    """The first moment later than `after` at which `cron` is due by the clocks of `zone`, in UTC. Raises BadInput with the mend.

    A fixed time in an hour that clocks skip is due when they have skipped it; in an hour that they repeat, the first time only. An
    expression whose minute or hour begins with `*` is due by elapsed time: never in the skipped hour, and in both repeated ones. Where the
    clocks change by half an hour (Lord Howe Island) such an expression may miss that half hour on that day.
    """
    found = next(occurrences(cron, zone, after), None)
    if found is None:
        raise BadInput(f"cron: {cron!r} is never due; {_CRON_MEND}")
    return found


def occurrences(cron: str, zone: str, after: datetime) -> Iterator[datetime]:
    """All that `next_after` would find one after the other, at less cost. Raises BadInput on first use."""
    clocks = _clocks(zone)
    last = _in_utc(after)
    try:
        simulated = CronSim(_five_fields(cron), clocks.fromutc(last.replace(tzinfo=clocks)))
    except CronSimError as error:
        raise BadInput(f"cron: {cron!r} cannot be read ({str(error).lower()}); {_CRON_MEND}") from error
    # The library does fixed times on the wall clock: in a repeated hour, or after a skipped one, a wall time may stand for a past moment.
    for wall in simulated:
        moment = _in_utc(wall)
        if moment > last:
            yield moment
            last = moment


def due(cron: str, zone: str, catch_up: CatchUp, first: datetime, now: datetime) -> Due:
    """What to do about the occurrences from `first`, the one that is due, up to `now`. Raises BadInput."""
    later = occurrences(cron, zone, first)
    times = [first, *islice(_until(later, now), LOOK_MAX)]
    if len(times) > LOOK_MAX:
        # At least the newest ones that may run are left for the next look, so whatever is older is skipped by every policy.
        past = times[:-CATCH_UP_MAX]
        return Due([Occurrence(at, _TOO_OLD[catch_up]) for at in past], times[-CATCH_UP_MAX])
    return Due(_judged(catch_up, times, now), next_after(cron, zone, times[-1]))


def check_names(name: str, session_id: str) -> None:
    """Raises BadInput where one of them cannot be used."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"name: {name[:64]!r} must be 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        )
    if not 1 <= len(session_id) <= _SESSION_CHARACTERS or not session_id.isprintable():
        raise BadInput(f"session: an id has 1 to {_SESSION_CHARACTERS} printable characters")


def catch_up_of(text: str) -> CatchUp:
    """The policy of that name. Raises BadInput."""
    if text not in set(CatchUp):
        raise BadInput(f"catch_up: {text[:20]!r} is none of {', '.join(CatchUp)}")
    return CatchUp(text)


def asked(text: str) -> RunInput:
    """What a schedule asks each time. Raises BadInput when it asks nothing."""
    if not text.strip():
        raise BadInput("text: say what the agent is to do each time")
    return RunInput.of(clean(text))


_TOO_OLD = {
    CatchUp.SKIP: SkipReason.MISSED,
    CatchUp.ONE: SkipReason.SUPERSEDED,
    CatchUp.ALL: SkipReason.TOO_MANY,
}


def _judged(catch_up: CatchUp, times: Sequence[datetime], now: datetime) -> list[Occurrence]:
    runs = CATCH_UP_MAX if catch_up is CatchUp.ALL else 1
    if catch_up is CatchUp.SKIP and now - times[-1] > GRACE:
        runs = 0
    split = max(0, len(times) - runs)
    return [Occurrence(at, _TOO_OLD[catch_up] if n < split else None) for n, at in enumerate(times)]


def _until(moments: Iterator[datetime], end: datetime) -> Iterator[datetime]:
    for moment in moments:
        if moment > end:
            return
        yield moment


def _five_fields(cron: str) -> str:
    """The expression. A sixth field would be seconds to the library, and a schedule is due once a minute at most."""
    if len(cron) > _CRON_CHARACTERS or len(cron.split()) != _FIELDS:
        raise BadInput(f"cron: {cron[:_CRON_CHARACTERS]!r} has not five fields; {_CRON_MEND}")
    return cron


def _clocks(zone: str) -> ZoneInfo:
    try:
        if _ZONE.fullmatch(zone):
            return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # not there, not a name, or a folder of the database
        pass
    raise BadInput(f"time_zone: {zone[:_CRON_CHARACTERS]!r} is not known; {_ZONE_MEND}")


def _in_utc(moment: datetime) -> datetime:
    return _EPOCH + (moment - _EPOCH)
