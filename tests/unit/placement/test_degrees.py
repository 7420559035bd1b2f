"""Degrees of workers: the least cost over every division of the GPUs, a sum that cannot be reached, and whether a restart is worth it."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from domain.errors import InvalidRequest
from placement.arrange import Presorted, SizeTable
from placement.degrees import (
    anneal,
    filled,
    least_seconds,
    perturbed,
    plan_degrees,
    usable_tables,
)
from tests.oracles.partitions import divisions, least_cost_of_divisions

MOST = 12
lengths = st.lists(st.integers(0, 40) | st.floats(0, 1e6), max_size=MOST)
rises = st.lists(st.sampled_from([0.0, 0.0, 0.5]) | st.floats(0, 2), min_size=MOST, max_size=MOST)
a_table = st.builds(lambda first, each: np.cumsum([first, *each[1:]]), st.floats(0.01, 3), rises)
some_tables = st.dictionaries(st.sampled_from([2, 4, 8]), a_table).flatmap(
    lambda wider: a_table.map(lambda one: {1: one, **wider})
)
gpus = st.integers(1, 14)
contexts = st.lists(st.integers(0, 1000), min_size=MOST, max_size=MOST)


def a_generator(seed=0):
    return np.random.default_rng(seed)


def tables(some, **fields):
    return {degree: SizeTable(table, **fields) for degree, table in sorted(some.items())}


def amdahl(sizes=200):
    """Return tables where a wide worker is faster per token, and slower per GPU."""
    groups = np.arange(1, sizes + 1)
    return {degree: SizeTable((10 + groups) / degree**0.7) for degree in (1, 2, 4, 8)}


@given(lengths, gpus, some_tables)
def test_the_cost_is_the_least_of_every_division(some, gpus, raw):
    usable = usable_tables(gpus, tables(raw), len(some))
    trajectories = Presorted(some)

    degrees, seconds = least_seconds(trajectories, gpus, usable)

    assert sum(degrees) == gpus
    assert set(degrees) <= set(usable)
    assert list(degrees) == sorted(degrees, reverse=True)
    assert seconds == trajectories.least_bound([usable[degree] for degree in degrees])
    assert seconds == least_cost_of_divisions(trajectories, gpus, usable)[0]


@given(lengths, gpus, some_tables, contexts)
def test_the_cost_is_the_least_where_caches_wait_for_room_too(some, gpus, raw, tokens):
    usable = usable_tables(gpus, tables(raw, kv_tokens=700), len(some))
    trajectories = Presorted(some, tokens[: len(some)])

    assert (
        least_seconds(trajectories, gpus, usable)[1]
        == least_cost_of_divisions(trajectories, gpus, usable)[0]
    )


@given(lengths, gpus, some_tables, st.integers(0, 99))
def test_algorithm_two_returns_an_allocation_and_its_cost(some, gpus, raw, seed):
    usable = usable_tables(gpus, tables(raw), len(some))
    trajectories = Presorted(some)

    degrees, seconds = anneal(trajectories, gpus, usable, a_generator(seed))

    assert sum(degrees) == gpus
    assert seconds == trajectories.least_bound([usable[degree] for degree in degrees])
    assert seconds >= least_seconds(trajectories, gpus, usable)[1]


def test_a_cache_without_room_for_one_costs_what_its_turns_take():
    """The product of three factors is rounded alike wherever it is compared with the bound."""
    table = SizeTable([0.01171875] * 7, kv_tokens=700)
    trajectories = Presorted([0.0] * 6 + [67.0], [0.0] * 6 + [736.0])

    degrees, seconds = least_seconds(trajectories, 2, {1: table})

    assert (degrees, seconds) == ((1, 1), trajectories.cost(table, 0, 1))
    assert seconds > 0


def test_algorithm_two_is_within_one_percent_of_the_least():
    drawn = a_generator(5).lognormal(6, 1, 150)
    trajectories = Presorted(drawn.tolist())

    least = least_seconds(trajectories, 16, amdahl())[1]

    found = [anneal(trajectories, 16, amdahl(), a_generator(seed))[1] for seed in range(3)]
    assert max(found) <= 1.01 * least


def test_the_same_seed_gives_the_same_allocation():
    trajectories = Presorted([100.0 / (1 + number) for number in range(40)])

    found = {anneal(trajectories, 32, amdahl(), a_generator(3)) for _ in range(2)}

    assert len(found) == 1


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=9), st.integers(0, 99))
def test_a_neighbour_has_as_many_gpus(degrees, seed):
    found = perturbed(tuple(degrees), (1, 2, 4, 8), a_generator(seed))

    assert sum(found) == sum(degrees)
    assert list(found) == sorted(found, reverse=True)


def test_neighbours_differ_by_one_transition():
    found = {perturbed((8, 4, 1, 1), (1, 2, 4, 8), a_generator(seed)) for seed in range(200)}

    split, merged = {(4, 4, 4, 1, 1), (8, 2, 2, 1, 1)}, {(8, 4, 2)}
    # 8 → 4 frees four: 4 → 8, or 1 → 2 and the rest as 2 and 1. 4 → 2 frees two: 1 → 2 and the rest as 1.
    redistributed = {(8, 4, 1, 1), (4, 4, 2, 2, 1, 1), (8, 2, 2, 1, 1)}
    assert found == split | merged | redistributed
    assert perturbed((1,), (1, 2), a_generator()) == (1,)


def test_every_division_is_a_multiset():
    assert [len(list(divisions(gpus, (1, 2, 4, 8)))) for gpus in (8, 16, 64)] == [10, 35, 969]


def test_a_rest_becomes_the_largest_workers_that_fit():
    assert filled(7, (1, 2, 4, 8)) == [4, 2, 1]


def test_long_trajectories_get_a_wide_worker_and_short_ones_narrow_ones():
    some = [20_000.0, 15_000.0, *[500.0] * 150]

    plan = plan_degrees(some, 8, amdahl(), a_generator())

    assert plan.exact
    assert plan.degrees == (4, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("gpus", "allowed", "cure"),
    [(6, (4, 8), "4, 8"), (0, (1,), "divided"), (1, (2,), "lower degree"), (4, (), "none")],
)
def test_a_sum_that_cannot_be_reached_is_refused(gpus, allowed, cure):
    some = {degree: table for degree, table in amdahl().items() if degree in allowed}

    with pytest.raises(InvalidRequest, match=cure) as refused:
        plan_degrees([1.0], gpus, some, a_generator())

    assert (refused.value.pointer, refused.value.code) == ("/gpus", "unreachable_sum")


def test_what_is_no_degree_or_too_short_is_refused_by_name():
    table = SizeTable([1.0])

    with pytest.raises(InvalidRequest, match="no degree"):
        plan_degrees([1.0], 3, {3: table}, a_generator())
    with pytest.raises(InvalidRequest, match="1 sizes for 2") as refused:
        plan_degrees([1.0, 1.0], 3, {1: table}, a_generator())
    assert refused.value.pointer == "/tables/1"
    with pytest.raises(InvalidRequest, match="present degree 8"):
        plan_degrees([1.0], 8, {1: table}, a_generator(), current=(8,))
    with pytest.raises(InvalidRequest) as refused:
        plan_degrees([math.nan], 8, {1: table}, a_generator())
    assert refused.value.pointer == "/lengths/0"


@pytest.mark.parametrize("wrong", [math.nan, -1.0])
def test_a_restart_time_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidRequest, match="restart"):
        plan_degrees([1.0], 1, amdahl(), a_generator(), restart_seconds=wrong)


def test_a_change_is_worth_it_when_the_gain_exceeds_the_restart():
    some = [20_000.0, 15_000.0, *[500.0] * 150]

    def plan(restart_seconds):
        current = (1,) * 8
        return plan_degrees(
            some, 8, amdahl(), a_generator(), current=current, restart_seconds=restart_seconds
        )

    gain = plan(0.0).gain_seconds
    assert gain > 0
    assert plan(gain * 0.99).worthwhile
    assert not plan(gain).worthwhile


def test_present_degrees_stay_where_nothing_is_better():
    flat = {degree: SizeTable([1.0] * 4) for degree in (1, 2)}

    plan = plan_degrees([5.0, 5.0], 4, flat, a_generator(), current=(2, 2))

    assert plan.degrees == (2, 2)
    assert (plan.gain_seconds, plan.worthwhile) == (0, False)


def test_a_first_start_is_always_worth_it():
    plan = plan_degrees([5.0], 4, amdahl(), a_generator(), restart_seconds=1e6)

    assert plan.worthwhile


def test_above_the_budget_algorithm_two_decides():
    some = [100.0 / (1 + number) for number in range(40)]

    plan = plan_degrees(some, 8, amdahl(), a_generator(), budget=40)

    assert not plan.exact
    assert plan.seconds == pytest.approx(
        plan_degrees(some, 8, amdahl(), a_generator()).seconds, rel=0.05
    )


def test_no_trajectories_cost_nothing():
    plan = plan_degrees([], 6, amdahl(), a_generator())

    assert (sum(plan.degrees), plan.seconds) == (6, 0.0)
