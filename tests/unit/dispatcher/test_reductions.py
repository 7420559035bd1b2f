"""Advantages from sums of all ranks are those that one process computes from all rewards."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.layout import LayoutError, Mesh
from dispatcher.local import execute
from dispatcher.plan import plan_transfer
from dispatcher.reduce import SUMS, GroupSums, Kind, advantages, sums_layouts

KINDS: tuple[Kind, ...] = ("grpo", "grpo-centred", "rloo", "reinforce")
rewards_of_batches = st.lists(
    st.tuples(
        st.one_of(st.floats(-100, 100), st.just(float("nan"))), st.integers(0, 3), st.integers(0, 4)
    ),
    max_size=24,
)


@given(rewards_of_batches)
def test_division_among_ranks_does_not_show(batch):
    rewards, groups, ranks = (
        (np.array(column) for column in zip(*batch, strict=True)) if batch else (np.zeros(0),) * 3
    )
    groups = groups.astype(np.int64)
    alone = GroupSums.of(rewards, groups, 4)

    together = GroupSums.merge(
        GroupSums.of(rewards[ranks == rank], groups[ranks == rank], 4) for rank in range(5)
    )

    for kind in KINDS:
        np.testing.assert_array_equal(
            advantages(rewards, groups, together, kind), advantages(rewards, groups, alone, kind)
        )


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12), st.sampled_from([0, 10**6]))
def test_deviation_is_right_though_the_mean_is_far_away(integers, offset):
    values = [Fraction(offset) + Fraction(each, 1024) for each in integers]
    mean = sum(values) / len(values)
    variance = sum((each - mean) ** 2 for each in values) / (len(values) - 1)

    sums = GroupSums.of([float(each) for each in values], [0] * len(values), 1)

    assert sums.mean[0] == pytest.approx(float(mean), rel=1e-15)
    assert sums.deviation()[0] == pytest.approx(float(variance) ** 0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("grpo", [1 / np.sqrt(2), -1 / np.sqrt(2), 0, 0]),
        ("grpo-centred", [0.5, -0.5, 0, 0]),
        ("rloo", [1, -1, 0, 0]),
        ("reinforce", [1 / 3, -2 / 3, 0, 1 / 3]),
    ],
)
def test_missing_rewards_and_groups_of_one_have_no_advantage(kind, expected):
    rewards, groups = [1.0, 0.0, float("nan"), 1.0], [0, 0, 0, 1]

    found = advantages(rewards, groups, GroupSums.of(rewards, groups, 3), kind, epsilon=1e-300)

    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_sums_travel_as_an_ordinary_transfer():
    mesh = Mesh(dp=3, tp=2)
    source, target = sums_layouts(mesh, 2)
    parts = [GroupSums.of([float(rank), 1.0], [0, 1], 2) for rank in range(3)]
    plan = plan_transfer(source, target)

    results = execute(
        plan,
        {rank: {SUMS: parts[mesh.coordinates(rank)["dp"]].array()[None]} for rank in mesh.ranks},
    )

    for arrays in results.values():
        merged = GroupSums.merge(map(GroupSums.from_array, arrays[SUMS]))
        assert merged.mean.tolist() == [1.0, 1.0]
    assert plan.bytes_crossing == 6 * 2 * 2 * 5 * 8


@pytest.mark.parametrize(
    ("rewards", "groups", "message"),
    [
        ([1.0, np.inf], [0, 0], r"rewards\[1\]: is inf; give finite rewards"),
        ([1.0], [2], r"groups\[0\]: is 2; there are 2, from 0"),
        ([1.0], [-1], r"groups\[0\]: is -1; give integers from 0"),
        ([1.0], [0, 1], r"rewards: has shape \(1,\); groups has \(2,\)"),
    ],
)
def test_wrong_rewards_are_named(rewards, groups, message):
    with pytest.raises(LayoutError, match=message):
        GroupSums.of(rewards, groups, 2)
