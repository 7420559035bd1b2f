"""A lease holds units for a trainer that renews in time."""

from __future__ import annotations

import pytest

from domain.action import ActionState, Outcome
from domain.decisions import Abort, Renew
from domain.ids import ActionId
from tests.builders import START, a_config, a_lease, a_node, an_action, granted, only


def test_a_lease_runs_from_its_grant_and_says_until_when(core):
    scenario = core()

    scenario.submit(a_lease("l", cost={"cpu": 2}, ttl_seconds=30))

    assert scenario.state("l") is ActionState.RUNNING
    assert scenario.the_grant("l").expires_at == START + 30


def test_i5_a_lease_whose_holder_is_silent_ends_when_its_time_is_over_and_frees_its_units(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(a_lease("l", cost={"cpu": 2}, ttl_seconds=30))
    scenario.submit(an_action("next"))

    assert granted(scenario.advance(29.9)) == []
    assert granted(scenario.advance(0.1)) == ["next"]
    assert scenario.outcomes["l"] is Outcome.TIMEOUT


def test_a_renewed_lease_lives_on(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=30))
    scenario.advance(20)

    assert only(Renew, scenario.renew("l")) == [Renew(ActionId("l"), START + 50)]
    scenario.advance(29)
    assert scenario.is_live("l")
    scenario.advance(1)
    assert scenario.outcomes["l"] is Outcome.TIMEOUT


def test_a_renewal_may_say_for_how_long(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=30))

    scenario.renew("l", ttl_seconds=5)
    scenario.advance(5)

    assert scenario.outcomes["l"] is Outcome.TIMEOUT


def test_a_lease_that_says_nothing_about_its_time_has_the_default_and_can_be_renewed(core):
    scenario = core()
    scenario.submit(an_action("l", kind="lease", lease=None))
    scenario.advance(20)
    scenario.renew("l")

    scenario.advance(29)
    assert scenario.is_live("l")


def test_a_renewal_at_the_moment_of_expiry_is_too_late(core):
    scenario = core()
    scenario.submit(a_lease("l", ttl_seconds=30))
    scenario.now += 30

    decisions = scenario.renew("l")

    assert only(Renew, decisions) == []
    assert scenario.outcomes["l"] is Outcome.TIMEOUT


def test_a_released_lease_is_completed_and_frees_its_units(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(a_lease("l", cost={"cpu": 2}))
    scenario.submit(an_action("next"))
    scenario.now += 7

    assert granted(scenario.release("l")) == ["next"]
    assert scenario.outcomes["l"] is Outcome.COMPLETED
    assert scenario.the_finish("l").timing.execution_seconds == pytest.approx(7)


def test_a_lease_released_before_it_was_granted_is_cancelled(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), a_lease("l", cost={"cpu": 1}))

    scenario.release("l")

    assert scenario.outcomes == {"l": Outcome.CANCELLED}


def test_a_lease_that_waits_cannot_be_renewed(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("busy"), a_lease("l", cost={"cpu": 1}))

    assert scenario.renew("l") == []


def test_several_resources_are_leased_at_once(core):
    scenario = core(a_node("n1", cpus=2, gpu=1), config=a_config(apis={"search": 1}))

    scenario.submit(a_lease("l", cost={"cpu": 1, "gpu": 1, "api:search": 1}))

    held = {a.resource: a.amount for a in scenario.the_grant("l").allocations}
    assert held == {"cpu:n1": 1000, "gpu:n1": 1000, "api:search": 1000}


def test_a_cancelled_lease_ends_at_once_without_a_word_to_the_node(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(a_lease("l", cost={"cpu": 1}))

    decisions = scenario.cancel("l")

    assert only(Abort, decisions) == []
    assert scenario.outcomes["l"] is Outcome.CANCELLED
    assert scenario.free("cpu:n1") == 1


def test_another_project_can_neither_renew_nor_release_a_lease(core):
    scenario = core()
    scenario.submit(a_lease("l"))

    assert scenario.renew("l", project="other") == []
    assert scenario.release("l", project="other") == []
    assert scenario.is_live("l")


def test_an_action_that_is_no_lease_can_be_neither_renewed_nor_released(core):
    scenario = core()
    scenario.submit(an_action("a"))
    scenario.start("a")

    assert scenario.renew("a") + scenario.release("a") == []
    assert scenario.is_live("a")


def test_a_lease_is_its_trainers_so_the_silence_of_its_node_does_not_end_it(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(a_lease("l", cost={"cpu": 1}, ttl_seconds=3600))

    scenario.lose_for_good("n1")
    scenario.bring_back("n1")
    assert scenario.is_live("l")

    scenario.release("l")
    assert scenario.free("cpu:n1") == 1


def test_a_replay_safe_lease_on_a_node_that_lost_its_state_is_granted_again_for_its_full_time(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(a_lease("l", cost={"cpu": 1}, ttl_seconds=30, replay_safe=True))
    scenario.now += 20
    scenario.join(a_node("n1", cpus=1, identity="new-disk"))

    scenario.advance(20)
    assert scenario.is_live("l")
    scenario.advance(10)
    assert scenario.outcomes["l"] is Outcome.TIMEOUT


def test_a_lease_that_waits_again_does_not_end_at_the_time_of_its_lost_attempt(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(a_lease("l", cost={"cpu": 2}, ttl_seconds=30, replay_safe=True))
    scenario.join(a_node("n1", cpus=1, identity="new-disk"))

    scenario.advance(100)
    assert scenario.state("l") is ActionState.QUEUED

    scenario.join(a_node("n1", cpus=2, identity="new-disk", incarnation=2))
    assert scenario.the_grant("l").expires_at == START + 130
