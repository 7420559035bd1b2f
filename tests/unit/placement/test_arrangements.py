"""An arrangement costs the least there is, keeps every trajectory once, and does not depend on how it is asked for."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from domain.engine_profiles import DegreeProfile, EngineProfile
from domain.errors import InvalidRequest
from placement.arrange import (
    Presorted,
    SizeTable,
    arrange,
    assigned_seconds,
    by_degree,
    formula_three,
    size_table,
    size_tables,
)
from placement.facts import WorkerFacts
from placement.profiles import ProfiledTimes
from tests.oracles.partitions import assignment_cost, least_cost_of_assignments

lengths = st.lists(st.integers(0, 40) | st.floats(0, 1e6), max_size=7)
#: Plateaus are frequent.
steps = st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0]) | st.floats(0, 3), min_size=7, max_size=7)
tables = st.builds(
    lambda first, rises: np.cumsum([first, *rises[1:]]), st.floats(0.01, 3), steps
).map(SizeTable)
workers = st.lists(tables, min_size=1, max_size=3)
contexts = st.lists(st.integers(0, 1000), min_size=7, max_size=7)


def plain(some):
    return [table.seconds for table in some]


def is_a_partition(found, count, some):
    """Every trajectory is in one group, and the groups are runs of descending length."""
    assert sorted(found.order) == list(range(count))
    assert len(found.ends) == len(some)
    assert found.ends == sorted(found.ends)
    assert found.ends[-1] == count
    assert [len(group) for group in found.groups] == np.diff([0, *found.ends]).tolist()


@given(lengths, workers)
def test_the_cost_is_that_of_formula_three_with_empty_groups(some, tables):
    found = arrange(some, tables)

    is_a_partition(found, len(some), tables)
    assert found.seconds == formula_three(some, tables, empty_groups=True).seconds


@given(lengths, workers)
def test_the_cost_is_that_of_the_groups(some, tables):
    found = arrange(some, tables)

    assert assignment_cost(some, found.workers, plain(tables)) == found.seconds
    assert assigned_seconds(some, found.workers, tables) == found.seconds


@given(lengths, tables, st.integers(1, 3))
def test_alike_workers_do_as_well_as_the_best_of_all_assignments(some, table, count):
    found = arrange(some, [table] * count)

    assert found.seconds == least_cost_of_assignments(some, plain([table] * count))


@given(st.lists(st.floats(0, 100), min_size=3, max_size=7), tables, st.integers(1, 3))
def test_formula_three_as_printed_is_never_better(some, table, count):
    printed = formula_three(some, [table] * count)

    assert min(np.diff([0, *printed.ends])) > 0
    assert assignment_cost(some, printed.workers, plain([table] * count)) == printed.seconds
    assert printed.seconds >= arrange(some, [table] * count).seconds


@given(lengths, workers, contexts)
def test_with_caches_that_wait_for_room_the_cost_is_the_least_of_all_runs(some, tables, tokens):
    tables = [SizeTable(table.seconds, kv_tokens=700) for table in tables]
    trajectories = Presorted(some, tokens[: len(some)])

    found = arrange(some, tables, tokens[: len(some)])

    is_a_partition(found, len(some), tables)
    assert found.seconds == least_of_runs(trajectories, tables, 0)


def least_of_runs(trajectories, tables, start):
    """Return the least cost of the trajectories from ``start`` on over every end of the first group."""
    if len(tables) == 1:
        return trajectories.cost(tables[0], start, trajectories.count - start)
    return min(
        max(
            trajectories.cost(tables[0], start, end - start),
            least_of_runs(trajectories, tables[1:], end),
        )
        for end in range(start, trajectories.count + 1)
    )


@given(lengths, workers, st.permutations(range(7)))
def test_the_cost_does_not_depend_on_the_order_of_trajectories(some, tables, places):
    shuffled = [some[place] for place in places if place < len(some)]

    assert arrange(shuffled, tables).seconds == arrange(some, tables).seconds


@given(lengths, workers, st.integers(-8, 8))
def test_the_groups_do_not_depend_on_the_unit_of_length(some, tables, power):
    # Below the normal numbers a power of two does not scale exactly.
    some = [each if each > 1e-300 else 0.0 for each in some]
    scaled = arrange([each * 2.0**power for each in some], tables)

    assert scaled.groups == arrange(some, tables).groups


@given(lengths, workers, tables)
def test_a_further_worker_never_costs_more(some, tables, further):
    assert arrange(some, [*tables, further]).seconds <= arrange(some, tables).seconds


@given(st.lists(st.floats(0, 1e5), max_size=60), st.integers(1, 9), st.floats(0.001, 2))
def test_the_dynamic_program_agrees_on_larger_batches(some, count, slope):
    tables = [
        SizeTable(0.01 * (1 + worker) + slope * np.arange(60.0) // 3) for worker in range(count)
    ]

    assert arrange(some, tables).seconds == formula_three(some, tables, empty_groups=True).seconds


def test_fewer_trajectories_than_workers_leave_groups_empty():
    table = SizeTable([1.0, 2.0])

    assert arrange([5.0, 3.0], [table] * 4).groups == [[0], [1], [], []]
    assert arrange([], [table] * 2).groups == [[], []]
    with pytest.raises(InvalidRequest, match="no empty groups"):
        formula_three([5.0, 3.0], [table] * 3)


def test_groups_of_equal_cost_are_even():
    flat = SizeTable([1.0] * 8)

    assert [len(group) for group in arrange([7.0] * 8, [flat] * 4).groups] == [2, 2, 2, 2]
    assert [len(group) for group in arrange([0.0] * 8, [flat] * 4).groups] == [2, 2, 2, 2]


def test_a_long_trajectory_is_alone_and_the_short_ones_share():
    table = SizeTable(np.arange(1.0, 11.0))

    found = arrange([10, 90, 10, 10, 10, 10, 10, 10, 10, 10], [table] * 2)

    assert found.groups == [[1], [0, 2, 3, 4, 5, 6, 7, 8, 9]]
    assert (found.seconds, found.longest) == (90.0, [90.0, 10.0])


def test_a_late_trajectory_joins_the_group_whose_range_holds_its_length():
    table = SizeTable(np.arange(1.0, 8.0))
    found = arrange([100, 40, 39, 10, 9, 8, 7], [table] * 4)

    assert found.groups == [[0], [1, 2], [3, 4], [5, 6]]
    late = {1000: 0, 100: 0, 41: 0, 40: 1, 20: 1, 10: 2, 9: 2, 8: 3, 1: 3}
    assert {length: found.worker_for(length) for length in late} == late
    assert arrange([], [table] * 2).worker_for(5.0) == 0


def test_the_order_of_descending_degree_is_not_always_the_best():
    """The paper's mapping, which callers keep: here the longest is alone on the narrow worker in the best order."""
    wide, narrow = SizeTable([1.0, 1.1, 1.2, 1.6]), SizeTable([1.05, 2.0, 3.0, 4.0])
    some = [10.0, 8.0, 8.0, 8.0]

    assert arrange(some, [wide, narrow]).seconds == pytest.approx(12.0)
    assert arrange(some, [narrow, wide]).seconds == pytest.approx(10.5)
    assert least_cost_of_assignments(some, plain([wide, narrow])) == pytest.approx(10.5)


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf, 1e16])
def test_lengths_that_are_none_are_refused_by_place(wrong):
    table = SizeTable([1.0, 1.0])

    with pytest.raises(InvalidRequest, match="leave the trajectory out") as refused:
        arrange([1.0, wrong], [table])
    assert refused.value.pointer == "/lengths/1"
    with pytest.raises(InvalidRequest) as refused:
        arrange([1.0, 2.0], [table], [wrong, 0])
    assert refused.value.pointer == "/contexts/0"


