"""Replicas share rows so that no division makes the busiest sender much less busy."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.sharing import Demand, share

RANKS = 6
demands_of_replicas = st.lists(
    st.builds(
        Demand,
        st.sets(st.integers(0, RANKS - 1), min_size=1, max_size=4).map(
            lambda each: tuple(sorted(each))
        ),
        st.sampled_from([1, 4, 8, 20]),
        st.integers(1, 10_000),
    ),
    min_size=1,
    max_size=10,
)


def _loads(demands, shares):
    loads = [0] * RANKS
    for demand, rows in zip(demands, shares, strict=True):
        assert sum(rows) == demand.rows
        for rank, count in zip(demand.candidates, rows, strict=True):
            loads[rank] += count * demand.row_bytes
    return loads


@given(demands_of_replicas)
def test_busiest_sender_is_near_the_bound_of_all_sets_of_ranks(demands):
    groups = chain.from_iterable(combinations(range(RANKS), size) for size in range(1, RANKS + 1))
    # What a set of ranks alone can send, it sends: by the max-flow min-cut theorem, the largest such mean is the optimum of divisible rows.
    optimum = max(
        sum(each.rows * each.row_bytes for each in demands if set(each.candidates) <= set(group))
        / len(group)
        for group in groups
    )

    busiest = max(_loads(demands, share(demands, [0] * RANKS, 0)))

    assert busiest <= 1.01 * optimum + max(each.row_bytes for each in demands)


@pytest.mark.parametrize("rows", [[4, 4, 3], [1, 1, 1]])
def test_rows_move_along_chains_where_sets_overlap(rows):
    demands = [Demand((0,), 8, 1)] + [
        Demand((rank, rank + 1), 8, count) for rank, count in enumerate(rows)
    ]

    loads = _loads(demands, share(demands, [0] * RANKS, 0))

    assert max(loads) == 8 * -(-(1 + sum(rows)) // 4)
