"""Windows of a quota: which calls count, and until when."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managers.quota.ledger.windows import GRAINS, CalendarDay, SlidingWindow

STEPS = st.lists(
    st.tuples(st.floats(0.0, 7.0, allow_subnormal=False), st.integers(1, 5)), max_size=60
)


@given(steps=STEPS)
def test_a_sliding_window_never_counts_less_than_was_granted_in_it(steps) -> None:
    window, now, made = SlidingWindow(10.0), 1000.0, []
    for passed, amount in steps:
        now += passed
        window.add(now, amount)
        made.append((now, amount))
        true = sum(amount for at, amount in made if at + 10.0 > now)
        grain = sum(amount for at, amount in made if at + 10.0 + 10.0 / GRAINS > now)
        assert true <= window.used(now) <= grain


@given(steps=STEPS, most=st.integers(0, 40), at=st.floats(0.0, 20.0))
def test_a_window_falls_when_it_said_it_would(steps, most: int, at: float) -> None:
    window, now = SlidingWindow(10.0), 1000.0
    for passed, amount in steps:
        now += passed
        window.add(now, amount)
    now += at
    eases = window.falls_to(most, now)
    if eases > now:
        assert window.used(now) > most
    assert window.used(eases) <= most


def test_a_grant_counts_until_its_period_has_passed_exactly() -> None:
    window = SlidingWindow(10.0)
    window.add(5.0, 1)
    assert window.used(14.999) == 1
    assert window.used(15.0) == 0


def test_a_window_of_many_grants_remembers_a_bounded_number_of_things() -> None:
    window = SlidingWindow(1.0)
    for n in range(20_000):
        window.add(n / 10_000, 1)
    assert len(window.groups()) <= GRAINS + 1
    assert window.used(2.0) == pytest.approx(10_000, rel=0.01)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", "2026-03-29", 24),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/Santiago", "2026-09-06", 23),
        ("nowhere on earth", "2026-03-29", 24),
    ],
    ids=["utc", "spring", "autumn", "midnight that does not exist", "unknown counts as utc"],
)
def test_a_calendar_day_ends_at_midnight_of_its_zone(zone: str, day: str, hours: int) -> None:
    tz = ZoneInfo("UTC" if " " in zone else zone)
    begins = datetime.fromisoformat(day).replace(tzinfo=tz).timestamp()
    if zone == "America/Santiago":
        begins = datetime.fromisoformat(day).replace(hour=1, tzinfo=tz).timestamp()
    window = CalendarDay(zone)
    window.add(begins, 3)
    ends = window.falls_to(0, begins)
    assert ends - begins == hours * 3600
    assert (window.used(ends - 0.001), window.used(ends)) == (3, 0)


def test_a_day_of_another_zone_begins_at_another_time() -> None:
    noon = datetime(2026, 5, 1, 12, tzinfo=ZoneInfo("UTC")).timestamp()
    tokyo, utc = CalendarDay("Asia/Tokyo"), CalendarDay("UTC")
    for window in (tokyo, utc):
        window.add(noon, 1)
    assert (tokyo.used(noon + 3 * 3600), utc.used(noon + 3 * 3600)) == (0, 1)


@given(steps=STEPS)
def test_windows_go_on_from_what_they_remember(steps) -> None:
    for make in (lambda groups: SlidingWindow(10.0, groups), lambda g: CalendarDay("UTC", g)):
        window, now = make(()), 86_390.0
        for passed, amount in steps:
            now += passed
            window.add(now, amount)
        again = make(window.groups())
        for later in (now, now + 1.0, now + 11.0, now + 100_000.0):
            assert again.used(later) == window.used(later)
