"""When a schedule is due: the two nights on which clocks change, bad input, what is done about what was missed, and properties over all of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from stratus.domain.errors import BadInput
from stratus.domain.schedule import (
    CATCH_UP_MAX,
    GRACE,
    LOOK_MAX,
    CatchUp,
    Due,
    Occurrence,
    SkipReason,
    asked,
    due,
    next_after,
    occurrences,
)

BERLIN = "Europe/Berlin"
ZONES = [BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu", "Africa/Cairo"]
MINUTE = timedelta(minutes=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def wall(cron: str, after: str, count: int, zone: str = BERLIN) -> list[str]:
    """The next occurrences as a clock in the zone shows them, with its distance from UTC."""
    found = islice(occurrences(cron, zone, at(after)), count)
    return [one.astimezone(ZoneInfo(zone)).strftime("%d. %H:%M %z") for one in found]


def test_an_hour_that_clocks_skip() -> None:
    """29 March 2026: 02:00 becomes 03:00. A fixed time in between is due at 03:00; what goes by elapsed time knows no such hour."""
    assert wall("30 2 * * *", "2026-03-28T12:00+01:00", 2) == ["29. 03:00 +0200", "30. 02:30 +0200"]
    assert wall("0,30 2 * * *", "2026-03-29T01:00+01:00", 2) == ["29. 03:00 +0200", "30. 02:00 +0200"]
    assert wall("0 2,3 * * *", "2026-03-29T01:00+01:00", 2) == ["29. 03:00 +0200", "30. 02:00 +0200"]
    assert wall("*/30 * * * *", "2026-03-29T01:15+01:00", 3) == [
        "29. 01:30 +0100",
        "29. 03:00 +0200",
        "29. 03:30 +0200",
    ]
    assert wall("0 3 * * *", "2026-03-29T01:15+01:00", 1) == ["29. 03:00 +0200"]


def test_an_hour_that_clocks_repeat() -> None:
    """25 October 2026: 03:00 becomes 02:00. A fixed time in it is due the first time; what goes by elapsed time is due in both."""
    assert wall("30 2 * * *", "2026-10-25T01:00+02:00", 2) == ["25. 02:30 +0200", "26. 02:30 +0100"]
    assert wall("30 * * * *", "2026-10-25T01:45+02:00", 3) == ["25. 02:30 +0200", "25. 02:30 +0100", "25. 03:30 +0100"]
    assert wall("15 2,3 * * *", "2026-10-25T01:45+02:00", 3) == [
        "25. 02:15 +0200",
        "25. 03:15 +0100",
        "26. 02:15 +0100",
    ]


def test_from_within_the_repeated_hour_nothing_is_due_in_the_past() -> None:
    """The wall clock shows 02:15 twice; seen from the second one, the library alone would answer with 02:30 of the first."""
    assert wall("30 2 * * *", "2026-10-25T02:15+01:00", 1) == ["26. 02:30 +0100"]
    assert wall("30 2,3 * * *", "2026-10-25T02:15+01:00", 1) == ["25. 03:30 +0100"]


def test_noon_stays_noon_over_both_changes() -> None:
    summer, winter = at("2026-03-28T12:00+01:00"), at("2026-10-24T12:00+02:00")
    assert next_after("0 12 * * *", BERLIN, summer) - summer == timedelta(hours=23)
    assert next_after("0 12 * * *", BERLIN, winter) - winter == timedelta(hours=25)


def test_weekdays_months_and_steps() -> None:
    assert wall("0 9 * * 1-5", "2026-11-27T10:00+01:00", 2) == ["30. 09:00 +0100", "01. 09:00 +0100"]
    assert next_after("0 0 29 2 *", "UTC", at("2026-03-01T00:00Z")) == at("2028-02-29T00:00Z")
    assert next_after("30 23 L * *", "UTC", at("2026-02-01T00:00Z")) == at("2026-02-28T23:30Z")


@pytest.mark.parametrize(
    ("cron", "named"),
    [
        ("", "five fields"),
        ("@daily", "five fields"),
        ("* * * * * *", "five fields"),
        ("61 * * * *", "bad minute"),
        ("0 25 * * *", "bad hour"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("a b c d e", "such as '30 7 * * 1-5'"),
        ("0 " * 500, "five fields"),
    ],
)
def test_a_bad_expression_is_refused_with_its_mend(cron: str, named: str) -> None:
    with pytest.raises(BadInput, match="cron: ") as refused:
        next_after(cron, "UTC", at("2026-01-01T00:00Z"))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "zone",
    ["", "Berlin", "europe/berlin", "Europe", "Europe/Berlino", "../etc/passwd", "localtime", "GB", "Europe/../x"],
)
def test_an_unknown_zone_is_refused_with_its_mend(zone: str) -> None:
    with pytest.raises(BadInput, match="time_zone: .* such as Europe/Berlin"):
        next_after("0 0 * * *", zone, at("2026-01-01T00:00Z"))


def test_a_schedule_asks_something() -> None:
    assert asked("say\x00 hi").text == "say\ufffd hi"
    with pytest.raises(BadInput, match="text: "):
        asked("  ")


def hourly(policy: CatchUp, missed: int, late: timedelta = timedelta(0)) -> Due:
    first = at("2026-01-01T00:00Z")
    return due("0 * * * *", "UTC", policy, first, first + timedelta(hours=missed - 1) + late)


def reasons(found: Due) -> list[SkipReason | None]:
    return [one.skip for one in found.occurrences]


def test_one_run_stands_for_all_that_was_missed() -> None:
    found = hourly(CatchUp.ONE, 4, 30 * MINUTE)
    assert reasons(found) == [SkipReason.SUPERSEDED] * 3 + [None]
    assert [one.due_at.hour for one in found.occurrences] == [0, 1, 2, 3]
    assert found.next_at == at("2026-01-01T04:00Z")


def test_skip_runs_only_what_is_within_the_grace() -> None:
    assert reasons(hourly(CatchUp.SKIP, 3, GRACE)) == [SkipReason.MISSED, SkipReason.MISSED, None]
    assert reasons(hourly(CatchUp.SKIP, 3, GRACE + timedelta(seconds=1))) == [SkipReason.MISSED] * 3


def test_all_runs_each_up_to_a_limit() -> None:
    assert reasons(hourly(CatchUp.ALL, 5, 30 * MINUTE)) == [None] * 5
    assert reasons(hourly(CatchUp.ALL, CATCH_UP_MAX + 2)) == [SkipReason.TOO_MANY] * 2 + [None] * CATCH_UP_MAX


@pytest.mark.parametrize("policy", CatchUp)
def test_a_long_absence_is_worked_off_in_pieces_and_ends_as_if_it_were_one(policy: CatchUp) -> None:
    first = at("2026-01-01T00:00Z")
    now = first + MINUTE * (3 * LOOK_MAX)
    seen: list[Occurrence] = []
    looks = 0
    start = first
    while start <= now:
        found = due("* * * * *", "UTC", policy, start, now)
        seen += found.occurrences
        start, looks = found.next_at, looks + 1
    assert looks > 1
    assert [one.due_at for one in seen] == [first + MINUTE * n for n in range(3 * LOOK_MAX + 1)]
    runs = [one.due_at for one in seen if one.skip is None]
    assert runs == [one.due_at for one in seen[-(CATCH_UP_MAX if policy is CatchUp.ALL else 1) :]]


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    return st.one_of(
        st.just("*"),
        number.map(str),
        ranges,
        st.integers(1, 20).map(lambda step: f"*/{step}"),
        st.lists(number, min_size=2, max_size=3).map(lambda several: ",".join(map(str, several))),
    )


CRONS = st.tuples(
    field(0, 59), field(0, 23), st.just("*") | field(1, 28), st.just("*") | field(1, 12), field(0, 7)
).map(" ".join)
# Most moments lie close to a change of the clocks in one of the zones.
CHANGES = [
    at("2026-03-29T01:00Z"),
    at("2026-10-25T01:00Z"),
    at("2026-04-04T15:00Z"),
    at("2026-09-06T04:00Z"),
    at("2026-04-23T22:00Z"),
]
MOMENTS = st.builds(
    lambda change, seconds: change + timedelta(seconds=seconds), st.sampled_from(CHANGES), st.integers(-9000, 9000)
)


def by_the_hour(cron: str, zone: str) -> bool:
    """Whether the zone's changes are whole hours, or the times fixed: the library steps expressions by elapsed time in whole hours."""
    return zone != "Australia/Lord_Howe" or not any(field.startswith("*") for field in cron.split()[:2])


