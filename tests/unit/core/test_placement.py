"""Placement: the node of a trajectory's actions."""

from __future__ import annotations

from domain.inventory import PoolConfig
from tests.builders import GIB, a_config, a_node, an_action, granted


def a_step(name, trajectory="t1", **fields):
    return an_action(name, trajectory=trajectory, **fields)


def test_the_first_action_goes_to_the_node_with_the_least_memory_taken(core):
    scenario = core(a_node("n1", memory_bytes=8 * GIB), a_node("n2", memory_bytes=8 * GIB))
    scenario.submit(a_step("a", "t1", memory_bytes=4 * GIB))

    scenario.submit(a_step("b", "t2", memory_bytes=1 * GIB))
    scenario.submit(a_step("c", "t3", memory_bytes=1 * GIB))

    assert [scenario.node_of(t) for t in ("t1", "t2", "t3")] == ["n1", "n2", "n2"]


def test_equally_loaded_memory_leaves_the_choice_to_free_cores(core):
    scenario = core(a_node("n1", cpus=4), a_node("n2", cpus=4))
    scenario.submit(an_action("alone", cost={"cpu": 2}))

    scenario.submit(a_step("a"))

    assert scenario.node_of("t1") == "n2"


def test_later_actions_stay_where_the_environment_is(core):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(a_step("a"))
    home = scenario.node_of("t1")
    scenario.submit(an_action("other", cost={"cpu": 1}))
    scenario.finish("a")
    taken = scenario.submit(an_action("takes-home"))
    assert taken
    assert scenario.the_grant("takes-home").node == home
    scenario.finish("other")

    scenario.submit(a_step("b"))
    assert scenario.why("b").resource == f"cpu:{home}"

    scenario.finish("takes-home")
    assert scenario.the_grant("b").node == home


def test_a_waiting_trajectory_is_placed_where_room_is_first_while_nothing_has_run(core):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(an_action("x"), an_action("y"))
    scenario.submit(a_step("a"))
    assert scenario.node_of("t1") is None
    saving_on = scenario.why("a").resource.removeprefix("cpu:")
    elsewhere = next(n for n in "xy" if scenario.the_grant(n).node != saving_on)

    scenario.finish(elsewhere)

    assert scenario.node_of("t1") == scenario.the_grant(elsewhere).node != saving_on


def test_a_node_that_is_too_small_is_not_considered(core):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=8))
    scenario.submit(an_action("busy", cost={"cpu": 7}))

    scenario.submit(a_step("wide", cost={"cpu": 4}))

    assert scenario.why("wide").resource == "cpu:n2"


def test_a_call_of_a_trajectory_does_not_bind_it(core):
    scenario = core(a_node("n1"), a_node("n2"))

    scenario.submit(a_step("ask", kind="call"))

    assert scenario.node_of("t1") is None


def test_an_action_on_cores_finds_its_node_where_policies_choose_counts(core):
    scenario = core(
        a_node("n1"), a_node("n2"), config=a_config(pools=[PoolConfig("default", "malleable")])
    )
    decisions = scenario.submit(an_action("a", cost={"cpu": [1, 2]}))
    assert granted(decisions) == ["a"]
