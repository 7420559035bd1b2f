"""Shares of cores and GPUs of a pool, under any policy."""

from __future__ import annotations

from typing import Any

import pytest

from domain.advice import ShareUsage
from domain.elasticity import Elasticity
from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.limits import Share
from tests.builders import a_config, a_lease, a_node, a_noop, an_action, granted
from tests.scenario import Scenario

PERFECT = Elasticity(amdahl=1.0)


def configured(policy: str = "minimum", revision: int = 0, kind: str = "cpu", **shares) -> Config:
    return a_config(
        pools=[PoolConfig("default", policy, shares={kind: shares} if shares else {})],
        projects={name: ProjectConfig(name) for name in ("default", "a", "b", "c")},
        revision=revision,
    )


def a_scenario(policy: str = "minimum", nodes=None, kind: str = "cpu", **shares) -> Scenario:
    there = nodes or [a_node("n1", cpus=6), a_node("n2", cpus=4)]
    return Scenario(*there, config=configured(policy, kind=kind, **shares))


def of(project: str, *numbers: int, cost=1, **fields):
    return [
        an_action(f"{project}{n}", project=project, cost={"cpu": cost}, **fields) for n in numbers
    ]


def wide(project: str, *numbers: int, **fields):
    fields = {"duration_seconds": 100.0, "elasticity": PERFECT, **fields}
    return of(project, *numbers, cost=[1, 2, 3, 4, 5, 6], **fields)


def cores(scenario: Scenario, *names: str) -> list[float]:
    return [
        sum(a.amount for a in scenario.live(name).allocations if a.resource.startswith("cpu:"))
        / 1000
        for name in names
    ]


def test_a_share_of_cores_is_of_all_nodes_of_the_pool_together() -> None:
    scenario = a_scenario(a=Share(4000), b=Share(6000, lend=1000))
    assert len(granted(scenario.submit(*of("a", *range(9))))) == 5
    assert len(granted(scenario.submit(*of("b", *range(9))))) == 5


def test_an_action_that_waits_for_its_share_of_cores_holds_up_no_other() -> None:
    scenario = a_scenario(a=Share(2000, borrow=0), b=Share(8000))
    scenario.submit(*of("a", *range(5)))
    assert len(granted(scenario.submit(*of("b", *range(8))))) == 8
    why = scenario.why("a3")
    assert (why.code, why.resource, why.position) == ("share", "cpu", 1)
    assert why.reason == (
        "project a has 2 of cpu in pool default and may take 0 more: its share is 2, and it may"
        " borrow 0"
    )


def test_another_pool_has_shares_of_its_own() -> None:
    shares = {"cpu": {"a": Share(1000, borrow=0)}}
    pools = [PoolConfig("default", "minimum", shares=shares), PoolConfig("other", "minimum")]
    scenario = Scenario(a_node("n1"), a_node("n2", pool="other"), config=a_config(pools=pools))
    assert len(granted(scenario.submit(*of("a", 0, 1, 2)))) == 1
    assert len(granted(scenario.submit(*of("a", 3, 4, pool="other")))) == 2


def test_lent_units_return_even_when_the_borrower_was_first() -> None:
    scenario = a_scenario(a=Share(4000), b=Share(6000))
    scenario.submit(*of("a", *range(20)))
    assert granted(scenario.submit(*of("b", *range(20, 30)))) == []
    why = scenario.why("b20")
    assert why.code == "share"
    assert why.reason.endswith(
        "; others have borrowed the rest, which comes back as their actions end"
    )
    for n in range(6):
        assert granted(scenario.finish(f"a{n}")) == [f"b{20 + n}"]
    assert granted(scenario.finish("a6")) == ["a10"]
    assert scenario.why("b26").reason.endswith(
        "its share is 6, and it may borrow what others leave"
    )


def test_a_large_action_of_an_owner_is_not_overtaken_by_borrowers() -> None:
    scenario = a_scenario(a=Share(4000), b=Share(6000), nodes=[a_node("n1", cpus=10)])
    scenario.submit(*of("a", *range(20)))
    scenario.submit(*of("b", 20, cost=5))
    for n in range(4):
        assert granted(scenario.finish(f"a{n}")) == []
    assert granted(scenario.finish("a4")) == ["b20"]


def test_an_owner_that_waits_for_borrowers_leaves_the_others_what_is_theirs() -> None:
    """5 are free for c alone, whose share is not lent; b waits until a gives back."""
    shares: Any = {"a": Share(1000), "b": Share(4000), "c": Share(5000, lend=0)}
    scenario = a_scenario("minimum", **shares, nodes=[a_node("n1", cpus=10)])
    assert len(granted(scenario.submit(*of("a", *range(9))))) == 5
    assert granted(scenario.submit(*of("b", 20, cost=3))) == []
    assert len(granted(scenario.submit(*of("c", *range(30, 37))))) == 5
    for n in range(2):
        assert granted(scenario.finish(f"a{n}")) == []
    assert granted(scenario.finish("a2")) == ["b20"]


