"""Percentiles are those of the samples, exact to the bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.action import Timing
from tangram_web.live.histogram import (
    BINS,
    HIGHEST_SECONDS,
    LOWEST_SECONDS,
    PhaseWindow,
    bin_of,
    percentile,
    seconds_of,
)

durations = st.floats(min_value=0.0, max_value=2 * HIGHEST_SECONDS)


def window_of(samples: list[float], width: int = 60) -> PhaseWindow:
    window = PhaseWindow(width)
    for seconds in samples:
        window.add(Timing(0.0, 0.0, seconds, seconds))
    return window


@given(st.lists(durations, min_size=1, max_size=300), st.sampled_from((0.5, 0.95, 0.99, 1.0)))
def test_percentile_lies_in_the_bin_of_the_true_one(samples, share):
    true = np.quantile(samples, share, method="inverted_cdf")

    found = percentile(window_of(samples).counts(60)[-1], share)

    assert found == seconds_of(int(bin_of(np.array([true]))[0]))


@given(st.floats(min_value=LOWEST_SECONDS, max_value=HIGHEST_SECONDS, exclude_max=True))
def test_bin_stands_for_its_durations_within_a_twentieth(seconds):
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
    merged = window_of(first).counts(60) + window_of(second).counts(60)

    assert (merged == window_of(first + second).counts(60)).all()


def test_samples_leave_with_their_second():
    window = window_of([1.0], width=3)
    kept = []
    for _ in range(4):
        kept.append(int(window.counts(3)[-1].sum()))
        window.advance()

    assert kept == [1, 1, 1, 0]


def test_counts_of_fewer_seconds_leave_older_samples_out():
    window = window_of([1.0], width=60)
    window.advance()
    window.add(Timing(0.0, 0.0, 2.0, 2.0))

    assert int(window.counts(1)[-1].sum()) == 1
    assert window.sums(1)[-1] == 2.0
    assert window.sums(2)[-1] == 3.0


def test_percentile_of_nothing_is_none():
    assert percentile(PhaseWindow(60).counts(60)[-1], 0.5) is None
