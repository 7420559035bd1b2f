"""Journal time never runs backward."""

from __future__ import annotations

import time

from scheduler.runtime.loop.term import JournalClock


def test_clock_goes_on_from_the_last_journalled_time_when_the_wall_clock_was_set_back():
    ahead = time.time() + 3600
    clock = JournalClock(ahead)
    first = clock.now()
    assert first >= ahead
    assert clock.now() >= first
    assert clock.wall_offset() < -3500


def test_an_instant_of_the_journal_is_shown_as_the_same_time_until_a_clock_is_set(monkeypatch):
    clock = JournalClock(time.time() + 3600)
    wall, first = time.time(), clock.wall_offset()
    monkeypatch.setattr(time, "time", lambda: wall + 0.04)
    assert clock.wall_offset() == first
    monkeypatch.setattr(time, "time", lambda: wall + 10)
    assert clock.wall_offset() > first + 9


def test_clock_starts_at_the_wall_clock_when_that_is_later():
    before = time.time()
    assert before <= JournalClock(before - 100).now() <= time.time() + 1
