"""ACT and its parts; waiting is never counted as running (I9)."""

from __future__ import annotations

import pytest

from domain.action import Outcome, Timing
from tests.builders import a_node, an_action


def parts(timing: Timing) -> object:
    return pytest.approx((timing.queue_seconds, timing.overhead_seconds, timing.execution_seconds))


def test_act_is_waiting_and_overhead_and_execution(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"))
    scenario.submit(an_action("a"), lag_seconds=1)
    scenario.advance(3)
    scenario.finish("busy")
    scenario.advance(10)

    scenario.finish("a", execution_seconds=9.5)

    timing = scenario.the_finish("a").timing
    assert timing.act_seconds == pytest.approx(14)
    assert parts(timing) == (4, 0.5, 9.5)


def test_i9_waiting_longer_than_the_execution_limit_does_not_end_an_action(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), an_action("a", timeout_seconds=5))

    scenario.advance(3600)
    scenario.finish("busy")
    scenario.finish("a", execution_seconds=4)

    assert scenario.outcomes["a"] is Outcome.COMPLETED
    assert scenario.the_finish("a").timing.execution_seconds <= 5


def test_i9_an_action_that_waits_again_is_not_charged_for_its_lost_attempt(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", replay_safe=True))
    scenario.start("a")
    scenario.advance(20)
    scenario.lose_for_good("n1")
    scenario.join(a_node("n2"))

    scenario.finish("a", execution_seconds=0)

    assert parts(scenario.the_finish("a").timing) == (80, 0, 0)


def test_a_report_cannot_claim_more_time_than_there_was(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.advance(2)

    scenario.finish("a", execution_seconds=1e9)

    assert parts(scenario.the_finish("a").timing) == (0, 0, 2)


def test_an_action_that_never_ran_only_waited(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), an_action("a"))
    scenario.advance(7)

    scenario.cancel("a")

    assert parts(scenario.the_finish("a").timing) == (7, 0, 0)


def test_an_action_that_can_never_run_waited_for_as_long_as_it_took_to_find_out(core):
    scenario = core(a_node("n1", cpus=1))

    scenario.submit(an_action("a", cost={"cpu": 2}), lag_seconds=0.25)

    assert parts(scenario.the_finish("a").timing) == (0.25, 0, 0)
