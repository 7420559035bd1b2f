"""Infeasible requests: refused, or harmless until capacity changes."""

from __future__ import annotations

from domain.action import ActionState, Outcome
from domain.node_groups import NodeGroupSpec
from tests.builders import GIB, a_config, a_lease, a_node, an_action, an_environment, granted


def test_more_than_the_largest_node_has_is_refused_with_the_reason(core):
    scenario = core(a_node("n1", cpus=4), a_node("n2", cpus=8))

    scenario.submit(an_action("a", cost={"cpu": 16}))

    assert scenario.outcomes == {"a": Outcome.INFRA_FAILED}
    assert scenario.the_finish("a").detail == (
        "can never run: cpu: 16 asked, the largest node of pool 'default' has 8"
    )


def test_what_a_node_group_may_have_waits_for_its_node(core):
    groups = {"big": NodeGroupSpec("fake", max_count=2, cpus=16, gpus=2)}
    scenario = core(a_node("n1", cpus=4), config=a_config(node_groups=groups))

    scenario.submit(
        an_action("a", cost={"cpu": 16}, memory_bytes=64 * GIB, trajectory="t"), an_action("g", cost={"gpu": 2})
    )  # fmt: skip
    scenario.submit(an_action("b", cost={"cpu": 17}))

    assert scenario.outcomes == {"b": Outcome.INFRA_FAILED}
    scenario.join(a_node("big-1", cpus=16, memory_bytes=64 * GIB, gpu=2))
    assert scenario.holding() == {"a", "g"}


def test_a_node_group_that_may_have_no_node_lets_nothing_wait(core):
    groups = {"g": NodeGroupSpec("fake", count=0, cpus=16), "far": NodeGroupSpec("fake", pool="p", count=1, cpus=16)}  # fmt: skip
    scenario = core(
        a_node("n1", cpus=4), config=a_config(node_groups=groups, pools=("default", "p"))
    )

    scenario.submit(an_action("a", cost={"cpu": 16}))

    assert scenario.outcomes == {"a": Outcome.INFRA_FAILED}


def test_more_than_a_clusters_limit_is_refused(core):
    scenario = core(config=a_config(apis={"search": 2}))

    scenario.submit(a_lease("l", cost={"api:search": 3}))

    assert scenario.the_finish("l").detail == "can never run: api:search: 3 asked, the limit is 2"


def test_a_resource_that_no_node_has_is_refused_with_those_that_there_are(core):
    scenario = core(a_node("n1", cpus=4))

    scenario.submit(an_action("a", cost={"tpu": 1}))

    assert "has no resource 'tpu'; its nodes offer cpu, memory" in scenario.the_finish("a").detail


def test_needs_that_no_single_node_has_together_are_refused(core):
    scenario = core(a_node("n1", cpus=16, gpu=0), a_node("n2", cpus=1, gpu=4))

    scenario.submit(an_action("a", cost={"cpu": 2, "gpu": 1}))

    assert "no single node" in scenario.the_finish("a").detail


def test_an_environment_with_more_memory_than_any_node_is_refused(core):
    scenario = core(a_node("n1", memory_bytes=GIB))

    scenario.submit(an_action("a", trajectory="t1", memory_bytes=2 * GIB))

    assert scenario.outcomes == {"a": Outcome.INFRA_FAILED}
    assert not scenario.has_trajectory("t1")


def test_an_environment_declared_too_large_with_its_trajectory_is_found_at_the_first_action(core):
    scenario = core(a_node("n1", memory_bytes=GIB))
    scenario.open_trajectory("t1", environment=an_environment(2 * GIB))

    scenario.submit(an_action("a", trajectory="t1"))

    assert scenario.outcomes == {"a": Outcome.INFRA_FAILED}


def test_memory_in_a_cost_is_refused_with_the_cure(core):
    scenario = core()

    scenario.submit(an_action("a", cost={"memory": 1}))

    assert "give environment.memory_bytes" in scenario.the_finish("a").detail


def test_an_action_too_large_for_the_node_of_its_environment_is_refused(core):
    scenario = core(a_node("n1", cpus=2), a_node("n2", cpus=16))
    scenario.submit(an_action("busy", cost={"cpu": 15}))
    scenario.submit(an_action("a", trajectory="t1"))
    home = scenario.node_of("t1")
    assert home == "n1"

    scenario.submit(an_action("b", trajectory="t1", cost={"cpu": 4}))

    assert "can never run on n1, where its environment is" in scenario.the_finish("b").detail


def test_without_any_node_everything_is_given_the_benefit_of_the_doubt(core):
    scenario = core(empty=True)
    scenario.submit(an_action("a", cost={"cpu": 64}))
    assert scenario.state("a") is ActionState.QUEUED

    assert granted(scenario.join(a_node("n1", cpus=64))) == ["a"]


def test_an_action_that_waits_for_a_larger_node_does_not_block_the_small_one(core):
    """An action that no end of another can help must not hold up those that could run."""
    scenario = core(empty=True)
    scenario.submit(an_action("huge", cost={"cpu": 64}))
    scenario.join(a_node("n1", cpus=4))

    assert granted(scenario.submit(an_action("a", cost={"cpu": 4}))) == ["a"]
    assert scenario.why("huge").code == "too_large"

    assert granted(scenario.join(a_node("n2", cpus=64))) == ["huge"]


def test_an_action_that_needs_an_absent_large_node_does_not_block_the_small_one(core):
    scenario = core(a_node("small", cpus=4), a_node("large", cpus=64))
    scenario.lose("large")

    scenario.submit(an_action("huge", cost={"cpu": 64}))
    assert granted(scenario.submit(an_action("a", cost={"cpu": 4}))) == ["a"]

    assert granted(scenario.bring_back("large")) == ["huge"]


def test_a_limit_lowered_below_a_waiting_need_keeps_nothing_else_from_others(core):
    scenario = core(a_node("n1", cpus=2), config=a_config(apis={"search": 2}))
    scenario.submit(a_lease("holder", cost={"api:search": 2}))
    scenario.submit(an_action("both", cost={"cpu": 2, "api:search": 2}))
    scenario.configure(a_config(apis={"search": 1}, revision=1))

    assert granted(scenario.submit(an_action("a", cost={"cpu": 2}))) == ["a"]
    assert scenario.why("both").code == "too_large"
    assert scenario.why("both").reason == "asks for more of api:search than its limit is now"
