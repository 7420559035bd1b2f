"""The end of a trajectory, after which nothing of it remains (I6)."""

from __future__ import annotations

from domain.action import Outcome
from domain.decisions import Abort, RemoveEnvironment
from domain.events import ActionSubmitted, TrajectoryFinished
from scheduler.core.state.completion import TOMBSTONE_SECONDS
from tests.builders import GIB, a_lease, a_node, a_noop, an_action, an_environment, granted, only


def a_step(name, trajectory="t1", **fields):
    return an_action(name, trajectory=trajectory, **fields)


def test_a_finished_trajectory_has_its_environment_removed_and_is_forgotten(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.submit(a_step("a", memory_bytes=GIB))
    scenario.finish("a")

    assert scenario.finish_trajectory("t1") == [
        RemoveEnvironment(scenario.key("t1"), "n1", "finished by request")
    ]
    assert scenario.free("memory:n1") == 3 * GIB

    scenario.remove_environment("t1")
    assert scenario.free("memory:n1") == 4 * GIB
    assert not scenario.has_trajectory("t1")


def test_a_trajectory_in_which_nothing_ran_goes_at_once(core):
    scenario = core()
    scenario.open_trajectory("t1")

    assert only(RemoveEnvironment, scenario.finish_trajectory("t1")) == []
    assert not scenario.has_trajectory("t1")


def test_waiting_steps_are_cancelled_and_the_running_one_is_ended_first(core):
    scenario = core()
    scenario.submit(a_step("a"), a_step("b"), a_lease("l", trajectory="t1"))
    scenario.start("a")

    decisions = scenario.finish_trajectory("t1")
    assert [(abort.action_id, abort.node) for abort in only(Abort, decisions)] == [("a", "n1")]
    assert only(RemoveEnvironment, decisions) == []
    assert scenario.outcomes == {"b": Outcome.CANCELLED, "l": Outcome.CANCELLED}

    assert len(only(RemoveEnvironment, scenario.finish("a", outcome=Outcome.CANCELLED))) == 1


def test_an_environment_is_removed_once_however_often_it_is_asked_for(core):
    scenario = core()
    scenario.submit(a_step("a"))
    scenario.finish("a")

    for _ in range(3):
        scenario.finish_trajectory("t1")
    scenario.advance(10_000)

    assert len(only(RemoveEnvironment, scenario.decisions)) == 1


def test_a_trajectory_ends_when_its_time_to_live_is_over(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))
    scenario.submit(a_step("a", environment=an_environment(GIB, ttl_seconds=60)))
    scenario.finish("a")

    decisions = scenario.advance(60)

    assert [r.reason for r in only(RemoveEnvironment, decisions)] == ["its time to live is over"]


def test_i6_a_step_after_the_end_gets_no_new_environment(core):
    """The delete overtakes a create that is still on its way.

    1. The trainer finishes the trajectory while one of its workers submits another step.
    2. Wherever the end has got to, the step must not open the workspace again.
    """
    scenario = core()
    scenario.submit(a_step("a"))
    scenario.finish("a")
    scenario.finish_trajectory("t1")
    scenario.submit(a_step("while-removing"))
    scenario.remove_environment("t1")
    scenario.submit(a_step("after"))
    scenario.open_trajectory("t1")

    assert scenario.outcomes["while-removing"] is Outcome.CANCELLED
    assert scenario.outcomes["after"] is Outcome.CANCELLED
    assert scenario.the_finish("after").detail == "the trajectory is over: finished by request"
    assert not scenario.has_trajectory("t1")


def test_i6_a_first_step_in_the_same_batch_as_the_end_leaves_nothing(core):
    scenario = core(a_node("n1", memory_bytes=4 * GIB))

    decisions = scenario.handle(
        ActionSubmitted(action=a_step("a", memory_bytes=GIB)),
        TrajectoryFinished(project="default", trajectory="t1"),
    )

    assert granted(decisions) == []
    assert scenario.free("memory:n1") == 4 * GIB
    assert scenario.machine.state.trajectories == {}


def test_i6_an_environment_declared_while_its_trajectory_ends_is_ignored(core):
    """A noop still runs, so the trajectory is not gone yet when the declaration arrives."""
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"))
    scenario.submit(a_step("a"), a_noop("ping", trajectory="t1"))
    scenario.finish_trajectory("t1")

    scenario.open_trajectory("t1", environment=an_environment(GIB))
    scenario.finish("ping", outcome=Outcome.CANCELLED)

    assert not scenario.has_trajectory("t1")
    assert scenario.free("memory:n1") == 16 * GIB


def test_a_name_may_be_used_again_after_a_while(core):
    scenario = core()
    scenario.submit(a_step("a"))
    scenario.finish("a")
    scenario.finish_trajectory("t1")
    scenario.remove_environment("t1")

    scenario.advance(TOMBSTONE_SECONDS)

    assert granted(scenario.submit(a_step("b"))) == ["b"]


def test_a_removal_without_a_request_is_ignored(core):
    scenario = core()
    scenario.submit(a_step("a", memory_bytes=GIB))
    scenario.finish("a")

    scenario.remove_environment("t1")
    assert scenario.has_trajectory("t1")

    scenario.finish_trajectory("t1")
    scenario.remove_environment("t1", node="n2")
    assert scenario.has_trajectory("t1")


def test_the_end_of_an_unknown_trajectory_changes_nothing(core):
    scenario = core()

    assert scenario.finish_trajectory("unknown") == []
