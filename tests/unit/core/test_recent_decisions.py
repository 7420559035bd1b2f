"""Recent decisions of policies, and the expected wait of an action."""

from __future__ import annotations

from typing import Any

import pytest

from domain.elasticity import Elasticity
from domain.ids import ActionId
from domain.inventory import PoolConfig
from tests.builders import a_config, a_lease, a_node, an_action
from tests.scenario import Scenario

PAPER = a_config(pools=[PoolConfig("default", "paper")])


def wide(name: str, **fields: Any) -> Any:
    """Return an action that takes 10 s on one core, 5 s on two."""
    fields.setdefault("cost", {"cpu": [1, 2]})
    return an_action(name, duration_seconds=10.0, elasticity=Elasticity(amdahl=1.0), **fields)


def expected(scenario: Scenario, name: str) -> Any:
    status = scenario.machine.explain(ActionId(name))
    assert status is not None
    return status.forecast


def test_a_decision_names_candidates_evictions_objectives_and_units(core):
    scenario = core(a_node("n1", cpus=2), config=PAPER)
    scenario.submit(wide("a"), wide("b"))

    (decision,) = scenario.machine.decisions(10)

    assert (decision.resource, decision.policy) == ("cpu:n1", "paper")
    assert decision.candidates == ["a", "b"]
    assert decision.units == {"a": 2}
    assert decision.evicted == ["b"]
    assert decision.objective_seconds == 15.0
    tried = [(t.evicted, t.objective_seconds, t.mean_seconds) for t in decision.trials]
    assert tried == [(0, 20.0, 10.0), (1, 15.0, 7.5)]


def test_the_latest_decision_is_first_and_old_ones_are_dropped(core):
    scenario = core(a_node("n1", cpus=2), config=PAPER)
    for number in range(260):
        scenario.submit(wide(f"a{number}"))
        scenario.finish(f"a{number}", execution_seconds=5.0)

    decisions = scenario.machine.decisions(1000)

    assert decisions[0].candidates == ["a259"]
    assert len(decisions) == 256
    assert len(scenario.machine.decisions(3)) == 3


def test_groups_without_a_choice_are_not_listed(core):
    scenario = core(a_node("n1", cpus=2), config=PAPER)
    scenario.submit(an_action("a"), an_action("b"))

    assert scenario.machine.decisions(10) == []


def test_a_waiting_action_says_when_it_may_start_and_with_what(core):
    """Ends at 4 and 6 s; `first` takes the earlier and ends at 14 s, `second` starts at 6 s."""
    scenario = core(a_node("n1", cpus=2))
    scenario.submit(
        an_action("x", duration_seconds=4.0),
        an_action("y", duration_seconds=6.0),
        an_action("first", duration_seconds=10.0),
        an_action("second", duration_seconds=1.0),
        an_action("third", duration_seconds=1.0),
    )

    starts = [expected(scenario, name).starts_in_seconds for name in ("first", "second", "third")]

    assert starts == pytest.approx([4.0, 6.0, 7.0])
    assert expected(scenario, "first").units == {"cpu": 1}
    scenario.advance(3.0)
    assert expected(scenario, "first").starts_in_seconds == pytest.approx(1.0)


def test_an_overdue_action_is_expected_to_go_on_for_a_while(core):
    scenario = core(a_node("n1", cpus=1))
    scenario.submit(an_action("x", duration_seconds=4.0), an_action("next"))
    scenario.advance(40.0)

    assert expected(scenario, "next").starts_in_seconds == pytest.approx(10.0)


def test_the_first_that_was_evicted_expects_its_turn_at_the_predicted_end(core):
    """Of the lease nothing is known: it is expected to end in 1 s, and `b` waits for that."""
    config = a_config(pools=[PoolConfig("default", "balanced")])
    scenario = core(a_node("n1", cpus=4), config=config)
    scenario.submit(a_lease("steady", cost={"cpu": 1}, ttl_seconds=900))
    scenario.submit(wide("a", cost={"cpu": [1, 2, 3]}), wide("b", cost={"cpu": [1, 2, 3]}))
    scenario.advance(0.25)

    assert scenario.why("b").code == "deferred"
    assert expected(scenario, "b").starts_in_seconds == pytest.approx(0.75)


def test_there_is_no_forecast_for_an_action_that_no_end_frees(core):
    scenario = core(
        a_node("n1", cpus=1), config=a_config(pools=[PoolConfig("default", paused=True)])
    )
    scenario.submit(an_action("a", cost={"cpu": 1}))

    assert expected(scenario, "a").starts_in_seconds is None
    assert expected(scenario, "a").units == {"cpu": 1}
