"""Phase timer: queueing never counts against a limit (I9), work always does."""

from __future__ import annotations

import math

from domain.rollouts import Stage
from rollout.core.phase_timer import PhaseTimer
from tests.unit.rollout.builders import limits


def test_i9_waiting_for_the_lease_is_not_counted():
    timer = PhaseTimer(limits(10.0), {})

    assert timer.remaining(5_000.0) == math.inf
    timer.begin(Stage.RUN, 5_000.0)

    assert timer.remaining(5_000.0) == 10.0


def test_time_with_the_lease_is_counted():
    timer = PhaseTimer(limits(10.0), {})
    timer.begin(Stage.RUN, 100.0)

    assert timer.active(Stage.RUN, 104.0) == 4.0
    assert timer.remaining(104.0) == 6.0
    assert timer.remaining(200.0) == 0.0
    assert timer.why_over(200.0) == "RUN took longer than 10 s"


def test_i9_the_queue_of_an_inner_action_is_not_counted_and_its_execution_is():
    timer = PhaseTimer(limits(10.0), {})
    timer.begin(Stage.RUN, 0.0)
    timer.hold(1.0)
    assert timer.active(Stage.RUN, 900.0) == 1.0
    timer.free(1_001.0, ran_seconds=3.0)

    assert timer.active(Stage.RUN, 1_001.0) == 4.0
    assert timer.active(Stage.RUN, 1_002.0) == 5.0


def test_actions_at_the_same_time_count_at_most_as_long_as_they_took():
    timer = PhaseTimer(limits(10.0), {})
    timer.begin(Stage.RUN, 0.0)
    timer.hold(0.0)
    timer.hold(0.0)
    timer.free(3.0, ran_seconds=3.0)
    timer.free(4.0, ran_seconds=4.0)

    assert timer.active(Stage.RUN, 4.0) == 4.0


def test_time_of_earlier_attempts_counts():
    timer = PhaseTimer(limits(10.0), {Stage.RUN: 7.0})
    timer.begin(Stage.RUN, 0.0)

    assert timer.remaining(0.0) == 3.0


def test_the_limit_of_all_stages_counts_them_together():
    timer = PhaseTimer(limits(10.0, total=12.0), {Stage.INIT: 9.0})
    timer.begin(Stage.RUN, 0.0)

    assert timer.remaining(1.0) == 2.0
    assert timer.why_over(3.0) == "its stages took longer than 12 s together"


def test_a_stage_that_ends_while_it_waits_leaves_no_hold():
    timer = PhaseTimer(limits(10.0), {})
    timer.begin(Stage.RUN, 0.0)
    timer.hold(1.0)
    timer.end(5.0)
    timer.begin(Stage.EVAL, 6.0)
    timer.free(7.0, ran_seconds=1.0)

    assert timer.active(Stage.RUN, 9.0) == 1.0
    assert timer.active(Stage.EVAL, 9.0) == 3.0
