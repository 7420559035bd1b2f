"""Reports of nodes, in any order, late and more than once."""

from __future__ import annotations

import pytest

from domain.action import ActionState, Outcome
from domain.decisions import Finish, Requeue
from scheduler.core.state.lifecycle import MAX_ATTEMPTS
from tests.builders import a_node, an_action, granted, only

NOT_COMPLETED = [outcome for outcome in Outcome if outcome is not Outcome.COMPLETED]


def test_an_action_is_queued_granted_running_and_finished(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), an_action("a"))
    seen = [scenario.state("a")]
    scenario.finish("busy")
    seen.append(scenario.state("a"))
    scenario.start("a")
    seen.append(scenario.state("a"))
    scenario.finish("a")
    seen.append(scenario.state("a"))

    assert seen == list(ActionState)


def test_an_action_may_finish_without_ever_having_been_reported_as_started(core):
    scenario = core()
    scenario.submit(an_action("a"))

    scenario.finish("a")
    late = scenario.handle()

    assert late == []
    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_i1_a_second_report_changes_nothing(core):
    scenario = core()
    scenario.submit(an_action("a"))
    completed, failed = scenario.report("a"), scenario.report("a", Outcome.INFRA_FAILED)

    scenario.handle(completed, failed)
    scenario.handle(failed)

    assert [f.outcome for f in only(Finish, scenario.decisions)] == [Outcome.COMPLETED]


def test_i1_a_report_of_an_earlier_attempt_does_not_end_the_present_one(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", replay_safe=True))
    first = scenario.report("a")
    scenario.join(a_node("n2"))
    scenario.lose_for_good("n1")
    assert scenario.the_grant("a").node == "n2"

    scenario.handle(first)
    assert scenario.is_live("a")

    scenario.finish("a")
    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_a_report_from_another_node_is_ignored(core):
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.submit(an_action("a"))
    other = "n2" if scenario.live("a").node == "n1" else "n1"

    scenario.finish("a", node=other, attempt=1)

    assert scenario.is_live("a")


def test_a_report_of_a_waiting_action_is_ignored(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), an_action("a"))

    scenario.finish("a", node="n1", attempt=0)
    scenario.finish("a", node="n1", attempt=1)

    assert scenario.state("a") is ActionState.QUEUED


def test_a_late_start_of_an_earlier_attempt_is_ignored(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.finish("a", outcome=Outcome.INFRA_FAILED, never_started=True)

    scenario.start("a", attempt=1)

    assert scenario.state("a") is ActionState.GRANTED


@pytest.mark.parametrize("outcome", NOT_COMPLETED)
def test_i2_only_a_completed_action_has_a_reward(core, outcome):
    scenario = core()
    scenario.submit(an_action("a"), an_action("b"))

    scenario.finish("a", reward=0.5)
    scenario.finish("b", outcome=outcome, reward=0.5)

    assert scenario.the_finish("a").reward == 0.5
    assert scenario.the_finish("b").reward is None


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.INFRA_FAILED])
def test_i3_what_may_have_run_is_not_run_again(core, outcome):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.start("a")

    decisions = scenario.finish("a", outcome=outcome)

    assert granted(decisions) == []
    assert scenario.outcomes == {"a": outcome}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.INFRA_FAILED])
def test_i3_a_replay_safe_action_runs_again_when_its_outcome_is_unknown(core, outcome):
    scenario = core()
    scenario.submit(an_action("a", replay_safe=True))
    scenario.start("a")

    assert granted(scenario.finish("a", outcome=outcome)) == ["a"]
    assert scenario.the_grant("a").attempt == 2


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.OOM_KILLED, Outcome.CANCELLED])
def test_a_replay_safe_action_that_surely_ended_is_over(core, outcome):
    scenario = core()
    scenario.submit(an_action("a", replay_safe=True))

    scenario.finish("a", outcome=outcome)

    assert scenario.outcomes == {"a": outcome}


def test_an_action_that_certainly_never_started_is_tried_a_few_times(core):
    scenario = core()
    scenario.submit(an_action("a"))
    tries = 0
    while scenario.is_live("a"):
        tries += 1
        scenario.finish("a", outcome=Outcome.INFRA_FAILED, never_started=True, detail="no image")

    assert tries == MAX_ATTEMPTS
    assert [r.reason for r in only(Requeue, scenario.decisions)] == ["no image"] * (tries - 1)
    assert scenario.outcomes == {"a": Outcome.INFRA_FAILED}
    assert scenario.the_finish("a").detail == "no image"


def test_an_action_that_waits_again_has_its_old_place(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("a"), an_action("b"))

    decisions = scenario.finish("a", outcome=Outcome.INFRA_FAILED, never_started=True)

    assert granted(decisions) == ["a"]


def test_reports_of_actions_that_never_were_are_ignored(core):
    scenario = core()

    assert scenario.finish("unknown", node="n1", attempt=1) == []
    assert scenario.finish("unknown", node="nowhere", attempt=1) == []
