"""Moves of caches: which start, what the return of a tool and a change of workers do to them, and where the next request goes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.placement.fleets import (
    DeclaredTimes,
    ScriptedPolicy,
    a_fleet,
    step,
    tokens,
    workers,
)


def moving(targets, *slots, policy=None, **options):
    """Return a fleet in which each key of ``targets`` had a step and waits for its move; worker 1 has all caches."""
    policy = policy or ScriptedPolicy(targets=targets)
    fleet = a_fleet(*(slots or (9, 9, 9)), policy=policy, **options)
    for length, key in enumerate(targets, 1):
        fleet.request(key, 0.0)
        fleet.pin(key, 1, 0.0)
        fleet.end(key, 0.0)
        step(fleet, key, 1.0, prompt=1000, sampled=1000)
        fleet.pin(key, None, 2.0)
        fleet.predict(key, tokens(100 * length), 2.0)
    return fleet


def started(fleet, at):
    return [(move.trajectory, move.source, move.target) for move in fleet.moves(at)]


def test_the_longest_trajectory_moves_first_and_no_two_moves_share_a_worker():
    fleet = moving({"a": 2, "b": 3, "c": 2})

    assert started(fleet, 2.0) == [("c", 1, 2)]
    assert started(fleet, 2.0) == []
    fleet.move_began("c", 2.0)
    fleet.move_ended("c", 2.5, 2000)
    assert started(fleet, 2.5) == [("b", 1, 3)]


def test_moves_between_different_workers_run_side_by_side():
    fleet = moving({"a": 2}, 9, 9, 9, 9)
    step(fleet, "b", 2.0)
    fleet.pin("b", 3, 3.0)
    step(fleet, "b", 3.0)
    fleet.pin("b", None, 4.0)
    fleet.policy.targets["b"] = 4
    fleet.predict("b", tokens(9000), 4.0)

    assert started(fleet, 4.0) == [("b", 3, 4), ("a", 1, 2)]


def test_after_a_move_the_next_request_goes_to_the_target():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    assert fleet.move_began("a", 2.0)
    fleet.move_ended("a", 2.2, 2000)

    route = fleet.request("a", 3.0)
    assert (route.worker, route.reason) == (2, "moved")
    assert [load.context_tokens for load in fleet.facts.loads] == [0, 2000, 0]


def test_a_transfer_of_no_tokens_failed_and_the_cache_is_where_it_was():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)
    fleet.move_ended("a", 2.2, 0)

    assert fleet.request("a", 3.0).reason == "cached"


def test_a_move_that_has_not_begun_when_the_tool_returns_is_dropped():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    route = fleet.request("a", 2.1)

    assert (route.worker, route.reason) == (1, "cached")
    assert not fleet.move_began("a", 2.2)
    fleet.move_ended("a", 2.3, 2000)
    assert fleet.facts.trajectories["a"].worker == 1


def test_a_request_waits_for_the_rest_of_a_transfer_that_is_shorter_than_a_prefill():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)  # 0.2 s; a prefill takes 2 s

    assert fleet.request("a", 2.1) is None
    assert fleet.why("a").code == "transfer_runs"
    assert fleet.due() == pytest.approx(4.1)
    fleet.move_ended("a", 2.2, 2000)
    ((name, route),) = fleet.routed(2.2)
    assert (name, route.worker, route.reason) == ("a", 2, "moved")
    assert fleet.due() is None


def test_a_request_does_not_wait_for_a_transfer_that_is_longer_than_a_prefill():
    fleet = moving({"a": 2}, times=DeclaredTimes(transfers=100.0))
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)  # 20 s
    route = fleet.request("a", 2.1)

    assert (route.worker, route.reason) == (2, "moved")
    fleet.move_ended("a", 22.0, 0)
    assert fleet.facts.trajectories["a"].worker == 2


def test_a_transfer_that_does_not_end_delays_a_request_by_one_prefill_at_most():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)
    fleet.request("a", 2.1)

    assert fleet.routed(4.0) == []
    ((_, route),) = fleet.routed(4.1)
    assert route.worker == 2


def test_workers_of_a_transfer_that_is_not_waited_for_stay_taken_until_its_end():
    fleet = moving({"a": 2, "b": 3}, times=DeclaredTimes(transfers=100.0))
    fleet.moves(2.0)
    fleet.move_began("b", 2.0)
    fleet.request("b", 2.1)
    assert started(fleet, 2.2) == []
    fleet.move_ended("b", 9.0, 2000)
    assert started(fleet, 9.0) == [("a", 1, 2)]


def test_a_finished_trajectory_whose_name_returns_in_its_transfer_gets_nothing_of_it():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)
    fleet.finish("a", 2.1)
    fleet.request("a", 2.1)
    where = fleet.facts.trajectories["a"].worker
    fleet.end("a", 2.15, 10, 10)
    fleet.move_ended("a", 2.2, 2000)

    assert fleet.facts.trajectories["a"].worker == where == 1


def test_a_lost_target_ends_the_wait_and_the_cache_is_where_it_was():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)
    assert fleet.request("a", 2.1) is None
    fleet.set_workers([each for each in workers(9, 9, 9) if each.number != 2], 2.15)

    ((_, route),) = fleet.routed(2.15)
    assert (route.worker, route.reason) == (1, "cached")
    fleet.move_ended("a", 2.2, 2000)
    assert fleet.facts.trajectories["a"].worker == 1


def test_a_lost_source_ends_the_wait_and_the_next_worker_fills_the_cache():
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)
    fleet.request("a", 2.1)
    fleet.set_workers(workers(9, 9, 9)[1:], 2.15)

    ((_, route),) = fleet.routed(2.15)
    assert route.reason == "worker_lost"


def test_no_move_crosses_versions_of_weights():
    fleet = moving({"a": 2})
    first, *others = workers(9, 9, 9)
    fleet.set_workers([first, *(replace(each, weights_version=1) for each in others)], 2.0)

    assert started(fleet, 2.0) == []


@pytest.mark.parametrize("changed", [1, 2])
def test_new_weights_during_a_transfer_make_it_void(changed):
    fleet = moving({"a": 2})
    fleet.moves(2.0)
    fleet.move_began("a", 2.0)
    fleet.set_workers(
        [replace(each, weights_version=int(each.number == changed)) for each in workers(9, 9, 9)],
        2.1,
    )
    fleet.move_ended("a", 2.2, 2000)

    assert fleet.facts.trajectories["a"].worker == (None if changed == 1 else 1)


def test_a_drained_worker_gets_no_cache_but_gives_its_own_away():
    drained = replace(workers(9)[0], usable=False)
    fleet = moving({"a": 2})
    fleet.set_workers([drained, *workers(9, 9, 9)[1:]], 2.0)
    assert started(fleet, 2.0) == [("a", 1, 2)]

    fleet = moving({"a": 2})
    first, second, third = workers(9, 9, 9)
    fleet.set_workers([first, replace(second, usable=False), third], 2.0)
    assert started(fleet, 2.0) == []


def test_a_pinned_trajectory_does_not_move():
    fleet = moving({"a": 2})
    fleet.pin("a", 1, 2.0)
    fleet.predict("a", tokens(900), 2.0)

    assert started(fleet, 2.0) == []


def test_a_fleet_without_transfers_moves_nothing():
    fleet = moving({"a": 2}, times=DeclaredTimes(transfers=0.0))

    assert started(fleet, 2.0) == []


def test_a_move_whose_begin_is_never_reported_gives_its_workers_back():
    fleet = moving({"a": 2, "b": 3})
    assert started(fleet, 2.0) == [("b", 1, 3)]

    assert started(fleet, 11.9) == []
    assert started(fleet, 12.0) == [("a", 1, 2)]


def test_a_transfer_whose_end_is_never_reported_gives_its_workers_back():
    fleet = moving({"a": 2, "b": 3})
    fleet.moves(2.0)
    fleet.move_began("b", 2.0)

    assert started(fleet, 61.9) == []
    assert started(fleet, 62.0) == [("a", 1, 2)]


def test_what_a_move_is_good_for_is_judged_again_when_it_can_start():
    fleet = moving({"a": 2, "b": 3})
    fleet.moves(2.0)
    fleet.move_began("b", 2.0)
    fleet.policy.targets["a"] = None
    fleet.move_ended("b", 2.2, 2000)

    assert started(fleet, 2.2) == []
