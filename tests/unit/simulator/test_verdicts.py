"""Verdicts on printed numbers follow from intervals alone, and noise reaches nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.evaluation.maps import Axis, RatioMap
from benchmarks.evaluation.verdicts import Kind, Side, measured_verdict, side, verdict
from simulator.figures import Interval, interval

X = Axis("pods", (40.0, 110.0, 250.0), 40.0, 110.0)
Y = Axis("share", (0.5,), 0.0, 1.0)

numbers = st.floats(0.01, 1000.0)
intervals = st.lists(numbers, min_size=1, max_size=4).map(interval)


def a_map(*cells: tuple[float, float], paper: float = 4.3) -> RatioMap:
    """Return a map of three cells, the last of which the print rules out; each cell is (low, high)."""
    found = {
        (x, 0.5): Interval((low + high) / 2, low, high)
        for x, (low, high) in zip(X.values, cells, strict=True)
    }
    return RatioMap("ACT", paper, X, Y, found)


MISSED = a_map((1.0, 2.0), (2.0, 3.0), (9.0, 9.9))
NOISY = a_map((1.0, 2.0), (2.0, 5.0), (9.0, 9.9))
REACHED = a_map((8.0, 9.0), (4.5, 5.0), (9.0, 9.9))
SHORT = interval([1.0, 2.0])


@given(intervals, numbers)
def test_an_interval_reaches_a_number_only_with_every_seed(found, wanted):
    where = side(found, wanted)

    assert (where is Side.REACHES) == (found.low >= wanted)
    assert (where is Side.MISSES) == (found.high < wanted)


@given(intervals, numbers)
def test_where_less_is_better_a_number_is_reached_from_below(found, wanted):
    assert (side(found, wanted, lower=True) is Side.REACHES) == (found.high <= wanted)


@pytest.mark.parametrize(
    ("declared", "maps", "kind", "said"),
    [
        ([4.4, 6.0], [MISSED], Kind.REACHED, "5.2 (4.4 to 6)"),
        ([1.0, 2.0], [REACHED], Kind.REACHED_AT, "4.75 (4.5 to 5) at pods 110 and share 0.5"),
        ([1.0, 6.0], [REACHED], Kind.REACHED_AT, "in 2 of the 2 cells"),
        ([1.0, 2.0], [MISSED], Kind.REFUTED, "any of the 2 cells that the print allows; the largest is 2.5"),
        ([1.0, 2.0], [MISSED, MISSED], Kind.REFUTED, "any of the 4 cells"),
        ([1.0, 2.0], [NOISY], Kind.UNDECIDED, "3.5 (2 to 5) at pods 110"),
        ([1.0, 6.0], [MISSED], Kind.UNDECIDED, "3.5 (1 to 6) at the declared values"),
        ([1.0, 2.0], [], Kind.MISSED, "no sweep is stored"),
    ],
)  # fmt: skip
def test_a_verdict_is_the_strongest_that_no_seed_contradicts(declared, maps, kind, said):
    found = verdict(interval(declared), 4.3, maps)

    assert found.kind is kind
    assert said in found.reason


def test_what_is_put_in_is_no_outcome_however_good_it_looks():
    assert verdict(interval([9.0]), 4.3, [REACHED], is_outcome=False).kind is Kind.NOT_AN_OUTCOME


def test_without_a_value_and_a_sweep_nothing_is_said():
    assert verdict(None, 4.3, []).kind is Kind.NOT_SIMULATED


def test_a_saving_is_compared_with_the_number_of_its_map():
    """A share of 0.3 is wanted; cells of its map are ratios of ACTs, wanted at 1."""
    assert verdict(interval([0.4]), 0.3, [a_map((0.5, 0.6), (1.1, 1.2), (2, 2), paper=1.0)],
                   lower=True).kind is Kind.REACHED_AT  # fmt: skip


@given(intervals, st.lists(st.tuples(numbers, numbers).map(sorted), min_size=3, max_size=3))
def test_cells_that_the_print_rules_out_change_no_verdict(declared, cells):
    first, second, _ = (tuple(each) for each in cells)
    others = {
        verdict(declared, 4.3, [a_map(first, second, last)])
        for last in ((0.1, 0.2), (1.0, 9.0), (9.0, 9.9))
    }

    assert len(others) == 1


@pytest.mark.parametrize(
    ("loads", "kind"),
    [
        ({0.25: [0.01], 0.95: [0.005, 0.02]}, Kind.REACHED),
        ({0.25: [0.01], 0.95: [0.01, 0.03]}, Kind.REACHED_AT),
        ({0.25: [0.03], 0.95: [0.04]}, Kind.REFUTED),
        ({0.25: [0.01, 0.03], 0.95: [0.04]}, Kind.UNDECIDED),
        ({}, Kind.NOT_SIMULATED),
    ],
)
def test_a_measured_cost_is_reached_at_the_loads_where_no_run_is_above(loads, kind):
    found = {load: interval(shares) for load, shares in loads.items()}

    assert measured_verdict(found, 0.02).kind is kind