def test_a_project_is_served_in_its_own_order_also_where_it_borrows() -> None:
    scenario = a_scenario(a=Share(4000, borrow=1000), b=Share(6000), nodes=[a_node(cpus=10)])
    scenario.submit(*of("a", 0, 1))
    scenario.submit(*of("a", 2, cost=4), *of("a", 3))
    assert scenario.why("a3").blocked_by == "a2"
    assert granted(scenario.finish("a0")) == ["a2"]
    assert granted(scenario.finish("a1")) == ["a3"]


def test_an_action_that_waits_for_another_resource_keeps_its_share() -> None:
    scenario = a_scenario(a=Share(3000, borrow=0), b=Share(7000), nodes=[a_node(cpus=10, gpu=1)])
    scenario.submit(a_lease("gpu", project="b", cost={"gpu": 1}))
    scenario.submit(an_action("a0", project="a", cost={"cpu": 2, "gpu": 1}))
    assert granted(scenario.submit(*of("a", 1, 2))) == ["a1"]
    assert granted(scenario.release("gpu", "b")) == ["a0"]


def test_chunks_of_gpus_count_whole() -> None:
    scenario = a_scenario(kind="gpu", nodes=[a_node(gpu=8)], a=Share(5000, borrow=0), b=Share(3000))
    leases = [a_lease(f"a{n}", project="a", cost={"gpu": 3}) for n in range(2)]
    assert granted(scenario.submit(*leases)) == ["a0"]
    assert granted(scenario.submit(a_lease("a2", project="a", cost={"gpu": 1}))) == []
    assert granted(scenario.submit(a_lease("b0", project="b", cost={"gpu": 3}))) == ["b0"]
    scenario.submit(a_lease("b1", project="b", cost={"gpu": 5}))
    assert scenario.why("b1").code == "share"


def test_more_cores_than_a_project_can_ever_have_are_refused() -> None:
    scenario = a_scenario(a=Share(2000, borrow=1000))
    scenario.submit(*of("a", 0, cost=4))
    assert "project 'a' can have 3 of cpu" in (scenario.the_finish("a0").detail or "")


def test_a_policy_that_admits_at_wide_counts_keeps_to_those_that_a_share_allows() -> None:
    scenario = a_scenario("fixed(4)", a=Share(2000, borrow=0), b=Share(8000))
    scenario.submit(*wide("a", 0), *wide("b", 0))
    assert cores(scenario, "a0", "b0") == [2, 4]


@pytest.mark.parametrize("policy", ["paper", "balanced", "malleable"])
def test_unit_sets_are_cut_to_what_a_share_of_cores_leaves(policy: str) -> None:
    scenario = a_scenario(policy, a=Share(3000, borrow=0), b=Share(7000, lend=0))
    scenario.submit(*wide("a", 0))
    assert cores(scenario, "a0")[0] <= 3
    scenario.submit(*wide("a", 1, 2, malleable=policy == "malleable"))
    assert sum(cores(scenario, *sorted(scenario.holding()))) <= 3


def test_two_borrowers_together_take_no_more_than_is_lent() -> None:
    shares: Any = {"a": Share(0), "b": Share(0), "c": Share(8000, lend=4000)}
    scenario = a_scenario("paper", nodes=[a_node(cpus=8)], **shares)
    scenario.submit(*wide("a", 0), *wide("b", 0))
    assert cores(scenario, "a0", "b0") == [2, 2]
    assert len(granted(scenario.submit(*of("c", *range(9))))) == 4


def test_malleable_actions_grow_up_to_their_share_and_no_further() -> None:
    scenario = a_scenario("malleable", a=Share(3000, borrow=0), b=Share(7000))
    scenario.submit(*wide("a", 0, malleable=True))
    assert cores(scenario, "a0") == [3]


def test_malleable_actions_make_room_for_others_of_their_project() -> None:
    scenario = a_scenario("malleable", a=Share(4000, borrow=0), b=Share(6000))
    scenario.submit(*wide("a", 0, malleable=True))
    scenario.advance(1.0)
    scenario.submit(*wide("a", 1, malleable=True), *of("a", 2))
    assert scenario.holding() == {"a0", "a1", "a2"}
    assert sum(cores(scenario, "a0", "a1", "a2")) <= 4