@given(CRONS, st.sampled_from(ZONES), MOMENTS, st.integers(0, 7200))
@example("30 2 * * *", BERLIN, at("2026-10-25T00:15Z"), 3600)
def test_the_next_one_is_later_and_nothing_lies_in_between(cron: str, zone: str, after: datetime, seconds: int) -> None:
    assume(by_the_hour(cron, zone))
    found = next_after(cron, zone, after)
    assert found > after and found.tzinfo is UTC and found.second == 0
    between = after + timedelta(seconds=seconds)
    if between < found:
        assert next_after(cron, zone, between) == found
    else:
        assert next_after(cron, zone, between) >= found


@given(CRONS, st.sampled_from(ZONES), MOMENTS)
def test_one_after_the_other_is_the_same_as_all_at_once(cron: str, zone: str, after: datetime) -> None:
    assume(by_the_hour(cron, zone))
    together = list(islice(occurrences(cron, zone, after), 6))
    singly, last = [], after
    for _ in together:
        last = next_after(cron, zone, last)
        singly.append(last)
    assert together == singly == sorted(set(together))


@given(st.integers(0, 59), st.integers(0, 23), st.sampled_from(ZONES), st.sampled_from(CHANGES))
def test_a_daily_time_is_due_once_on_each_day_whatever_the_clocks_do(
    minute: int, hour: int, zone: str, change: datetime
) -> None:
    clocks = ZoneInfo(zone)
    found = list(islice(occurrences(f"{minute} {hour} * * *", zone, change - timedelta(days=3)), 6))
    days = [one.astimezone(clocks).date() for one in found]
    assert [later - earlier for earlier, later in zip(days, days[1:], strict=False)] == [timedelta(days=1)] * 5


@given(st.text(alphabet="0123456789*/,-#LW abz²\x00", max_size=24))
def test_any_text_is_read_or_refused(cron: str) -> None:
    try:
        next_after(cron, BERLIN, at("2026-01-01T00:00Z"))
    except BadInput:
        pass


@given(CRONS, st.sampled_from(ZONES), st.sampled_from(CatchUp), MOMENTS, st.integers(0, 200_000))
def test_each_occurrence_is_stated_once(cron: str, zone: str, policy: CatchUp, after: datetime, seconds: int) -> None:
    assume(by_the_hour(cron, zone))
    first = next_after(cron, zone, after)
    now = first + timedelta(seconds=seconds)
    found = due(cron, zone, policy, first, now)
    times = [one.due_at for one in found.occurrences]
    assert times[0] == first and times == sorted(set(times)) and times[-1] <= now
    assert found.next_at == next_after(cron, zone, times[-1])
