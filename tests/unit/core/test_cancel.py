"""Cancellation of an action by a client."""

from __future__ import annotations

import pytest

from domain.action import ActionState, Outcome
from domain.decisions import Abort
from domain.events import ActionCancelRequested, ActionSubmitted
from domain.ids import ActionId
from scheduler.core.state.completion import TOMBSTONE_SECONDS
from tests.builders import a_node, an_action, granted, only

ABORT = Abort(ActionId("a"), "n1", "cancelled by request", Outcome.CANCELLED)


def test_a_queued_action_is_cancelled_at_once(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), an_action("a"))

    scenario.cancel("a")

    assert scenario.outcomes == {"a": Outcome.CANCELLED}
    assert scenario.the_finish("a").detail == "cancelled by request"


@pytest.mark.parametrize("started", [False, True], ids=["granted", "running"])
def test_a_node_is_asked_to_end_what_it_runs_and_its_report_is_the_end(core, started):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("a"))
    if started:
        scenario.start("a")

    assert scenario.cancel("a") == [ABORT]
    assert scenario.is_live("a")
    assert scenario.free("cpu:n1") == 0

    scenario.finish("a", outcome=Outcome.CANCELLED)
    assert scenario.outcomes == {"a": Outcome.CANCELLED}
    assert scenario.free("cpu:n1") == 1


def test_an_action_that_ends_before_the_abort_arrives_keeps_its_own_outcome(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.cancel("a")

    scenario.finish("a", outcome=Outcome.COMPLETED, reward=1.0)

    assert scenario.outcomes == {"a": Outcome.COMPLETED}
    assert scenario.the_finish("a").reward == 1.0


def test_a_repeated_cancel_aborts_once(core):
    scenario = core()
    scenario.submit(an_action("a"))

    assert [scenario.cancel("a") for _ in range(3)] == [[ABORT], [], []]


def test_a_cancel_of_a_finished_action_changes_nothing(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.finish("a")

    scenario.cancel("a")

    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_a_cancelled_action_is_not_tried_again_even_if_it_is_replay_safe(core):
    scenario = core()
    scenario.submit(an_action("a", replay_safe=True))
    scenario.cancel("a")

    scenario.finish("a", outcome=Outcome.INFRA_FAILED, never_started=True)

    assert scenario.outcomes == {"a": Outcome.INFRA_FAILED}


def test_a_cancel_before_its_action_ends_it_on_arrival(core):
    scenario = core()
    scenario.cancel("a")

    scenario.submit(an_action("a"))

    assert scenario.outcomes == {"a": Outcome.CANCELLED}
    assert scenario.holding() == set()


def test_an_early_cancel_is_forgotten_after_a_while(core):
    scenario = core()
    scenario.cancel("a")
    scenario.advance(TOMBSTONE_SECONDS)

    assert granted(scenario.submit(an_action("a"))) == ["a"]
    assert scenario.machine.state.tombstones == {}


def test_an_early_cancel_by_another_project_has_no_effect(core):
    scenario = core()
    scenario.cancel("a", project="other")

    assert granted(scenario.submit(an_action("a"))) == ["a"]


def test_another_project_cannot_cancel_a_live_action(core):
    scenario = core()
    scenario.submit(an_action("a"))

    assert scenario.cancel("a", project="other") == []


def test_a_requeued_action_is_cancelled_at_once(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("a", replay_safe=True))
    scenario.lose_for_good("n1")
    assert scenario.state("a") is ActionState.QUEUED

    scenario.cancel("a")
    scenario.bring_back("n1")
    scenario.finish("a", node="n1", attempt=1)

    assert scenario.outcomes == {"a": Outcome.CANCELLED}
    assert scenario.free("cpu:n1") == 1


def test_a_batch_that_submits_and_cancels_grants_nothing(core):
    scenario = core()

    decisions = scenario.handle(
        ActionSubmitted(action=an_action("a")),
        ActionCancelRequested(action_id=ActionId("a"), project="default"),
    )

    assert granted(decisions) == []
    assert only(Abort, decisions) == []
    assert scenario.outcomes == {"a": Outcome.CANCELLED}
