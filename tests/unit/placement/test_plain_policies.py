"""Rivals: orders and routers as engines and frameworks have them."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from placement.policies.plain import ORDERS, hybrid
from placement.policies.registry import RIVALS, make_policy
from tests.unit.placement.fleets import a_fleet, step


def test_each_pair_of_an_order_and_a_router_is_a_rival():
    assert len(RIVALS) == 12
    assert {make_policy(name).name for name in RIVALS} == set(RIVALS)


def test_an_unknown_policy_is_refused_and_the_known_ones_are_named():
    with pytest.raises(InvalidRequest, match=r"'fastest' .* rr\+cache"):
        make_policy("fastest")


def ranks(name):
    """Return the ranks of the second steps of an early trajectory with many tokens, and of a late one with few."""
    fleet = a_fleet(policy=make_policy(name))
    step(fleet, "early", 0.0, sampled=500)
    step(fleet, "late", 1.0, sampled=5)
    return [fleet.request(key, 5.0).rank for key in ("early", "late")]


def test_round_robin_leaves_the_order_to_the_queue():
    first, second = ranks("rr+cache")
    assert first == second


def test_first_come_first_served_is_by_trajectory():
    first, second = ranks("fcfs+cache")
    assert first > second


def test_autellix_serves_what_had_least():
    first, second = ranks("autellix+cache")
    assert first < second


def test_least_load_ignores_caches():
    fleet = a_fleet(policy=make_policy("rr+least"))
    for key in "abc":
        step(fleet, key, 0.0)
    fleet.request("a", 5.0)

    assert fleet.request("c", 5.0).worker == 2


def test_cache_aware_spreads_new_trajectories_and_keeps_old_ones_whatever_the_load():
    fleet = a_fleet(1, 1, policy=make_policy("rr+cache"))
    assert [step(fleet, key, 0.0).worker for key in "abcd"] == [1, 2, 1, 2]
    fleet.request("a", 5.0)
    assert fleet.request("c", 5.0).worker == 1


def overload(router, most, least):
    """Return whether a router leaves the cache on a worker with ``most`` generations, where another has ``least``."""
    from placement.facts import TrajectoryFacts, WorkerFacts, WorkerLoad

    loads = [
        WorkerLoad(WorkerFacts(1, 999), most, 0, 0),
        WorkerLoad(WorkerFacts(2, 999), least, 0, 0),
    ]
    return router(TrajectoryFacts("a", 1, worker=1), loads)[0].facts.number == 2


def test_hybrid_ignores_caches_above_a_difference_of_32():
    assert not overload(hybrid(32), 132, 100)
    assert overload(hybrid(32), 133, 100)
    assert overload(hybrid(32), 33, 0)


def test_the_gateway_of_sglang_asks_for_a_difference_and_a_factor():
    router = hybrid(64, 1.5)

    assert not overload(router, 64, 0)
    assert overload(router, 65, 0)
    assert not overload(router, 200, 134)
    assert overload(router, 202, 134)


def test_rivals_need_no_memory():
    for name in ORDERS:
        policy = make_policy(f"{name}+cache")
        assert policy.remember() == b""