def test_malleable_actions_give_back_at_once_what_they_borrowed() -> None:
    scenario = a_scenario("malleable", nodes=[a_node(cpus=6)], a=Share(1000), b=Share(5000))
    scenario.submit(*wide("a", 0, malleable=True))
    assert cores(scenario, "a0") == [6]
    scenario.advance(1.0)
    assert len(granted(scenario.submit(*of("b", *range(5))))) == 5
    assert cores(scenario, "a0") == [1]


def test_malleable_actions_grow_when_a_share_is_free_again_on_another_node() -> None:
    nodes = [a_node("n1", cpus=6), a_node("n2", cpus=6)]
    scenario = a_scenario("malleable", nodes=nodes, a=Share(6000, borrow=0), b=Share(6000))
    scenario.submit(*wide("a", 0, malleable=True, trajectory="t"))
    scenario.submit(*of("a", 1, cost=4))
    scenario.advance(1.0)
    assert cores(scenario, "a0") == [2]
    scenario.finish("a1")
    scenario.advance(1.0)
    assert cores(scenario, "a0") == [6]


def test_a_smaller_share_shrinks_malleable_actions_and_ends_none() -> None:
    scenario = a_scenario("malleable", a=Share(6000, borrow=0))
    scenario.submit(*wide("a", 0, malleable=True))
    scenario.advance(1.0)
    scenario.configure(configured("malleable", 1, a=Share(2000, borrow=0)))
    assert cores(scenario, "a0") == [2]
    assert scenario.outcomes == {}


def test_cores_of_a_drained_node_are_not_shared_out() -> None:
    scenario = a_scenario(a=Share(2000), b=Share(4000, lend=0))
    drained = a_config(
        pools=[
            PoolConfig(
                "default", "minimum", shares=scenario.machine.state.config.pools["default"].shares
            )
        ],
        drained_nodes=frozenset({"n1"}),
        revision=1,
    )
    scenario.configure(drained)
    assert len(granted(scenario.submit(*of("a", *range(9))))) == 2


def test_actions_without_shared_resources_share_a_queue_across_projects() -> None:
    scenario = a_scenario(a=Share(2000))
    scenario.submit(a_noop("x", project="a"), a_noop("y", project="b"))
    assert scenario.holding() == {"x", "y"}
    assert {key.needs.project for key in scenario.machine.state.queues.retired} == {""}


def test_a_share_used_on_one_node_is_missing_on_the_next() -> None:
    nodes = [a_node("n1", cpus=6), a_node("n2", cpus=6)]
    scenario = a_scenario("paper", nodes=nodes, a=Share(4000, borrow=0), b=Share(8000))
    scenario.submit(*wide("a", 0, 1))
    assert {scenario.live(name).node for name in ("a0", "a1")} == {"n1", "n2"}
    assert sum(cores(scenario, "a0", "a1")) == 4


def test_the_status_has_the_usage_of_projects() -> None:
    scenario = a_scenario(a=Share(2000), b=Share(4000, borrow=1000, lend=3000))
    scenario.submit(*of("a", *range(10)), *of("c", 20))
    reported = {view.project: view for view in scenario.machine.shares()}
    assert reported["a"] == ShareUsage("default", "cpu", "a", 2, None, None, 9, 7, 0, 1)
    assert reported["b"] == ShareUsage("default", "cpu", "b", 4, 1, 3, 0, 0, 1, 0)
    assert (reported["c"].nominal, reported["c"].waiting) == (0, 1)
    assert scenario.why("c20").position == 0


@pytest.mark.parametrize(("own", "given"), [(1, 1), (3, 2), (7, 4), (8, 8)])
def test_a_call_gets_the_largest_chunk_that_its_share_allows(own: int, given: int) -> None:
    shares: Any = {"a": Share(own * 1000, borrow=0)}
    scenario = a_scenario("paper", kind="gpu", nodes=[a_node(gpu=8)], **shares)
    scenario.submit(
        a_noop(
            "x", project="a", cost={"gpu": [1, 2, 4, 8]}, elasticity=PERFECT, duration_seconds=9.0
        )
    )
    assert scenario.the_grant("x").allocations[0].amount == given * 1000


@pytest.mark.parametrize("policy", ["paper", "balanced", "malleable"])
def test_no_action_gets_less_because_others_wait_for_their_share(policy: str) -> None:
    """Units that are free are not for them, so policies do not save any up for them."""
    widths = []
    for waiting in (0, 40):
        shares: Any = {"a": Share(1000, borrow=0), "b": Share(9000)}
        scenario = a_scenario(policy, nodes=[a_node(cpus=10)], **shares)
        scenario.submit(*of("a", *range(1, 2 + waiting)))
        scenario.submit(*wide("b", 90))
        widths.append(cores(scenario, "b90"))
    assert widths[0] == widths[1]
    assert widths[0] > [1]
