"""Heddle as printed: order by tokens, presorted arrangement, moves by rank of the predicted total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.facts import ArrangedGroup, Prediction
from placement.moves import Ranking, worker_by_rank
from placement.policies.grouping import worker_for_length
from placement.policies.paper import PaperPolicy
from tests.unit.placement.fleets import a_fleet, step, tokens

GROUPS = (ArrangedGroup(7, 2, 900.0, 500.0), ArrangedGroup(3, 6, 400.0, 10.0))


def arranged(lengths, *slots, **options):
    """Return a fleet of the paper whose batch has begun with these predicted lengths, and the worker of each."""
    fleet = a_fleet(*(slots or (9, 9)), policy=PaperPolicy(), **options)
    for key, length in lengths.items():
        fleet.predict(key, Prediction(float(length)), 0.0)
        fleet.request(key, 0.0, batch="s1", batch_size=len(lengths))
    fleet.routed(0.0)
    return fleet, {key: fleet.facts.trajectories[key].worker for key in lengths}


def test_the_longest_has_a_worker_with_fewer_beside_it():
    fleet, places = arranged({"a": 10, "b": 1000, "c": 12, "d": 11, "e": 9})

    assert places["b"] == 1
    assert {places[key] for key in "acde"} == {2}
    assert fleet.why("b").code == "arranged"
    assert [(each.size, each.longest) for each in fleet.facts.groups("s1")] == [(1, 1000), (4, 12)]


def test_fewer_trajectories_than_workers_leave_groups_empty():
    fleet, places = arranged({"a": 100, "b": 90}, 9, 9, 9, 9)

    assert len(set(places.values())) == 2
    assert sum(group.size for group in fleet.facts.groups("s1")) == 2


def test_a_batch_without_predictions_is_divided_evenly():
    fleet = a_fleet(9, 9, policy=PaperPolicy())
    for key in "abcd":
        fleet.request(key, 0.0, batch="s1", batch_size=4)
    fleet.routed(0.0)

    assert [load.trajectories for load in fleet.facts.loads] == [2, 2]


def test_the_rank_is_the_predicted_remaining_tokens():
    fleet, _ = arranged({"a": 10, "b": 1000})
    fleet.end("b", 1.0, 50, 400)
    fleet.predict("b", tokens(600), 1.0)

    assert fleet.request("b", 2.0).rank == 600


def test_a_late_trajectory_joins_the_group_of_its_length():
    fleet, _ = arranged({"a": 10, "b": 1000, "c": 12, "d": 11, "e": 9})
    for key, length in (("x", 2000), ("y", 700), ("z", 11), ("w", 1)):
        fleet.predict(key, tokens(length), 1.0)
    routes = {key: fleet.request(key, 1.0, batch="s1") for key in "xyzw"}

    assert {key: route.worker for key, route in routes.items()} == {"x": 1, "y": 1, "z": 2, "w": 2}
    assert routes["x"].reason == "joined"


def test_a_request_returns_to_its_worker_whatever_the_load():
    fleet, places = arranged({"a": 10, "b": 1000, "c": 12, "d": 11, "e": 9}, 1, 1)
    fleet.end("a", 1.0, 10, 1)

    assert (fleet.request("a", 2.0).worker, fleet.why("a").code) == (places["a"], "cached")


def test_who_turns_out_longer_than_predicted_moves_to_the_worker_of_its_rank():
    fleet, places = arranged({"a": 10, "b": 1000, "c": 12, "d": 11, "e": 9})
    fleet.end("a", 1.0, 50, 10)
    fleet.predict("a", tokens(5000), 1.0)

    ((key, source, target),) = [(m.trajectory, m.source, m.target) for m in fleet.moves(1.0)]
    assert (key, source, target) == ("a", places["a"], places["b"])


def test_the_rank_for_moves_is_of_the_total_and_does_not_drift_with_the_steps():
    fleet, _ = arranged({"a": 1000, "b": 900, "c": 12, "d": 11})
    fleet.end("a", 1.0, 50, 990)
    fleet.predict("a", tokens(10), 1.0)

    assert fleet.moves(1.0) == []


def test_groups_shrink_with_what_is_left_and_keep_real_bounds():
    # Of 8, 2 belong to worker 7: of 6 that are left 1.5, so ranks 0 and 1.
    assert [worker_by_rank(GROUPS, position, 8) for position in range(3)] == [7, 7, 3]
    assert [worker_by_rank(GROUPS, position, 6) for position in range(3)] == [7, 7, 3]
    assert [worker_by_rank(GROUPS, position, 4) for position in range(3)] == [7, 3, 3]
    assert [worker_by_rank(GROUPS, position, 3) for position in range(2)] == [7, 3]
    # More than were arranged, and a rank behind all bounds.
    assert worker_by_rank(GROUPS, 3, 16) == 7
    assert worker_by_rank(GROUPS, 99, 8) == 3


def test_a_length_between_groups_belongs_to_the_longer_group():
    assert [worker_for_length(GROUPS, each) for each in (9999, 450, 400, 10, 0)] == [7, 7, 3, 3, 3]
    assert worker_for_length((), 5.0) is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5) | st.none()), max_size=40))
def test_positions_of_a_ranking_are_those_of_a_sorted_list(changes):
    ranking = Ranking()
    totals: dict[str, int] = {}
    for key, total in changes:
        if total is None:
            ranking.remove(key)
            totals.pop(key, None)
        else:
            ranking.put(key, ord(key), float(total))
            totals[key] = total
    expected = sorted(totals, key=lambda key: (-totals[key], key))
    assert [ranking.position(key) for key in expected] == list(range(len(totals)))
    assert ranking.position("z") is None
    assert len(ranking) == len(totals)


def test_finished_trajectories_are_not_ranked():
    fleet, _ = arranged({"a": 1000, "b": 900, "c": 12, "d": 11})
    for key in "abc":
        fleet.finish(key, 1.0)
    fleet.finish("d", 1.0)

    assert fleet.policy._rankings == {}


def test_rankings_are_the_same_after_a_restart():
    fleet, _ = arranged({"a": 1000, "b": 900, "c": 12, "d": 11, "e": 9})
    for key, left in (("d", 700), ("c", 950), ("e", 3)):
        fleet.end(key, 1.0, 50, 100)
        fleet.predict(key, tokens(left), 1.0)
        fleet.request(key, 1.5)
        fleet.end(key, 1.6, 50, 37)
    twin = a_fleet(9, 9, policy=PaperPolicy())
    twin.recall(fleet.remember())
    for each in (fleet, twin):
        each.predict("c", tokens(1200), 2.0)
        each.predict("d", tokens(1300), 2.0)

    assert twin.moves(2.0) == fleet.moves(2.0) != []


@pytest.mark.parametrize("bad", [float("nan"), -3.0])
def test_a_broken_prediction_neither_ranks_nor_arranges(bad):
    fleet = a_fleet(9, 9, policy=PaperPolicy())
    fleet.predict("a", Prediction(bad), 0.0)
    fleet.request("a", 0.0, batch="s1", batch_size=1)
    step(fleet, "b", 0.0)
    fleet.predict("b", Prediction(bad), 2.0)

    assert fleet.refused == {"unusable": 2}
    assert fleet.policy._rankings == {}
