"""Differences between two samples: their sign, their interval, and how often it holds the true difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_web.compare.statistics import (
    LEAST_GROUPS,
    Better,
    BinnedSample,
    Difference,
    DifferenceFinding,
    Resampling,
    Sample,
    difference_of_ratios,
    differences_of_quantiles,
)

SHARES = (0.5, 0.95)
values = st.lists(st.floats(0, 1e4), min_size=LEAST_GROUPS, max_size=25)


def all_of(a: Sample, b: Sample, *, paired: bool = False) -> list[Difference]:
    """Return the differences of the mean and of the quantiles, from few resamples."""
    return [
        difference_of_ratios(a, b, Resampling(1, 40), paired=paired),
        *differences_of_quantiles(a, b, SHARES, Resampling(1, 40), paired=paired),
    ]


@given(values, values)
def test_swapping_the_sides_turns_the_sign(first: list[float], second: list[float]):
    a, b = Sample(np.array(first)), Sample(np.array(second))

    for there, back in zip(all_of(a, b), all_of(b, a), strict=True):
        assert there.difference == pytest.approx(-back.difference)
        if first != second:
            assert there.low is not None
            assert back.high is not None
            assert there.low == pytest.approx(-back.high, abs=1e-6)


@given(values, st.booleans())
def test_identical_samples_have_an_interval_that_contains_0(same: list[float], paired: bool):
    a, b = Sample(np.array(same)), Sample(np.array(same))

    for each in all_of(a, b, paired=paired):
        assert each.difference == 0.0
        assert each.finding(Better.LOWER) is DifferenceFinding.UNCLEAR


def test_a_difference_has_the_values_of_both_sides_whatever_their_sizes():
    a, b = Sample(np.arange(1.0, 101.0)), Sample(np.full(7, 200.0))

    mean, p50, p95 = all_of(a, b)

    assert (mean.a, mean.b, mean.difference) == (50.5, 200.0, 149.5)
    assert (p50.a, p95.a) == (50.0, 95.0)  # by nearest rank
    assert mean.relative == pytest.approx(149.5 / 50.5)
    assert mean.low is not None
    assert mean.low > 0
    assert [mean.finding(way) for way in Better] == [
        DifferenceFinding.WORSE,
        DifferenceFinding.BETTER,
    ]


def test_too_few_groups_have_no_interval():
    grouped = Sample(np.arange(100.0), np.zeros(100, dtype=np.int64))

    found = difference_of_ratios(grouped, Sample(np.arange(100.0)), Resampling(0, 10))

    assert (found.low, found.finding(Better.LOWER)) == (None, DifferenceFinding.UNKNOWN)


def test_nothing_on_a_side_is_no_difference_to_tell():
    empty, some = Sample(np.array([])), Sample(np.arange(10.0))

    for each in all_of(empty, some):
        assert each.finding(Better.LOWER) is DifferenceFinding.UNKNOWN


def test_groups_that_depend_on_each_other_make_the_interval_wider():
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(20), 20)
    column = rng.normal(size=20)[groups] + 0.01 * rng.normal(size=400)

    def width(sample: Sample) -> float:
        found = difference_of_ratios(sample, Sample(np.zeros(400)), Resampling(0, 200))
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(Sample(column, groups)) > 3 * width(Sample(column))


def test_pairs_leave_out_what_both_have_in_common():
    common = np.random.default_rng(4).exponential(10.0, 50)
    a, b = Sample(common + 1.0), Sample(common)

    paired = difference_of_ratios(a, b, Resampling(0, 50), paired=True)
    alone = difference_of_ratios(a, b, Resampling(0, 50))

    assert paired.finding(Better.LOWER) is DifferenceFinding.BETTER
    assert alone.finding(Better.LOWER) is DifferenceFinding.UNCLEAR
    with pytest.raises(ValueError, match="same groups"):
        difference_of_ratios(a, Sample(common[:9]), Resampling(0), paired=True)


def test_a_histogram_says_the_same_as_its_values():
    counts = np.array([50, 30, 20])
    middles = np.array([1.0, 2.0, 10.0])
    other = Sample(np.full(100, 3.0))

    binned = all_of(BinnedSample(middles, counts), other)
    each = all_of(Sample(np.repeat(middles, counts)), other)

    assert [x.a for x in binned] == [x.a for x in each]
    for one, two in zip(binned[:1], each[:1], strict=True):
        assert one.low == pytest.approx(two.low, abs=0.4)
        assert one.high == pytest.approx(two.high, abs=0.4)


def test_a_ratio_is_of_the_sums():
    a = Sample(np.array([1.0, 3.0] * 5), per=np.array([2.0, 2.0] * 5))

    assert a.ratio() == 1.0
    assert difference_of_ratios(a, a, Resampling(0, 10)).difference == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("clustered", [False, True])
def test_the_interval_holds_the_true_difference_as_often_as_it_says(clustered: bool):
    """The true differences are known: exponential durations of mean 3 and 2, of unequal numbers."""
    rng, rounds = np.random.default_rng(5), 300
    held = {"mean": 0, "p50": 0, "p95": 0}
    true = {"mean": -1.0, "p50": -np.log(2), "p95": -np.log(20)}

    def drawn(mean: float, groups: int) -> Sample:
        each = 4 if clustered else 1
        which = np.repeat(np.arange(groups), each)
        # Of one group half of the actions are repeated, so they depend on each other.
        column = rng.exponential(mean, groups * each)
        if clustered:
            column[1::4] = column[::4]
        return Sample(column, which)

    for _ in range(rounds):
        a, b = drawn(3.0, 150), drawn(2.0, 90)
        found = [
            difference_of_ratios(a, b, Resampling(1, 300)),
            *differences_of_quantiles(a, b, SHARES, Resampling(1, 300)),
        ]
        for name, each in zip(held, found, strict=True):
            held[name] += each.low <= true[name] <= each.high

    covered = {name: count / rounds for name, count in held.items()}
    assert all(0.91 <= share <= 0.98 for share in covered.values()), covered
