"""Policy `balanced` waits for a count that is efficient, unless there is a crowd."""

from __future__ import annotations

from typing import Any

import pytest

from domain.elasticity import Elasticity
from domain.ids import ActionId
from domain.inventory import Config, PoolConfig
from scheduler.core.state import snapshot
from tests.builders import a_config, a_node, an_action, granted, make_ledger


def with_policy(policy: str) -> Config:
    return a_config(pools=[PoolConfig("default", policy)])


def a_reward(name: str, **fields: Any) -> Any:
    """Return an action that is efficient on up to four cores: E(4) = 0.92, E(5) = 0.89."""
    return an_action(
        name,
        cost={"cpu": list(range(1, 17))},
        duration_seconds=40.0,
        elasticity=Elasticity(amdahl=0.97),
        **fields,
    )


@pytest.mark.parametrize(("free", "granted_cores"), [(4, 4), (3, None)])
def test_balanced_waits_for_an_efficient_count(core, free, granted_cores):
    scenario = core(a_node("n1", cpus=16), config=with_policy("balanced"))
    scenario.submit(an_action("steady", cost={"cpu": 16 - free}))

    decisions = scenario.submit(a_reward("a"))

    assert granted(decisions) == (["a"] if granted_cores else [])
    if granted_cores:
        assert scenario.live("a").allocations[0].amount == granted_cores * 1000
    else:
        assert scenario.why("a").code == "short_of"


def test_balanced_waits_for_no_more_than_a_quarter_of_a_node(core):
    scenario = core(a_node("n1", cpus=8), config=with_policy("balanced"))
    scenario.submit(an_action("steady", cost={"cpu": 6}))

    assert granted(scenario.submit(a_reward("a"))) == ["a"]


def test_balanced_admits_at_the_smallest_count_in_a_crowd(core):
    scenario = core(a_node("n1", cpus=16), config=with_policy("balanced"))
    scenario.submit(*(an_action(f"steady{n}") for n in range(14)))
    scenario.submit(an_action("wide", cost={"cpu": 3}), *(an_action(f"w{n}") for n in range(17)))

    scenario.submit(a_reward("a"))

    assert scenario.live("a").needs.key_amount == 1000


def test_malleable_actions_are_not_made_to_wait_for_an_efficient_count(core):
    scenario = core(a_node("n1", cpus=16), config=with_policy("malleable"))
    scenario.submit(an_action("steady", cost={"cpu": 15}))

    assert granted(scenario.submit(a_reward("a", malleable=True))) == ["a"]


def test_a_restored_machine_admits_waiting_actions_as_before(core):
    """What they were admitted with when it was calm stays, however many have come since."""
    scenario = core(a_node("n1", cpus=16), config=with_policy("balanced"))
    scenario.submit(an_action("steady", cost={"cpu": 14}), a_reward("a"))
    scenario.submit(*(an_action(f"w{n}", cost={"cpu": 3}) for n in range(20)))

    restored = snapshot.load(snapshot.dump(scenario.machine), make_ledger)

    assert restored.state.actions[ActionId("a")].needs == scenario.live("a").needs
    assert restored.state.actions[ActionId("a")].needs.key_amount == 4000
