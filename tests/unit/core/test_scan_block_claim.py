"""Scan, block, claim: which actions may overtake others, and that none starves."""

from __future__ import annotations

from domain.action import ActionState
from tests.builders import a_config, a_lease, a_node, an_action, granted

GPU = {"gpu": 1}


def test_an_action_that_waits_for_a_gpu_does_not_hold_up_actions_that_need_cores(core):
    scenario = core(a_node("n1", cpus=4, gpu=1))
    scenario.submit(an_action("train", cost={"gpu": 1}))

    decisions = scenario.submit(an_action("score", cost=GPU), an_action("shell", cost={"cpu": 1}))

    assert granted(decisions) == ["shell"]


def test_a_resource_is_kept_for_the_first_action_that_is_short_of_it(core):
    scenario = core(a_node("n1", cpus=4))
    scenario.submit(an_action("two", cost={"cpu": 2}), an_action("one", cost={"cpu": 1}))

    scenario.submit(an_action("wide", cost={"cpu": 4}), an_action("small", cost={"cpu": 1}))
    assert scenario.state("small") is ActionState.QUEUED
    assert scenario.free("cpu:n1") == 1

    assert granted(scenario.finish("two")) == []
    assert granted(scenario.finish("one")) == ["wide"]
    assert granted(scenario.finish("wide")) == ["small"]


def test_a_claim_keeps_an_action_of_several_resources_from_starving(core):
    """Without claims, a stream of cheap actions would take each core that comes free.

    1. `both` needs 2 cores and the API slot, which `holder` has.
    2. Cheap actions come for ever; each may only use the 2 cores beyond the claim.
    3. When the slot is free, the cores are there.
    """
    scenario = core(a_node("n1", cpus=4), config=a_config(apis={"search": 1}))
    scenario.submit(a_lease("holder", cost={"api:search": 1}, ttl_seconds=900))
    scenario.submit(an_action("both", cost={"cpu": 2, "api:search": 1}))
    for turn in range(20):
        scenario.submit(an_action(f"cheap-{turn}"))
        if turn >= 2:
            scenario.finish(f"cheap-{turn - 2}")
        assert scenario.free("cpu:n1") >= 2

    assert granted(scenario.release("holder")) == ["both"]


def test_later_actions_use_what_is_beyond_the_claims(core):
    scenario = core(a_node("n1", cpus=4), config=a_config(apis={"search": 1}))
    scenario.submit(a_lease("holder", cost={"api:search": 1}))
    scenario.submit(an_action("both", cost={"cpu": 3, "api:search": 1}))

    decisions = scenario.submit(*(an_action(f"later-{n}") for n in range(3)))

    assert granted(decisions) == ["later-0"]
    assert scenario.why("later-1").code == "short_of"
    assert "kept for actions before it" in scenario.why("later-1").reason


def test_claims_of_several_waiting_actions_add_up(core):
    scenario = core(a_node("n1", cpus=4), config=a_config(apis={"search": 1, "code": 1}))
    scenario.submit(
        a_lease("s", cost={"api:search": 1}),
        a_lease("c", cost={"api:code": 1}),
        an_action("first", cost={"cpu": 2, "api:search": 1}),
        an_action("second", cost={"cpu": 1, "api:code": 1}),
    )

    assert granted(scenario.submit(an_action("third"), an_action("fourth"))) == ["third"]


def test_an_action_behind_another_claims_nothing(core):
    """`second` waits behind `first` for the API, so it is not yet its turn to save up cores."""
    scenario = core(a_node("n1", cpus=3), config=a_config(apis={"search": 1}))
    scenario.submit(a_lease("holder", cost={"api:search": 1}))
    scenario.submit(
        an_action("first", cost={"cpu": 1, "api:search": 1}),
        an_action("second", cost={"cpu": 2, "api:search": 1}),
    )

    decisions = scenario.submit(an_action("later", cost={"cpu": 2}))

    assert granted(decisions) == ["later"]
    assert scenario.why("second").blocked_by == "first"


def test_a_wide_action_saves_up_on_one_node_while_others_go_on(core):
    scenario = core(a_node("n1", cpus=2), a_node("n2", cpus=2))
    scenario.submit(*(an_action(f"r{n}") for n in range(4)))
    scenario.submit(an_action("wide", cost={"cpu": 2}))
    saving_on = scenario.why("wide").resource.removeprefix("cpu:")
    elsewhere = next(n for n in range(4) if scenario.the_grant(f"r{n}").node != saving_on)
    here = [n for n in range(4) if scenario.the_grant(f"r{n}").node == saving_on]

    scenario.finish(f"r{elsewhere}")
    assert granted(scenario.submit(an_action("small"))) == ["small"]
    assert scenario.the_grant("small").node != saving_on

    scenario.finish(f"r{here[0]}")
    assert granted(scenario.submit(an_action("late"))) == []
    scenario.finish(f"r{here[1]}")
    assert scenario.the_grant("wide").node == saving_on


def test_a_place_that_frees_elsewhere_is_taken_first(core):
    scenario = core(a_node("n1", cpus=2), a_node("n2", cpus=2))
    scenario.submit(an_action("x", cost={"cpu": 2}), an_action("y", cost={"cpu": 2}))
    scenario.submit(an_action("wide", cost={"cpu": 2}))
    saving_on = scenario.why("wide").resource.removeprefix("cpu:")
    elsewhere = next(n for n in "xy" if scenario.the_grant(n).node != saving_on)

    assert granted(scenario.finish(elsewhere)) == ["wide"]


def test_when_the_first_in_line_gives_up_those_behind_it_go_at_once(core):
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(an_action("running"))
    scenario.submit(an_action("wide", cost={"cpu": 2}), an_action("small"))

    assert granted(scenario.cancel("wide")) == ["small"]
