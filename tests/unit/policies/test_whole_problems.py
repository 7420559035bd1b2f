"""Scan, groups, claims and evictions of whole problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from domain.elasticity import Elasticity
from domain.ids import ActionId, ResourceId
from domain.resources import MILLI
from scheduler.core.advice.planner import (
    PlannedGrants,
    PlanningProblem,
    ResourceSnapshot,
    WaitingAction,
    plan_grants,
)
from scheduler.core.policies.registry import policy_named
from tests.tiers import by_tier

PERFECT = Elasticity(amdahl=1.0)


def waiting(name: str, cost: Mapping[str, Sequence[int]], **fields: Any) -> WaitingAction:
    """Return a waiting action; its profile is perfect when it has a duration."""
    if "duration_seconds" in fields:
        fields.setdefault("elasticity", PERFECT)
    units = {name: tuple(count * MILLI for count in counts) for name, counts in cost.items()}
    return WaitingAction(ActionId(name), units, **fields)


def planned(
    free: Mapping[str, float], *some: WaitingAction, policy: str = "paper", **running: Any
) -> PlannedGrants:
    """Decide about ``some`` on resources of which so many units are free."""
    resources = {
        ResourceId(name): ResourceSnapshot(round(units * MILLI), running.get(name, ()))
        for name, units in free.items()
    }
    return plan_grants(PlanningProblem(resources, some), policy_named(policy))


def test_an_action_scales_along_its_key_and_takes_the_smallest_count_of_others():
    plan = planned(
        {"cpu": 8, "api": 8},
        waiting("a", {"cpu": [1, 2, 4], "api": [1, 2]}, key="cpu", duration_seconds=4.0),
    )

    assert plan.selected == {"a": {"cpu": 4000, "api": 1000}}
    assert plan.objective_seconds == {"cpu": 1.0}


def test_a_group_shares_out_only_what_others_and_claims_leave():
    """4 cores: 1 is used by a search, 1 is claimed by who waits for the GPU; 2 are left."""
    plan = planned(
        {"cpu": 4, "api": 1, "gpu": 0},
        waiting("search", {"cpu": [1], "api": [1]}, key="api"),
        waiting("judge", {"cpu": [1], "gpu": [1]}, key="gpu"),
        waiting("a", {"cpu": [1, 2, 3, 4]}, duration_seconds=12.0),
    )

    assert plan.selected["a"] == {"cpu": 2000}
    assert plan.waiting == {"judge": "waits for 1 of gpu, 0 free"}


def test_an_evicted_action_claims_its_other_resources():
    """`second` is evicted from the cores; its API slot is not handed to `third`."""
    plan = planned(
        {"cpu": 2, "api": 2},
        waiting("first", {"cpu": [1, 2]}, duration_seconds=10.0),
        waiting("second", {"cpu": [1, 2], "api": [1]}, key="cpu", duration_seconds=10.0),
        waiting("third", {"api": [1, 2]}, duration_seconds=4.0),
    )

    assert plan.selected == {"first": {"cpu": 2000}, "third": {"api": 1000}}
    assert plan.waiting["second"].startswith("evicted: more of cpu for those before it")
    assert "from 20 to 15 s; the next end is in 5 s" in plan.waiting["second"]


def test_an_action_behind_another_says_so():
    plan = planned(
        {"cpu": 1, "api": 1},
        waiting("wide", {"cpu": [2]}),
        waiting("small", {"cpu": [1]}),
        waiting("call", {"api": [1]}),
    )

    assert list(plan.selected) == ["call"]
    assert plan.waiting["small"] == "wide came before it and waits for cpu"


def test_a_resource_that_shrank_below_what_runs_grants_nothing():
    plan = planned({"cpu": -2}, waiting("a", {"cpu": [1]}))

    assert plan.selected == {}
    assert plan.waiting == {"a": "waits for 1 of cpu, -2 free"}


def test_an_action_without_a_cost_goes_at_once():
    assert planned({}, waiting("a", {})).selected == {"a": {}}


def test_light_actions_are_shown_beside_whole_units():
    plan = planned(
        {"cpu": 2.5},
        WaitingAction(ActionId("light"), {"cpu": (100,)}),
        waiting("a", {"cpu": [1, 2, 3]}, duration_seconds=6.0),
    )

    assert plan.selected == {"light": {"cpu": 100}, "a": {"cpu": 2000}}


def test_the_key_is_the_only_elastic_resource_when_none_is_declared():
    plan = planned(
        {"cpu": 4, "api": 1}, waiting("a", {"api": [1], "cpu": [1, 4]}, duration_seconds=4.0)
    )

    assert plan.selected == {"a": {"cpu": 4000, "api": 1000}}


def test_fixed_waits_for_its_count_while_minimum_goes_with_less():
    four = waiting("a", {"cpu": [1, 2, 4]}, duration_seconds=4.0)

    assert planned({"cpu": 3}, four, policy="fixed(4)").waiting == {
        "a": "waits for 4 of cpu, 3 free"
    }
    assert planned({"cpu": 3}, four, policy="minimum").selected == {"a": {"cpu": 1000}}
    assert planned({"cpu": 8}, four, policy="fixed(4)").selected == {"a": {"cpu": 4000}}


COSTS = st.dictionaries(
    st.sampled_from(["cpu", "api", "gpu"]),
    st.sets(st.integers(1, 6), min_size=1, max_size=4).map(sorted),
    max_size=3,
)


@settings(max_examples=by_tier(20, 80, 800), deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(COSTS, st.none() | st.floats(0.1, 20.0)), max_size=8),
    st.tuples(st.integers(-1, 9), st.integers(-1, 9), st.integers(-1, 9)),
    st.sampled_from(["paper", "paper(free restores)", "minimum", "fixed(2)", "balanced"]),
)
def test_no_plan_grants_more_than_is_free_or_an_infeasible_count(actions, free, policy):
    some = [
        waiting(f"a{n}", cost, **({} if seconds is None else {"duration_seconds": seconds}))
        for n, (cost, seconds) in enumerate(actions)
    ]

    plan = planned(dict(zip(["cpu", "api", "gpu"], free, strict=True)), *some, policy=policy)

    assert {*plan.selected, *plan.waiting} == {one.id for one in some}
    assert not set(plan.selected) & set(plan.waiting)
    costs = {str(one.id): one.cost for one in some}
    for name, units in plan.selected.items():
        assert units.keys() == costs[name].keys()
        assert all(amount in costs[name][resource] for resource, amount in units.items())
    for resource, have in zip(["cpu", "api", "gpu"], free, strict=True):
        taken = sum(units.get(resource, 0) for units in plan.selected.values())
        assert taken == 0 or taken <= have * MILLI
