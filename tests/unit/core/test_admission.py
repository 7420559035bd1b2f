"""Admission: order and size of grants."""

from __future__ import annotations

from domain.action import ActionState
from domain.allocation import Allocation
from domain.decisions import Grant
from domain.events import TaskOpened
from domain.ids import ResourceId
from tests.builders import a_config, a_lease, a_node, a_noop, an_action, granted, only


def test_an_action_gets_the_fewest_units_it_can_use(core):
    scenario = core(a_node("n1", cpus=8))

    scenario.submit(an_action("a", cost={"cpu": [4, 2, 8]}))

    grant = scenario.the_grant("a")
    assert grant.node == "n1"
    assert grant.allocations == (Allocation(ResourceId("cpu:n1"), 2000, (0, 1)),)


def test_a_noop_is_granted_on_a_node_and_takes_nothing(core):
    scenario = core(a_node("n1", cpus=1))

    scenario.submit(an_action("busy"), a_noop("ping"))

    assert scenario.the_grant("ping").node == "n1"
    assert scenario.the_grant("ping").allocations == ()


def test_actions_of_one_batch_are_granted_in_order_of_arrival(core):
    scenario = core(a_node("n1", cpus=2))

    assert granted(scenario.submit(*(an_action(name) for name in "dbca"))) == ["d", "b"]
    assert granted(scenario.finish("d", "b")) == ["c", "a"]


def test_a_higher_priority_goes_first_and_equals_keep_their_order(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("running"))
    scenario.submit(
        an_action("low", priority=-1),
        an_action("first"),
        an_action("second"),
        an_action("high", priority=5),
    )

    order = [scenario.finish("running")]
    order += [scenario.finish(name) for name in ("high", "first", "second")]

    assert [granted(decisions) for decisions in order] == [["high"], ["first"], ["second"], ["low"]]


def test_a_higher_priority_takes_nothing_from_running_actions(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("running"))

    scenario.submit(an_action("urgent", priority=1_000_000))

    assert scenario.holding() == {"running"}


def test_light_actions_share_a_core(core):
    scenario = core(a_node("n1", cpus=1))

    decisions = scenario.submit(*(an_action(f"light-{n}", cost={"cpu": 0.1}) for n in range(11)))

    assert len(granted(decisions)) == 10
    assert all(grant.allocations[0].shared for grant in only(Grant, decisions))
    assert scenario.free("cpu:n1") == 0


def test_a_grant_takes_all_resources_or_none(core):
    scenario = core(a_node("n1", cpus=4), config=a_config(apis={"search": 1}))
    scenario.submit(a_lease("holder", cost={"api:search": 1}))

    scenario.submit(an_action("both", cost={"cpu": 1, "api:search": 1}))
    assert scenario.state("both") is ActionState.QUEUED
    assert scenario.free("cpu:n1") == 4

    assert granted(scenario.release("holder")) == ["both"]
    assert {a.resource for a in scenario.the_grant("both").allocations} == {
        "cpu:n1",
        "api:search",
    }


def test_an_action_of_cluster_resources_alone_needs_no_node_when_it_is_a_lease(core):
    scenario = core(empty=True, config=a_config(apis={"search": 1}))

    scenario.submit(a_lease("lease", cost={"api:search": 1}))

    assert scenario.the_grant("lease").node is None


def test_actions_of_one_pool_do_not_run_on_nodes_of_another(core):
    config = a_config(pools=("default", "big"))
    scenario = core(a_node("n1", cpus=1), a_node("b1", pool="big"), config=config)

    scenario.submit(an_action("here"), an_action("waits"), an_action("there", pool="big"))

    assert scenario.holding() == {"here", "there"}
    assert scenario.the_grant("there").node == "b1"


def test_a_task_bound_to_a_pool_brings_its_actions_there(core):
    config = a_config(pools=("default", "big"))
    scenario = core(a_node("n1"), a_node("b1", pool="big"), config=config)
    scenario.handle(TaskOpened(project="default", task="rl", pool="big"))

    scenario.submit(an_action("a", task="rl"), an_action("b", task="other"))

    assert scenario.the_grant("a").node == "b1"
    assert scenario.the_grant("b").node == "n1"


def test_a_repeated_submission_of_a_live_action_changes_nothing(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("a"))

    assert scenario.submit(an_action("a")) == []
    assert scenario.free("cpu:n1") == 1
