"""Capacity planning: the fewest nodes that meet a target."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from simulator.capacity import Wish, fewest_nodes
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene
from simulator.overheads import NONE
from tests.unit.simulator.scripts import act, script


def a_scene(actions: int) -> Scene:
    """Actions of 10 s at once, on nodes of one core."""
    workload = script(*([act(f"a{number}", 10.0)] for number in range(actions)))
    return Scene(workload, Cluster(1, 1, GIB), overheads=NONE)


@pytest.mark.parametrize(
    ("wish", "nodes"),
    [
        (Wish(10.0), 8),  # no action waits
        (Wish(15.0), 4),  # half of them wait 10 s
        (Wish(14.9), 5),
        (Wish(45.0), 1),
        (Wish(20.0, "p99"), 4),
    ],
)
def test_the_fewest_nodes_that_fulfil_the_wish_are_found(wish: Wish, nodes: int):
    answer = fewest_nodes(a_scene(8), "minimum", wish, 16)

    assert answer.nodes == nodes
    assert len(answer.trials) <= 5
    assert {trial.nodes: trial.enough for trial in answer.trials}[nodes]


def test_an_unreachable_target_is_reported():
    answer = fewest_nodes(a_scene(8), "minimum", Wish(9.0), 16)

    assert answer.nodes is None
    assert [trial.nodes for trial in answer.trials] == [16]


@pytest.mark.parametrize("wished", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wish_that_makes_no_sense_is_refused(wished: float):
    with pytest.raises(InvalidRequest, match="wished ACT"):
        Wish(wished)


def test_rewards_can_be_wished_only_where_there_are_some():
    with pytest.raises(InvalidRequest, match="no rewards"):
        fewest_nodes(a_scene(1), "minimum", Wish(9.0, rewards=True), 2)