@pytest.mark.parametrize(
    ("seconds", "pointer", "cure"),
    [
        ([], "/tables", "groups of 1, 2"),
        ([1.0, math.nan], "/tables/1", "seconds above 0"),
        ([0.0], "/tables/0", "seconds above 0"),
        ([-1.0], "/tables/0", "seconds above 0"),
        ([1.0, 2.0, 1.5], "/tables/2", "raise them"),
    ],
)
def test_tables_that_are_none_are_refused_by_place(seconds, pointer, cure):
    with pytest.raises(InvalidRequest, match=cure) as refused:
        SizeTable(seconds)

    assert refused.value.pointer == pointer


def test_a_short_table_is_refused_with_the_sizes_that_it_lacks():
    with pytest.raises(InvalidRequest, match="2 sizes for 3 trajectories") as refused:
        arrange([1, 2, 3], [SizeTable([1, 2, 3]), SizeTable([1, 2])])

    assert refused.value.pointer == "/tables/1"


def test_no_worker_is_refused():
    with pytest.raises(InvalidRequest, match="at least one"):
        arrange([1.0], [])


def test_contexts_are_given_for_all_trajectories_or_none():
    with pytest.raises(InvalidRequest, match="one for each"):
        arrange([1.0, 2.0], [SizeTable([1, 2])], [5])


