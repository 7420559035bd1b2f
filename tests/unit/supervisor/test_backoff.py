"""A child that keeps dying is started ever later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tangram_web.supervisor.children import Backoff


def test_waits_double_up_to_the_longest():
    backoff = Backoff(first_seconds=0.5, most_seconds=3.0)

    assert [backoff.after(0.1) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_child_that_was_healthy_starts_again_at_once():
    backoff = Backoff(healthy_seconds=60.0)
    backoff.after(1.0)
    backoff.after(1.0)

    assert backoff.after(61.0) == 0.0
    assert backoff.after(1.0) == backoff.first_seconds


@given(st.integers(min_value=1, max_value=5000))
def test_wait_stays_bounded_however_often_the_child_dies(deaths):
    backoff = Backoff(deaths=deaths)

    assert 0 < backoff.after(0.0) <= backoff.most_seconds
