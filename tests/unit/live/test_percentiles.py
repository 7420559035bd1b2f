"""Percentiles are those of the samples, exact to the bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.action import Outcome, Timing
from domain.decisions import Finish
from domain.ids import ActionId
from tangram_web.live.rollups.histogram import (
    BINS,
    HIGHEST_SECONDS,
    LOWEST_SECONDS,
    PhaseHistogram,
    bin_of,
    percentile,
    seconds_of,
)
from tangram_web.live.rollups.recent import WINDOW_SECONDS, RecentActivity

durations = st.floats(min_value=0.0, max_value=2 * HIGHEST_SECONDS)


def histogram_of(samples: list[float]) -> PhaseHistogram:
    histogram = PhaseHistogram()
    for seconds in samples:
        histogram.add(Timing(0.0, 0.0, seconds, seconds))
    histogram.flush()
    return histogram


def finished(seconds: float) -> Finish:
    timing = Timing(0.0, 0.0, seconds, seconds)
    return Finish(ActionId("a1"), "default", "t1", Outcome.COMPLETED, timing=timing)


@given(st.lists(durations, min_size=1, max_size=300), st.sampled_from((0.5, 0.95, 0.99, 1.0)))
def test_a_percentile_is_in_the_bin_of_the_true_one(samples, share):
    true = np.quantile(samples, share, method="inverted_cdf")

    found = percentile(histogram_of(samples).counts[-1], share)

    assert found == seconds_of(int(bin_of(np.array([true]))[0]))


@given(st.floats(min_value=LOWEST_SECONDS, max_value=HIGHEST_SECONDS, exclude_max=True))
def test_a_bin_represents_its_durations_within_a_twentieth(seconds):
    stands_for = seconds_of(int(bin_of(np.array([seconds]))[0]))

    assert stands_for == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, 0), (-1.0, 0), (float("nan"), 0), (1e9, BINS - 1), (float("inf"), BINS - 1)],
    ids=["zero", "negative", "not a number", "huge", "infinite"],
)
def test_odd_durations_have_a_bin(seconds, expected):
    assert bin_of(np.array([seconds]))[0] == expected


@given(st.lists(durations, max_size=50), st.lists(durations, max_size=50))
def test_counts_merge_by_addition(first, second):
    merged = histogram_of(first).counts + histogram_of(second).counts

    assert (merged == histogram_of(first + second).counts).all()


def test_samples_leave_the_window_with_their_second():
    recent = RecentActivity()
    recent.begin(100)
    recent.finish(finished(1.0), at=100.0)
    samples = []
    for second in range(100, 101 + WINDOW_SECONDS):
        samples.append(recent.durations()["samples"])
        recent.close_second({}, second)

    assert samples == [1] * WINDOW_SECONDS + [0]


def test_a_rollup_has_the_samples_of_its_second_alone():
    recent = RecentActivity()
    recent.begin(100)
    recent.finish(finished(1.0), at=100.0)
    recent.close_second({}, 100)
    recent.finish(finished(2.0), at=101.0)
    second = recent.close_second({}, 101)

    assert (second.finished, second.sums[-1]) == (1, 2.0)
    assert recent.durations()["samples"] == 2
    assert recent.durations()["phases"]["act"]["mean"] == 1.5


def test_percentile_of_nothing_is_none():
    assert percentile(PhaseHistogram().counts[-1], 0.5) is None
