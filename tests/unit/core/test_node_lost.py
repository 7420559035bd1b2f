"""A node that is silent, and returns or not."""

from __future__ import annotations

import pytest

from domain.action import ActionState, Outcome
from domain.decisions import Abort, Forget, RemoveEnvironment, Requeue
from domain.inventory import PoolConfig
from scheduler.core.state.lifecycle import MAX_ATTEMPTS
from tests.builders import (
    GIB,
    a_config,
    a_lease,
    a_node,
    a_noop,
    an_action,
    finished,
    granted,
    only,
)

GRACE = 60.0


def test_a_silent_node_gets_no_new_actions(core):
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.lose("n1")

    scenario.submit(*(an_action(f"a{n}") for n in range(4)))

    assert {scenario.the_grant(f"a{n}").node for n in range(4)} == {"n2"}


def test_a_silent_node_keeps_its_actions_for_its_grace(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.lose("n1")
    scenario.advance(GRACE - 0.1)

    scenario.bring_back("n1")
    scenario.advance(GRACE)
    scenario.finish("a")

    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_i5_after_its_grace_the_actions_of_a_silent_node_are_unknown(core):
    scenario = core()
    scenario.submit(an_action("granted"), an_action("running"))
    scenario.start("running")
    scenario.lose("n1")

    decisions = scenario.advance(GRACE)

    assert finished(decisions) == {"granted": Outcome.UNKNOWN, "running": Outcome.UNKNOWN}


def test_i3_only_replay_safe_actions_of_a_silent_node_run_again(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("once"), an_action("again", replay_safe=True))
    scenario.lose("n1")
    decisions = scenario.advance(GRACE)
    assert [requeue.action_id for requeue in only(Requeue, decisions)] == ["again"]

    assert granted(scenario.join(a_node("n2"))) == ["again"]
    assert scenario.the_grant("again").attempt == 2
    assert scenario.outcomes == {"once": Outcome.UNKNOWN}


def test_a_replay_safe_action_is_not_tried_for_ever(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", replay_safe=True))
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert scenario.the_grant("a").attempt == attempt
        node = scenario.the_grant("a").node
        scenario.join(a_node(f"next-{attempt}"))
        scenario.lose_for_good(node)

    assert scenario.outcomes == {"a": Outcome.UNKNOWN}


def test_i4_what_a_silent_node_may_still_run_keeps_its_units(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("a", cost={"cpu": 2}))
    scenario.lose_for_good("n1")
    assert scenario.outcomes == {"a": Outcome.UNKNOWN}
    assert scenario.free("cpu:n1") == 0

    decisions = scenario.bring_back("n1")
    scenario.submit(an_action("next"))
    assert [(a.action_id, a.attempt) for a in only(Abort, decisions)] == [("a", 1)]
    assert scenario.state("next") is ActionState.QUEUED

    assert granted(scenario.finish("a", node="n1", attempt=1)) == ["next"]
    assert scenario.outcomes == {"a": Outcome.UNKNOWN}


def test_i4_a_restarted_worker_is_asked_to_end_actions_whose_order_it_may_yet_read(core):
    """The order of a given-up action can still stand unread in the node's command stream.

    1. The node died before it read the order; the action is given up.
    2. Its next worker joins and reads the order before anything that is sent now.
    3. So the units are not free before it reports that attempt, too.
    """
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("a", replay_safe=True))
    scenario.lose_for_good("n1")
    scenario.submit(an_action("next", priority=1))

    decisions = scenario.join(a_node("n1", cpus=1, incarnation=2))
    assert [(a.action_id, a.attempt) for a in only(Abort, decisions)] == [("a", 1)]
    assert granted(decisions) == []

    assert granted(scenario.finish("a", node="n1", attempt=1)) == ["next"]


def test_a_node_that_returns_takes_nothing_new_until_it_has_ended_what_it_ran_before(core):
    """An earlier attempt may still run in the environment of the one that would follow it."""
    scenario = core(a_node("n1", cpus=8))
    scenario.submit(an_action("a", trajectory="t1", replay_safe=True))
    scenario.lose_for_good("n1")

    scenario.bring_back("n1")
    assert scenario.state("a") is ActionState.QUEUED
    assert scenario.why("a").reason.endswith("is back and ends what it ran before")

    assert granted(scenario.finish("a", node="n1", attempt=1)) == ["a"]
    assert scenario.the_grant("a").attempt == 2


def test_a_node_that_returns_without_its_state_lost_everything(core):
    scenario = core(a_node("n1", cpus=4, memory_bytes=4 * GIB))
    scenario.submit(
        an_action("running", trajectory="t1", memory_bytes=GIB),
        an_action("waiting", trajectory="t1"),
        an_action("alone"),
        an_action("again", replay_safe=True),
    )

    decisions = scenario.join(a_node("n1", cpus=4, memory_bytes=4 * GIB, identity="new-disk"))

    assert finished(decisions) == {
        "running": Outcome.UNKNOWN,
        "waiting": Outcome.INFRA_FAILED,
        "alone": Outcome.UNKNOWN,
    }
    assert granted(decisions) == ["again"]
    assert not scenario.has_trajectory("t1")
    assert scenario.free("memory:n1") == 4 * GIB
    assert scenario.free("cpu:n1") == 3


def test_orphans_of_a_node_that_returns_without_its_state_are_free(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("a", cost={"cpu": 2}))
    scenario.lose_for_good("n1")

    scenario.join(a_node("n1", cpus=2, identity="new-disk"))

    assert scenario.free("cpu:n1") == 2


def test_i4_what_a_lost_trajectory_runs_on_another_node_is_ended_there_first(core):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(an_action("a", trajectory="t1"))
    home = scenario.node_of("t1")
    scenario.submit(an_action("call", kind="call", trajectory="t1", cost={"cpu": 1}))
    elsewhere = scenario.the_grant("call").node
    assert home != elsewhere

    decisions = scenario.join(a_node(home, cpus=1, identity="new-disk"))

    assert finished(decisions) == {"a": Outcome.UNKNOWN}
    assert [(a.action_id, a.node) for a in only(Abort, decisions)] == [("call", elsewhere)]
    assert scenario.free(f"cpu:{elsewhere}") == 0
    scenario.finish("call", outcome=Outcome.CANCELLED)
    assert not scenario.has_trajectory("t1")
    assert only(RemoveEnvironment, scenario.decisions) == []


def test_a_trajectory_that_was_ending_when_its_node_lost_its_state_is_over(core):
    scenario = core(a_node("n1", memory_bytes=GIB))
    scenario.submit(an_action("a", trajectory="t1", memory_bytes=GIB))
    scenario.finish("a")
    scenario.finish_trajectory("t1")

    scenario.join(a_node("n1", memory_bytes=GIB, identity="new-disk"))

    assert not scenario.has_trajectory("t1")
    assert scenario.free("memory:n1") == GIB


def test_a_restarted_worker_keeps_actions_and_environments(core):
    scenario = core(a_node("n1", memory_bytes=2 * GIB))
    scenario.submit(an_action("a", trajectory="t1", memory_bytes=GIB))

    scenario.join(a_node("n1", memory_bytes=2 * GIB, incarnation=2))
    scenario.finish("a")

    assert scenario.outcomes == {"a": Outcome.COMPLETED}
    assert scenario.node_of("t1") == "n1"
    assert scenario.free("memory:n1") == GIB


def test_steps_of_a_silent_environment_wait_for_their_node(core):
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.submit(an_action("a", trajectory="t1"))
    home = scenario.node_of("t1")
    scenario.finish("a")
    scenario.lose(home)

    scenario.submit(an_action("b", trajectory="t1"))
    assert scenario.why("b").code == "node_lost"

    assert granted(scenario.bring_back(home)) == ["b"]


def test_a_cancelled_action_of_a_silent_node_is_unknown_and_not_tried_again(core):
    scenario = core()
    scenario.submit(an_action("a", replay_safe=True))
    scenario.cancel("a")

    scenario.lose_for_good("n1")

    assert scenario.outcomes == {"a": Outcome.UNKNOWN}


@pytest.mark.parametrize("incarnation", [1, 3], ids=["an older one", "a newer one"])
def test_news_about_another_incarnation_is_ignored(core, incarnation):
    scenario = core(a_node("n1", incarnation=2))

    scenario.lose("n1", incarnation=incarnation)

    assert granted(scenario.submit(an_action("a"))) == ["a"]


def test_a_second_silence_has_a_grace_of_its_own(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.lose("n1")
    scenario.advance(GRACE - 1)
    scenario.bring_back("n1")
    scenario.lose("n1")

    scenario.advance(GRACE - 1)
    assert scenario.is_live("a")
    scenario.advance(1)
    assert scenario.outcomes == {"a": Outcome.UNKNOWN}


@pytest.mark.parametrize("seconds", [10, 600], ids=["shorter", "longer"])
def test_a_changed_grace_holds_for_nodes_that_are_silent_already(core, seconds):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.lose("n1")
    scenario.configure(a_config(node_grace_seconds=seconds, revision=1))

    scenario.advance(seconds - 1)
    assert scenario.is_live("a")
    scenario.advance(1)
    assert scenario.outcomes == {"a": Outcome.UNKNOWN}


def test_news_about_unknown_nodes_is_ignored(core):
    scenario = core()

    assert scenario.lose("unknown") + scenario.bring_back("unknown") == []


def test_a_silent_node_holds_up_no_action_elsewhere(core):
    scenario = core(a_node("n1", cpus=1), a_node("n2", cpus=1))
    scenario.submit(an_action("x"), an_action("y"))
    scenario.submit(a_noop("ping"), a_lease("l", cost={"cpu": 1}))
    scenario.lose_for_good("n1")
    survivor = next(name for name in "xy" if scenario.is_live(name))

    assert granted(scenario.finish(survivor)) == ["l"]
    assert scenario.the_grant("l").node == "n2"


DEAD = 600.0


def test_trajectories_of_a_dead_node_end_as_infra_failed_and_say_why(core):
    scenario = core(a_node("n1"))
    scenario.submit(
        an_action("runs", trajectory="t", memory_bytes=GIB),
        an_action("waits", trajectory="t"),
        an_action("elsewhere"),
    )
    scenario.lose("n1")
    scenario.advance(DEAD - 0.1)
    assert scenario.outcomes == {"runs": Outcome.UNKNOWN, "elsewhere": Outcome.UNKNOWN}

    scenario.advance(0.1)

    end = scenario.the_finish("waits")
    assert end.outcome is Outcome.INFRA_FAILED
    assert end.detail == "environment lost: node n1 is dead: silent for 600 s"
    scenario.submit(an_action("late", trajectory="t"))
    late = scenario.the_finish("late")
    assert late.outcome is Outcome.INFRA_FAILED
    assert "node n1 is dead" in (late.detail or "")


def test_a_dead_node_that_returns_removes_its_environments(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", trajectory="t", memory_bytes=GIB))
    scenario.finish("a")
    scenario.lose("n1")

    decisions = scenario.advance(DEAD)

    assert [(d.trajectory, d.node) for d in only(RemoveEnvironment, decisions)] == [
        (scenario.key("t"), "n1")
    ]
    assert scenario.free("memory:n1") == 15 * GIB, "it may still be there"
    scenario.bring_back("n1")
    scenario.remove_environment("t")
    assert scenario.free("memory:n1") == 16 * GIB
    scenario.submit(an_action("late", trajectory="t"))
    assert scenario.the_finish("late").outcome is Outcome.INFRA_FAILED


def test_a_dead_node_that_returns_without_its_state_has_nothing_to_remove(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", trajectory="t", memory_bytes=GIB))
    scenario.finish("a")
    scenario.lose("n1")
    scenario.advance(DEAD)

    scenario.join(a_node("n1", identity="another disk"))

    assert scenario.machine.state.trajectories == {}
    assert scenario.free("memory:n1") == 16 * GIB


def test_a_node_that_returns_in_time_keeps_its_trajectories(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", trajectory="t"))
    scenario.finish("a")
    scenario.lose("n1")
    scenario.advance(DEAD - 1.0)
    scenario.bring_back("n1")
    scenario.advance(DEAD)
    scenario.submit(an_action("b", trajectory="t"))
    assert scenario.the_grant("b").node == "n1"


def test_a_changed_time_to_death_holds_for_nodes_that_are_silent_already(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", trajectory="t"), an_action("b", trajectory="t"))
    scenario.lose("n1")
    scenario.advance(30.0)
    scenario.configure(a_config(node_dead_seconds=40.0, revision=1))
    scenario.advance(10.0)
    assert scenario.outcomes == {"a": Outcome.UNKNOWN, "b": Outcome.INFRA_FAILED}


def test_a_pool_says_how_long_its_own_nodes_may_be_silent(core):
    impatient = PoolConfig("default", node_grace_seconds=5.0, node_dead_seconds=7.0)
    pools = (impatient, PoolConfig("other"))
    scenario = core(a_node("n1"), a_node("n2", pool="other"), config=a_config(pools=pools))
    for name, pool in (("a", "default"), ("b", "other")):
        scenario.submit(an_action(name, trajectory=f"t-{name}", pool=pool))
    scenario.submit(
        an_action("c", trajectory="t-a"), an_action("d", trajectory="t-b", pool="other")
    )
    scenario.lose("n1")
    scenario.lose("n2")
    scenario.advance(6.0)
    assert scenario.outcomes == {"a": Outcome.UNKNOWN}
    scenario.advance(1.0)
    assert scenario.outcomes == {"a": Outcome.UNKNOWN, "c": Outcome.INFRA_FAILED}
    scenario.advance(GRACE)
    assert scenario.outcomes["b"] is Outcome.UNKNOWN
    assert scenario.is_live("d")


def test_i5_what_hangs_on_a_node_that_its_engine_ended_ends_at_once(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a", trajectory="t1"), an_action("again", replay_safe=True))
    scenario.start("a")
    scenario.lose("n1")

    decisions = scenario.fence("n1")

    assert finished(decisions) == {"a": Outcome.UNKNOWN}
    assert [each.action_id for each in only(Requeue, decisions)] == ["again"]
    assert scenario.fence("n1") == []
    scenario.submit(an_action("b", trajectory="t1"))
    assert scenario.outcomes["b"] is Outcome.INFRA_FAILED


def test_a_node_that_lives_or_has_started_again_is_not_fenced(core):
    scenario = core(a_node("n1"))
    scenario.submit(an_action("a"))
    scenario.fence("n1")
    scenario.lose("n1")
    scenario.fence("n1", incarnation=2)
    scenario.bring_back("n1")
    scenario.finish("a")
    assert scenario.outcomes == {"a": Outcome.COMPLETED}


def test_a_fenced_node_is_forgotten_and_would_clean_up(core):
    scenario = core(a_node("n1"), a_node("n2"))
    scenario.submit(an_action("a", trajectory="t1"))
    home = scenario.node_of("t1")
    scenario.lose(home)
    scenario.fence(home)
    assert only(Forget, scenario.forget(home))
    assert not scenario.machine.state.trajectories
