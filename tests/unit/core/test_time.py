"""Time in the core: it is read from events, and the machine sets timers for its own actions."""

from __future__ import annotations

import pytest

from domain.decisions import Wake
from domain.errors import InvariantViolation
from domain.events import TimeAdvanced
from tests.builders import START, a_lease, a_node, an_action, only


def test_time_that_runs_backward_is_refused(core):
    scenario = core()

    with pytest.raises(InvariantViolation, match="time runs backward"):
        scenario.machine.handle(TimeAdvanced(at=START - 1))


def test_no_timer_is_set_without_anything_to_wait_for(core):
    scenario = core()
    scenario.submit(an_action("a"))

    assert scenario.wakes() == []


def test_the_earliest_moment_is_asked_for(core):
    scenario = core()

    scenario.submit(a_lease("late", ttl_seconds=30), a_lease("early", ttl_seconds=10))

    assert scenario.wakes() == [10]


def test_a_wake_that_was_asked_for_is_not_asked_for_again(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=30))

    for n in range(5):
        scenario.now += 1
        scenario.submit(an_action(f"a{n}"))

    assert scenario.wakes() == [30]


def test_an_earlier_moment_is_asked_for_on_top(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=30))
    scenario.submit(a_lease("m", ttl_seconds=5))

    assert scenario.wakes() == [30, 5]


def test_after_a_wake_the_next_moment_is_asked_for(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=30), a_lease("m", ttl_seconds=5))

    decisions = scenario.advance(5)

    assert [wake.wake_at for wake in only(Wake, decisions)] == [START + 30]


def test_renewals_of_a_lease_do_not_each_wake_the_machine(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=10))
    for _ in range(9):
        scenario.advance(1)
        scenario.renew("l")

    scenario.advance(100)

    assert scenario.wakes() == [10, 19]


def test_a_past_timer_causes_no_wake_up(core):
    """A thousand actions with a time limit on waiting leave no thousand wakes behind."""
    scenario = core(a_node("n1", cpus=8))
    for n in range(50):
        scenario.submit(an_action(f"a{n}", queue_timeout_seconds=100 + n))
        scenario.finish(f"a{n}")

    scenario.advance(1000)

    assert scenario.wakes() == []


def test_many_moments_that_no_longer_hold_are_swept_out(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(a_lease("l", cost={"cpu": 1}, ttl_seconds=50))
    machine = scenario.machine
    for n in range(2000):
        scenario.now += 0.001
        machine.state.timers.set(scenario.now + 1000, "queue_timeout", f"gone-{n}")
    scenario.renew("l", ttl_seconds=60)

    assert len(machine.state.timers.pending()) < 10
    scenario.check()


def test_an_empty_batch_decides_nothing(core):
    scenario = core()

    assert scenario.handle() == []
