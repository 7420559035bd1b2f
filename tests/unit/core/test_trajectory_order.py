"""An environment runs one exec at a time, in the order of submission."""

from __future__ import annotations

from domain.action import Outcome
from tests.builders import a_lease, a_node, a_noop, an_action, granted


def a_step(name, **fields):
    return an_action(name, trajectory="t1", **fields)


def test_exec_actions_of_a_trajectory_run_one_at_a_time_in_order_of_arrival(core):
    scenario = core(a_node("n1", cpus=8))

    first = scenario.submit(a_step("c"), a_step("a"), a_step("b"))
    rest = [scenario.finish(name) for name in ("c", "a")]

    assert [granted(decisions) for decisions in (first, *rest)] == [["c"], ["a"], ["b"]]


def test_priority_does_not_change_the_order_within_a_trajectory(core):
    scenario = core(a_node("n1", cpus=8))

    scenario.submit(a_step("first"), a_step("urgent", priority=9))

    assert scenario.holding() == {"first"}


def test_trajectories_with_the_same_name_in_two_projects_are_two(core):
    scenario = core(a_node("n1", cpus=8))

    scenario.submit(a_step("a"), a_step("b", project="other"))

    assert scenario.holding() == {"a", "b"}


def test_leases_and_noops_of_a_trajectory_do_not_take_turns(core):
    scenario = core(a_node("n1", cpus=8))

    scenario.submit(a_step("a"), a_noop("ping", trajectory="t1"), a_lease("l", trajectory="t1"))

    assert scenario.holding() == {"a", "ping", "l"}


def test_the_next_one_keeps_the_place_that_its_arrival_gave_it(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(a_step("a"), a_step("b"), an_action("later"))

    assert granted(scenario.finish("a")) == ["b"]


def test_a_waiting_step_that_is_cancelled_lets_the_one_behind_it_follow(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(a_step("a"), a_step("b"), a_step("c"))
    scenario.cancel("b")

    assert granted(scenario.finish("a")) == ["c"]


def test_the_first_step_may_be_cancelled_while_it_waits_for_units(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"))
    scenario.submit(a_step("a"), a_step("b"))
    scenario.cancel("a")

    assert granted(scenario.finish("busy")) == ["b"]


def test_a_step_that_never_started_goes_again_before_those_behind_it(core):
    scenario = core(a_node("n1", cpus=8))
    scenario.submit(a_step("a"), a_step("b"))

    decisions = scenario.finish("a", outcome=Outcome.INFRA_FAILED, never_started=True)

    assert granted(decisions) == ["a"]
    assert scenario.holding() == {"a"}


def test_a_failed_step_does_not_stop_the_trajectory(core):
    scenario = core(a_node("n1", cpus=8))
    scenario.submit(a_step("a"), a_step("b"))

    assert granted(scenario.finish("a", outcome=Outcome.OOM_KILLED)) == ["b"]
