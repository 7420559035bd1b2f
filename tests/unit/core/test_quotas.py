"""Quotas over time in the core: waiting actions, blocked resources, and timers."""

from __future__ import annotations

import pytest

from domain.decisions import Decision, Degraded
from domain.ids import ResourceId
from scheduler.core.state import snapshot
from tests.builders import a_config, a_lease, a_node, a_quota, an_action, granted, make_ledger
from tests.scenario import Scenario

SEARCH = {"api:search": 1}


def a_scenario(*quotas, at_once: int = 100, **fields) -> Scenario:
    return Scenario(
        a_node(cpus=2),
        config=a_config(apis={"search": at_once}, quotas={"search": quotas}, **fields),
    )


def calls(count: int, first: int = 0):
    return [a_lease(f"c{n}", cost=SEARCH, ttl_seconds=900) for n in range(first, first + count)]


def test_calls_above_the_quota_wait_until_its_window_has_passed() -> None:
    scenario = a_scenario(a_quota(2, 10.0))
    assert granted(scenario.submit(*calls(5))) == ["c0", "c1"]
    assert granted(scenario.advance(9.9)) == []
    assert granted(scenario.advance(0.1)) == ["c2", "c3"]
    assert granted(scenario.advance(10.0)) == ["c4"]


def test_ending_gives_nothing_of_a_quota_back() -> None:
    scenario = a_scenario(a_quota(2, 10.0), at_once=2)
    scenario.submit(*calls(3))
    assert granted(scenario.release("c0")) == []
    assert granted(scenario.advance(10.0)) == ["c2"]


def test_no_action_waits_longer_than_the_slower_of_quota_and_capacity() -> None:
    scenario = a_scenario(a_quota(2, 10.0), at_once=2)
    scenario.submit(*calls(3))
    assert granted(scenario.advance(20.0)) == []
    assert granted(scenario.release("c0")) == ["c2"]


def test_the_machine_is_woken_once_for_all_that_wait() -> None:
    scenario = a_scenario(a_quota(1, 10.0))
    scenario.submit(*calls(50))
    assert scenario.wakes() == [10.0]


def test_an_action_that_waits_for_a_quota_names_it_and_how_long() -> None:
    scenario = a_scenario(a_quota(2, 10.0), a_quota(100))
    scenario.submit(*calls(3))
    scenario.advance(4.0)
    why = scenario.why("c2")
    assert (why.code, why.resource) == ("short_of", "api:search")
    assert "2 per 10 s (0 left)" in why.reason
    assert "in 6 s" in why.reason
    assert "per day" not in why.reason


def test_an_action_that_waits_for_a_quota_keeps_no_cores_from_others() -> None:
    scenario = a_scenario(a_quota(1))
    scenario.submit(*calls(1))
    scenario.submit(an_action("both", cost={"cpu": 2, **SEARCH}))
    assert granted(scenario.submit(an_action("cores", cost={"cpu": 2}))) == ["cores"]


def test_an_action_that_waits_for_a_quota_is_not_overtaken_on_it() -> None:
    scenario = a_scenario(a_quota(2, 10.0))
    scenario.submit(*calls(1))
    scenario.submit(a_lease("wide", cost={"api:search": 2}))
    assert granted(scenario.submit(a_lease("narrow", cost=SEARCH))) == []
    assert granted(scenario.advance(10.0)) == ["wide"]


def test_a_quota_lowered_below_its_use_ends_nothing() -> None:
    scenario = a_scenario(a_quota(4, 10.0))
    scenario.submit(*calls(4))
    lowered = a_config(apis={"search": 100}, quotas={"search": [a_quota(1, 10.0)]}, revision=1)
    assert granted(scenario.configure(lowered)) == []
    assert len(scenario.holding()) == 4
    (use,) = scenario.machine.state.supply.paced[ResourceId("api:search")].uses(scenario.now)
    assert use.left == -3000
    scenario.submit(*calls(1, first=9))
    assert granted(scenario.advance(10.0)) == ["c9"]


def test_a_raised_quota_lets_go_at_once() -> None:
    scenario = a_scenario(a_quota(1, 10.0))
    scenario.submit(*calls(3))
    raised = a_config(apis={"search": 100}, quotas={"search": [a_quota(9, 10.0)]}, revision=1)
    assert granted(scenario.configure(raised)) == ["c1", "c2"]


def test_a_resource_that_was_away_for_a_while_has_not_forgotten() -> None:
    scenario = a_scenario(a_quota(1, 10.0))
    scenario.submit(*calls(1))
    scenario.configure(a_config(revision=1))
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    back = a_config(apis={"search": 9}, quotas={"search": [a_quota(1, 10.0)]}, revision=2)
    scenario.configure(back)
    assert granted(scenario.submit(*calls(1, first=1))) == []
    assert granted(scenario.advance(10.0)) == ["c1"]


def test_a_quota_that_runs_out_is_a_decision_for_subscribers() -> None:
    def turned(decisions: list[Decision]) -> list[tuple[str, int]]:
        return [
            (each.resource, each.degradation.quota.left)
            for each in decisions
            if isinstance(each, Degraded) and each.degradation.quota is not None
        ]

    scenario = a_scenario(a_quota(2, 10.0))
    assert turned(scenario.submit(*calls(1))) == []
    assert turned(scenario.submit(*calls(3, first=1))) == [("api:search", 0)]
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert turned(scenario.advance(9.0)) == []
    assert turned(scenario.advance(1.0)) == [("api:search", 0)]


def test_more_than_a_quota_ever_has_is_refused() -> None:
    scenario = a_scenario(a_quota(2, 10.0))
    scenario.submit(a_lease("wide", cost={"api:search": 3}))
    assert "limit is 2" in (scenario.the_finish("wide").detail or "")


@pytest.mark.parametrize("policy", ["minimum", "paper", "malleable"])
def test_quotas_hold_under_every_policy(policy: str) -> None:
    from domain.inventory import PoolConfig

    scenario = a_scenario(a_quota(3, 10.0), pools=[PoolConfig("default", policy)])
    decisions = scenario.submit(*(an_action(f"n{k}", kind="noop", cost=SEARCH) for k in range(9)))
    assert len(granted(decisions)) == 3
    assert len(granted(scenario.advance(10.0))) == 3


def test_a_restored_machine_grants_when_the_original_would() -> None:
    scenario = a_scenario(a_quota(2, 10.0))
    scenario.submit(*calls(3))
    scenario.advance(3.0)
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert granted(scenario.advance(6.9)) == []
    assert granted(scenario.advance(0.1)) == ["c2"]
