"""Queue timeouts: how long an action may wait."""

from __future__ import annotations

from domain.action import ActionState, Outcome
from tests.builders import START, a_lease, a_node, an_action, granted


def test_an_action_that_waited_too_long_expires(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), an_action("a", queue_timeout_seconds=10))

    scenario.advance(9.9)
    assert scenario.is_live("a")

    scenario.advance(0.1)
    assert scenario.outcomes == {"a": Outcome.EXPIRED}
    assert scenario.the_finish("a").timing.queue_seconds == 10


def test_the_machine_asks_to_be_woken_when_the_first_action_expires(core):
    scenario = core(a_node("n1", cpus=1))

    scenario.submit(
        an_action("busy"),
        an_action("late", queue_timeout_seconds=20),
        an_action("early", queue_timeout_seconds=10),
    )

    assert scenario.wakes() == [10]


def test_a_granted_action_never_expires(core):
    scenario = core()
    scenario.submit(an_action("a", queue_timeout_seconds=10))

    scenario.advance(1000)

    assert scenario.state("a") is ActionState.GRANTED


def test_an_action_that_waits_again_after_a_grant_does_not_expire(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(
        a_lease("earlier moment", ttl_seconds=90),
        an_action("a", queue_timeout_seconds=100, replay_safe=True),
    )
    scenario.lose_for_good("n1")

    scenario.advance(100)

    assert scenario.state("a") is ActionState.QUEUED


def test_the_time_before_the_machine_saw_an_action_counts(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"))
    scenario.submit(an_action("a", queue_timeout_seconds=10), lag_seconds=4)

    scenario.advance(6)

    assert scenario.outcomes == {"a": Outcome.EXPIRED}


def test_an_action_behind_its_trajectory_expires_too(core):
    scenario = core()
    scenario.submit(
        an_action("a", trajectory="t1"),
        an_action("b", trajectory="t1", queue_timeout_seconds=10),
        an_action("c", trajectory="t1"),
    )
    scenario.advance(10)

    assert scenario.outcomes == {"b": Outcome.EXPIRED}
    assert granted(scenario.finish("a")) == ["c"]


def test_an_action_that_expires_lets_those_behind_it_go(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("busy"), an_action("wide", cost={"cpu": 2}, queue_timeout_seconds=5))
    scenario.submit(an_action("small"))

    assert granted(scenario.advance(5)) == ["small"]
    assert scenario.the_grant("small").action_id == "small"
    assert scenario.now == START + 5
