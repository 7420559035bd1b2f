"""Elastic grants: policies that grant more than the smallest count."""

from __future__ import annotations

from typing import Any

import pytest

from domain.action import ActionState
from domain.elasticity import Elasticity
from domain.inventory import Config, PoolConfig
from scheduler.core.advice.forecast import recent_decisions
from tests.builders import GIB, a_config, a_lease, a_node, an_action, granted
from tests.scenario import Scenario

PERFECT = Elasticity(amdahl=1.0)


def with_policy(policy: str, **fields: Any) -> Config:
    return a_config(pools=[PoolConfig("default", policy)], **fields)


def wide(name: str, counts: Any = (1, 2), seconds: float = 10.0, **fields: Any) -> Any:
    """Return an action that is as many times faster as it has cores."""
    fields.setdefault("cost", {"cpu": list(counts)})
    return an_action(name, duration_seconds=seconds, elasticity=PERFECT, **fields)


def cores(scenario: Scenario, name: str) -> float:
    (allocation,) = [
        each for each in scenario.the_grant(name).allocations if each.resource.startswith("cpu:")
    ]
    return allocation.amount / 1000


@pytest.fixture
def two_cores(core) -> Scenario:
    """Start a node of two cores under `paper`."""
    return core(a_node("n1", cpus=2), config=with_policy("paper"))


def test_an_action_alone_gets_what_it_is_fastest_with(core):
    scenario = core(a_node("n1", cpus=8), config=with_policy("paper"))

    scenario.submit(wide("a", [1, 2, 4]))

    assert cores(scenario, "a") == 4
    assert scenario.free("cpu:n1") == 4


def test_counts_of_actions_that_declare_no_speed_up_are_a_decision_without_a_comparison(core):
    """What `tangram submit --cpu 1,2,4` sends: several counts, no elasticity, no duration."""
    scenario = core(a_node("n1", cpus=8), config=with_policy("paper"))

    scenario.submit(*(an_action(f"a{n}", cost={"cpu": [1, 2, 4]}) for n in range(12)))

    (decision,) = recent_decisions(scenario.machine.state, 10)
    assert decision.no_choice
    assert decision.units == {f"a{n}": 1 for n in range(8)}
    assert decision.trials == []
    scenario.finish("a0")
    scenario.submit(wide("b"))
    assert [each.no_choice for each in recent_decisions(scenario.machine.state, 10)] == [True, True]


def test_an_evicted_action_waits_for_the_predicted_end_and_says_so(two_cores):
    """Sharing takes 10 + 10 s; one after the other on both cores 5 + 10 s."""
    assert granted(two_cores.submit(wide("a"), wide("b"))) == ["a"]

    assert cores(two_cores, "a") == 2
    assert two_cores.why("b").code == "short_of"
    assert granted(two_cores.finish("a")) == ["b"]


def held_back(core) -> Scenario:
    """Start a node on which `b` is held back beside a free core.

    Two cores are left by a lease of which nothing is known, so that it is expected to end in 1 s.
    Both at once: 5 + 10 s (`balanced` caps at two cores). `b` after the lease: 1 + 5 s.
    """
    scenario: Scenario = core(a_node("n1", cpus=4), config=with_policy("balanced"))
    scenario.submit(a_lease("steady", cost={"cpu": 1}, ttl_seconds=900))
    assert granted(scenario.submit(wide("a", [1, 2, 3]), wide("b", [1, 2, 3]))) == ["a"]
    assert scenario.free("cpu:n1") == 1
    return scenario


def test_an_evicted_action_beside_free_units_says_how_long_it_is_held_back(core):
    why = held_back(core).why("b")

    assert (why.code, why.resource, why.position) == ("deferred", "cpu:n1", 0)
    assert why.reason.endswith("it goes after the next one ends, in about 1 s")


def test_an_evicted_action_is_reconsidered_at_the_predicted_end(core):
    scenario = held_back(core)

    assert granted(scenario.advance(0.9)) == []
    assert granted(scenario.advance(0.2)) == ["b"]
    assert cores(scenario, "b") == 1


def test_an_unrelated_event_does_not_grant_an_evicted_action(core):
    scenario = held_back(core)

    decisions = scenario.submit(an_action("light", cost={"cpu": 0.5}))

    assert granted(decisions) == []
    assert (
        scenario.why("light").reason
        == "waits for 0.5 of cpu:n1, 1 free, kept for actions before it on node n1"
    )
    assert scenario.why("b").code == "deferred"


def test_free_units_end_the_wait_of_an_evicted_action(core):
    scenario = held_back(core)

    assert granted(scenario.release("steady")) == ["b"]
    assert cores(scenario, "b") == 2


