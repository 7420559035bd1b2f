"""Task control: a client pauses a task, changes its priority, or ends all its actions."""

from __future__ import annotations

import pytest

from domain.action import ActionState, Outcome
from domain.events import TaskCancelRequested
from domain.inventory import PoolConfig
from scheduler.core.state import snapshot
from tests.builders import a_config, a_node, a_noop, an_action, granted, make_ledger


def test_a_paused_task_waits_and_is_overtaken(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy", task="other"))
    scenario.submit(an_action("held"), an_action("free", task="other"))

    scenario.pause()

    assert granted(scenario.finish("busy")) == ["free"]
    why = scenario.why("held")
    assert (why.code, why.reason) == ("task_paused", "task task is paused")


def test_running_actions_go_on_and_later_ones_wait(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("runs"))
    scenario.pause()

    assert granted(scenario.submit(an_action("late"))) == []
    scenario.finish("runs")

    assert scenario.outcomes == {"runs": Outcome.COMPLETED}
    assert scenario.why("late").code == "task_paused"


def test_a_task_that_goes_on_is_granted_at_once_in_its_old_order(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.pause()
    scenario.submit(an_action("first"), an_action("second"))

    assert granted(scenario.pause(paused=False)) == ["first"]
    assert granted(scenario.finish("first")) == ["second"]
    assert scenario.machine.state.steering.tasks == {}


def test_a_trajectory_of_a_paused_task_keeps_its_order(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("one", trajectory="t"), an_action("two", trajectory="t"))
    scenario.pause()

    assert granted(scenario.finish("one")) == []
    assert scenario.why("two").code == "task_paused"
    assert granted(scenario.pause(paused=False)) == ["two"]


def test_a_returned_action_of_a_paused_task_waits(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("a"))
    scenario.pause()

    scenario.finish("a", outcome=Outcome.INFRA_FAILED, never_started=True)

    assert scenario.why("a").code == "task_paused"


def test_a_higher_priority_is_served_first_and_can_be_taken_back(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy", task="other"))
    scenario.submit(an_action("early", task="other"), an_action("a"), an_action("b"))

    scenario.prioritise(5)
    assert granted(scenario.finish("busy")) == ["a"]
    scenario.submit(an_action("c"))
    scenario.prioritise(None)

    assert granted(scenario.finish("a")) == ["early"]
    assert [granted(scenario.finish(n)) for n in ("early", "b")] == [["b"], ["c"]]


def test_later_actions_have_the_priority_of_their_task(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy", task="other"))
    scenario.submit(an_action("waits", task="other", priority=3))
    scenario.prioritise(7)
    scenario.submit(an_action("late"))

    assert granted(scenario.finish("busy")) == ["late"]


def test_a_lower_priority_is_served_later_although_it_stood_first(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy", task="other"))
    scenario.submit(an_action("a"), an_action("b", task="other"))

    scenario.prioritise(-1)

    assert granted(scenario.finish("busy")) == ["b"]


def test_ending_a_task_ends_what_waits_and_what_runs_and_nothing_of_others(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("runs"), an_action("waits"), an_action("other", task="other"))

    scenario.handle(TaskCancelRequested(project="default", task="task"))
    scenario.finish("runs", outcome=Outcome.CANCELLED)

    assert scenario.outcomes == {"runs": Outcome.CANCELLED, "waits": Outcome.CANCELLED}
    assert scenario.state("other") is ActionState.GRANTED
    assert granted(scenario.submit(a_noop("new"))) == ["new"]


@pytest.mark.parametrize("policy", ["minimum", "malleable"])
def test_a_restored_machine_keeps_tasks_paused_and_ranked(core, policy):
    scenario = core(a_node("n1", cpus=1), config=a_config(pools=[PoolConfig("default", policy)]))
    scenario.submit(an_action("busy", task="other"), an_action("x", task="other"))
    scenario.submit(an_action("held", task="held"), an_action("a"))
    scenario.pause("held")
    scenario.prioritise(4)

    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    scenario.check()

    assert granted(scenario.finish("busy")) == ["a"]
    assert scenario.why("held").code == "task_paused"