@pytest.mark.parametrize("sigma", [math.nan, -0.1, 5.1])
def test_a_deviation_that_is_none_is_refused(sigma):
    with pytest.raises(InvalidRequest, match="log error"):
        SizeTable([1.0]).hedged(sigma)


@given(tables, st.floats(0, 3))
def test_a_hedged_table_charges_large_groups_for_their_worst_prediction(table, sigma):
    hedged = table.hedged(sigma)

    assert hedged.seconds[0] == table.seconds[0]
    factors = np.array(hedged.seconds) / table.seconds
    assert (np.diff(factors) >= -1e-9).all()
    # z(1 - 1/4) of a group of three.
    assert factors[2] == pytest.approx(math.exp(sigma * 0.6744897501960817))


def test_hedging_makes_the_large_groups_smaller():
    table = SizeTable(1 + 0.02 * np.arange(64))
    some = [64.0 - place for place in range(64)]

    sizes = [
        np.diff([0, *arrange(some, [table.hedged(sigma)] * 4).ends]).tolist()
        for sigma in (0, 0.3, 0.6, 1)
    ]

    assert sizes[0] == [4, 7, 15, 38]
    assert [each[-1] for each in sizes] == [38, 34, 31, 28]


def a_profile(degree=1, **fields):
    return DegreeProfile(
        degree=degree,
        batches=(1, 4),
        contexts=(0,),
        token_seconds=((0.01 / degree,), (0.04 / degree,)),
        prefill=((1, 1.0),),
        kv_tokens=1000,
        **fields,
    )


TIMES = ProfiledTimes(EngineProfile(degrees=(a_profile(1), a_profile(2))))


def test_groups_above_the_slots_take_turns():
    table = size_table(TIMES, 1, slots=4, sizes=8, context_tokens=10)

    assert table.seconds == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08])
    assert table.running == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.04, 0.04, 0.04, 0.04])
    assert table.kv_tokens == 1000


def test_workers_of_one_degree_share_a_table():
    some = [WorkerFacts(1, 4, 2), WorkerFacts(2, 4), WorkerFacts(3, 4)]

    tables = size_tables(TIMES, some, 8, 10, sigma=0.5)

    assert tables[1] is tables[2]
    assert tables[0].seconds[0] == pytest.approx(0.005)
    assert tables[1].seconds[3] > 0.04


def test_workers_are_ordered_by_degree_then_number():
    some = [WorkerFacts(3, 4, 1), WorkerFacts(2, 4, 8), WorkerFacts(1, 4, 1)]

    assert [worker.number for worker in by_degree(some)] == [2, 1, 3]


def test_slots_below_one_are_refused():
    with pytest.raises(InvalidRequest, match="at least 1"):
        size_table(TIMES, 1, slots=0, sizes=1, context_tokens=0)