def test_a_new_arrival_is_arranged_together_with_evicted_actions(core):
    scenario = held_back(core)

    assert granted(scenario.submit(wide("c", [1]))) == ["b"]


def test_a_trainer_that_declares_nothing_gets_the_smallest_count(two_cores):
    two_cores.submit(an_action("a", cost={"cpu": [1, 2]}))

    assert cores(two_cores, "a") == 1


def test_a_learned_duration_makes_a_profile_useful(two_cores):
    """The first one of its family runs on one core, then T_ori is known."""
    profile: dict[str, Any] = {"elasticity": PERFECT, "family": "tests", "cost": {"cpu": [1, 2]}}
    two_cores.submit(an_action("a", **profile))
    assert cores(two_cores, "a") == 1
    two_cores.finish("a", execution_seconds=8.0)

    two_cores.submit(an_action("b", **profile))

    assert cores(two_cores, "b") == 2


def test_fixed_waits_for_its_count(core):
    scenario = core(a_node("n1", cpus=4), config=with_policy("fixed(4)"))
    scenario.submit(an_action("small"))
    scenario.submit(wide("a", [1, 2, 4, 8]))

    assert scenario.why("a").reason == "waits for 4 of cpu:n1, 3 free on node n1"
    assert granted(scenario.finish("small")) == ["a"]
    assert cores(scenario, "a") == 4


def test_fixed_asks_for_no_count_that_no_node_has(core):
    scenario = core(a_node("n1", cpus=4), config=with_policy("fixed(16)"))
    scenario.submit(wide("a", [1, 2, 4, 8, 16]))
    assert cores(scenario, "a") == 4
    scenario.submit(wide("b", [1, 2, 4, 8, 16]))

    assert granted(scenario.join(a_node("n2", cpus=32))) == ["b"]
    assert cores(scenario, "b") == 16


def test_balanced_shares_what_there_is_among_all_that_are_in_the_system(core):
    """Four cores, one of them taken for long: two elastic actions get two of three at most."""
    scenario = core(a_node("n1", cpus=4), config=with_policy("balanced"))
    scenario.submit(a_lease("steady", cost={"cpu": 1}, duration_seconds=900.0))

    scenario.submit(wide("a", [1, 2, 3]), wide("b", [1, 2, 3]))

    assert (cores(scenario, "a"), cores(scenario, "b")) == (2, 1)


@pytest.mark.parametrize("policy", ["minimum", "fixed(2)", "balanced", "paper", "no such policy"])
def test_a_policy_is_switched_while_actions_run_unharmed(two_cores, policy):
    two_cores.submit(wide("a"))
    two_cores.submit(wide("b", [1, 2]), wide("c", [1, 2]))

    decisions = two_cores.configure(with_policy(policy, revision=1))

    assert granted(decisions) == []
    assert two_cores.state("a") is ActionState.GRANTED
    went = granted(two_cores.finish("a"))
    expected = ["b", "c"] if policy in {"minimum", "balanced", "no such policy"} else ["b"]
    assert went == expected


def test_one_group_is_arranged_per_node(core):
    scenario = core(a_node("n1", cpus=2), a_node("n2", cpus=2), config=with_policy("paper"))

    assert sorted(granted(scenario.submit(wide("a"), wide("b")))) == ["a", "b"]
    assert {scenario.the_grant(name).node for name in "ab"} == {"n1", "n2"}
    assert (cores(scenario, "a"), cores(scenario, "b")) == (2, 2)


def test_an_action_evicted_on_one_node_is_granted_on_another_at_once(core):
    """n2 has memory reserved, so n1 is the first choice of both; `b` is evicted there."""
    scenario = core(a_node("n1", cpus=2), a_node("n2", cpus=2), config=with_policy("paper"))
    scenario.submit(an_action("old", trajectory="t", memory_bytes=GIB))
    loaded = scenario.the_grant("old").node
    scenario.finish("old")

    went = granted(scenario.submit(wide("a"), wide("b")))

    assert went == ["a", "b"]
    assert scenario.the_grant("a").node != loaded
    assert scenario.the_grant("b").node == loaded
    assert (cores(scenario, "a"), cores(scenario, "b")) == (2, 2)


def test_cluster_wide_resources_are_arranged_too(core):
    config = a_config(pools=[PoolConfig("default", "paper")], apis={"search": 3})
    scenario = core(config=config)

    scenario.submit(wide("a", cost={"cpu": 1, "api:search": [1, 2, 3]}, key="api:search"))

    amounts = {each.resource: each.amount for each in scenario.the_grant("a").allocations}
    assert amounts == {"api:search": 3000, "cpu:n1": 1000}
