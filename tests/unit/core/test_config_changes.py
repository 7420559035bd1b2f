"""Operators change pools, limits and nodes while actions run and wait."""

from __future__ import annotations

from domain.action import ActionState
from domain.inventory import PoolConfig
from tests.builders import a_config, a_lease, a_node, an_action, granted

PAUSED = PoolConfig("default", paused=True)


def test_a_paused_pool_grants_nothing_and_a_resumed_one_goes_on_by_itself(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("running"), an_action("waiting"))
    scenario.configure(a_config(pools=[PAUSED], revision=1))

    assert granted(scenario.finish("running")) == []
    assert scenario.why("waiting").code == "pool_paused"
    assert granted(scenario.configure(a_config(revision=2))) == ["waiting"]


def test_a_paused_pool_holds_up_no_other_pool(core):
    config = a_config(pools=[PAUSED, "other"], apis={"search": 1})
    scenario = core(a_node("n1"), a_node("o1", pool="other"), config=config)
    scenario.submit(an_action("a", cost={"cpu": 1, "api:search": 1}))

    decisions = scenario.submit(an_action("b", pool="other", cost={"cpu": 1, "api:search": 1}))

    assert granted(decisions) == ["b"]


def test_a_limit_below_what_is_held_leaves_holders_alone_and_grants_nothing(core):
    scenario = core(config=a_config(apis={"search": 4}))
    scenario.submit(*(a_lease(f"l{n}", cost={"api:search": 1}) for n in range(4)))
    scenario.configure(a_config(apis={"search": 2}, revision=1))
    assert scenario.free("api:search") == -2

    scenario.submit(a_lease("next", cost={"api:search": 1}))
    freed = [granted(scenario.release(f"l{n}")) for n in range(3)]

    assert freed == [[], [], ["next"]]


def test_i8_a_raised_limit_wakes_the_queue_by_itself(core):
    scenario = core(config=a_config(apis={"search": 1}))
    scenario.submit(*(a_lease(f"l{n}", cost={"api:search": 1}) for n in range(3)))

    assert granted(scenario.configure(a_config(apis={"search": 3}, revision=1))) == ["l1", "l2"]


def test_i8_a_node_that_joins_larger_than_before_wakes_the_queue_by_itself(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("a"), an_action("b"))

    assert granted(scenario.join(a_node("n1", cpus=2, incarnation=2))) == ["b"]


def test_i4_a_node_that_joins_smaller_than_what_is_held_grants_nothing(core):
    scenario = core(a_node("n1", cpus=4))
    scenario.submit(*(an_action(f"a{n}") for n in range(4)))
    scenario.join(a_node("n1", cpus=2, incarnation=2))
    scenario.submit(an_action("next"))

    assert [granted(scenario.finish(f"a{n}")) for n in (3, 2)] == [[], []]
    assert scenario.free("cpu:n1") == 0
    assert granted(scenario.finish("a0")) == ["next"]


def test_a_node_that_joins_without_a_resource_it_had_offers_it_no_more(core):
    scenario = core(a_node("n1", gpu=1), a_node("n2", gpu=1))
    scenario.submit(an_action("a", cost={"gpu": 1}), an_action("b", cost={"gpu": 1}))
    here = scenario.the_grant("a").node
    scenario.join(a_node(here, incarnation=2))
    scenario.submit(an_action("c", cost={"gpu": 1}))

    assert granted(scenario.finish("a")) == []
    assert granted(scenario.finish("b")) == ["c"]


def test_an_older_revision_is_ignored(core):
    scenario = core(config=a_config(apis={"search": 1}, revision=5))

    scenario.configure(a_config(apis={"search": 9}, revision=4))

    assert scenario.free("api:search") == 1


def test_a_drained_node_takes_nothing_new_and_finishes_what_it_runs(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("running"), an_action("waiting"))
    scenario.configure(a_config(drained_nodes=frozenset({"n1"}), revision=1))

    assert granted(scenario.finish("running")) == []
    assert scenario.why("waiting").code == "nodes_unusable"
    assert granted(scenario.configure(a_config(revision=2))) == ["waiting"]


def test_steps_wait_for_the_drained_node_that_has_their_environment(core):
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.submit(an_action("a", trajectory="t1"))
    home = scenario.node_of("t1")
    scenario.finish("a")
    scenario.configure(a_config(drained_nodes=frozenset({home}), revision=1))

    scenario.submit(an_action("b", trajectory="t1"))

    assert scenario.why("b").code == "node_drained"
    assert scenario.why("b").reason == f"node {home}, which holds its environment, is drained"


def test_a_finishing_node_continues_its_trajectories_and_takes_no_new_one(core):
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.submit(an_action("a", trajectory="t1"))
    home = scenario.node_of("t1")
    scenario.finish("a")
    leaving = frozenset({home})
    scenario.configure(a_config(drained_nodes=leaving, finishing_nodes=leaving, revision=1))

    scenario.submit(
        an_action("b", trajectory="t1"), *(an_action(f"c{n}", trajectory=f"u{n}") for n in range(4))
    )

    assert scenario.node_of("t1") == home
    assert scenario.state("b") is ActionState.GRANTED
    assert {scenario.node_of(f"u{n}") for n in range(4)} <= {"n1", "n2", None} - leaving


def test_a_finishing_node_alone_makes_new_trajectories_wait(core):
    scenario = core(a_node("n1"))
    leaving = frozenset({"n1"})
    scenario.configure(a_config(drained_nodes=leaving, finishing_nodes=leaving, revision=1))
    scenario.submit(an_action("a", trajectory="t1"))
    assert scenario.why("a").code == "nodes_unusable"
    assert granted(scenario.configure(a_config(revision=2))) == ["a"]


def test_a_resource_that_becomes_cluster_wide_is_taken_from_there(core):
    scenario = core(empty=True)
    scenario.submit(a_lease("l", cost={"api:new": 1}))
    assert scenario.state("l") is ActionState.QUEUED

    assert granted(scenario.configure(a_config(apis={"new": 1}, revision=1))) == ["l"]


def test_a_resource_that_is_taken_away_is_waited_for_and_returned_by_its_holder(core):
    scenario = core(config=a_config(apis={"search": 1}))
    scenario.submit(*(a_lease(f"l{n}", cost={"api:search": 1}) for n in range(2)))

    scenario.configure(a_config(revision=1))
    scenario.release("l0")
    assert scenario.why("l1").code == "too_large"

    assert granted(scenario.configure(a_config(apis={"search": 1}, revision=2))) == ["l1"]


def test_an_action_that_waits_again_needs_what_the_present_configuration_says(core):
    scenario = core(a_node("n1"), config=a_config())
    scenario.submit(an_action("a", cost={"gpu": 1}, replay_safe=True))
    assert scenario.outcomes
    scenario.join(a_node("n2", gpu=1))
    scenario.submit(an_action("b", cost={"gpu": 1}, replay_safe=True))
    assert scenario.the_grant("b").node == "n2"
    shared = a_config(revision=1)
    scenario.configure(type(shared)(revision=1, pools=shared.pools, resources={"gpu": 1000}))

    scenario.lose_for_good("n2")

    assert [a.resource for a in scenario.the_grant("b").allocations] == ["gpu"]
