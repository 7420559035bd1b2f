"""Memory belongs to environments, for their whole life."""

from __future__ import annotations

from tests.builders import GIB, a_lease, a_node, an_action, an_environment, granted


def a_step(name, trajectory, memory_gib=0, **fields):
    return an_action(name, trajectory=trajectory, memory_bytes=memory_gib * GIB, **fields)


def test_memory_is_taken_once_and_kept_between_actions(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.submit(a_step("a", "t1", 3))
    scenario.finish("a")
    assert scenario.free("memory:n1") == GIB

    scenario.submit(a_step("b", "t1", 3))
    assert scenario.free("memory:n1") == GIB


def test_memory_is_free_once_the_environment_is_removed(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.submit(a_step("a", "t1", 3))
    scenario.submit(a_step("b", "t2", 3))
    scenario.finish("a")
    scenario.finish_trajectory("t1")
    assert scenario.why("b").resource == "memory:n1"

    assert granted(scenario.remove_environment("t1")) == ["b"]


def test_an_action_that_waits_for_memory_keeps_no_cores_from_one_that_has_it(core):
    """A small node must not stand still.

    1. `t1` has the memory; `t2` waits for it, and a lease leaves one core.
    2. `t2` needs both cores, so it is short of cores too; were they kept for it, `t1` could
       never finish, and its memory would never come free.
    """
    scenario = core(a_node("n1", cpus=2, memory_bytes=4 * GIB))
    scenario.submit(a_step("a", "t1", 4))
    scenario.submit(a_lease("lease", cost={"cpu": 1}))
    scenario.submit(a_step("b", "t2", 4, cost={"cpu": 2}))
    scenario.finish("a")

    assert granted(scenario.submit(a_step("a2", "t1"))) == ["a2"]
    assert scenario.why("b").resource == "memory:n1"


def test_an_action_behind_another_for_memory_keeps_no_cores_either(core):
    scenario = core(a_node("n1", cpus=2, memory_bytes=4 * GIB))
    scenario.submit(a_step("a", "t1", 4))
    scenario.submit(a_lease("lease", cost={"cpu": 1}))
    scenario.submit(a_step("b", "t2", 4), a_step("c", "t3", 2, cost={"cpu": 2}))
    scenario.finish("a")

    assert granted(scenario.submit(a_step("a2", "t1"))) == ["a2"]
    assert scenario.why("c").code == "behind"
    assert scenario.why("c").resource == "memory:n1"


def test_later_newcomers_do_not_overtake_one_that_waits_for_memory(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.submit(a_step("a", "t1", 2))

    scenario.submit(a_step("wide", "t2", 4), a_step("small", "t3", 1))

    assert scenario.holding() == {"a"}
    assert scenario.why("small").blocked_by == "wide"


def test_an_environment_declared_with_the_trajectory_counts_for_its_first_action(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.open_trajectory("t1", environment=an_environment(3 * GIB))

    scenario.submit(a_step("a", "t1"))

    assert scenario.free("memory:n1") == GIB


def test_an_environment_may_be_declared_late_while_nothing_has_run(core):
    scenario = core(a_node("n1", cpus=1, memory_bytes=4 * GIB))
    scenario.submit(an_action("busy"))
    scenario.submit(a_step("a", "t1"))
    scenario.submit(a_step("b", "t1", 3))

    scenario.finish("busy")

    assert scenario.free("memory:n1") == GIB


def test_an_environment_declared_after_something_ran_is_ignored(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.submit(a_step("a", "t1"))
    scenario.submit(a_step("b", "t1", 3))
    scenario.finish("a")

    assert scenario.holding() == {"b"}
    assert scenario.free("memory:n1") == 4 * GIB
