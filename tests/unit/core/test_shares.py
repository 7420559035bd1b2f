"""Shares of projects: their limits, waiting for a share, and that no action is ended for one."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from domain.inventory import Config, PoolConfig, ProjectConfig
from domain.limits import Share
from scheduler.core.sharing.cohorts import Cohort
from scheduler.core.state import snapshot
from tests.builders import a_config, a_lease, a_node, an_action, granted, make_ledger
from tests.scenario import Scenario

SEARCH = {"api:search": 1}


def a_scenario(policy: str = "minimum", **shares: Share) -> Scenario:
    return Scenario(a_node(), config=configured(policy, 0, **shares))


def configured(policy: str, revision: int, **shares: Share) -> Config:
    return a_config(
        apis={"search": 10},
        pools=[PoolConfig("default", policy)],
        projects={name: ProjectConfig(name) for name in ("default", "a", "b", "c")},
        shares={"api:search": shares} if shares else {},
        revision=revision,
    )


def leases(project: str, count: int, first: int = 0, units: int = 1):
    return [
        a_lease(f"{project}{n}", project=project, cost={"api:search": units}, ttl_seconds=9e4)
        for n in range(first, first + count)
    ]


def test_a_project_takes_its_share_and_what_the_others_leave() -> None:
    scenario = a_scenario(a=Share(4000), b=Share(6000))
    assert len(granted(scenario.submit(*leases("a", 20)))) == 10


def test_units_that_are_not_lent_stay_free_for_their_project() -> None:
    scenario = a_scenario(a=Share(4000), b=Share(6000, lend=2000))
    assert len(granted(scenario.submit(*leases("a", 20)))) == 6
    assert len(granted(scenario.submit(*leases("b", 20)))) == 4


def test_a_borrowing_limit_holds() -> None:
    scenario = a_scenario(a=Share(4000, borrow=1000), b=Share(6000))
    assert len(granted(scenario.submit(*leases("a", 20)))) == 5
    assert len(granted(scenario.submit(*leases("b", 20)))) == 5


def test_an_action_that_waits_for_its_share_holds_up_no_other() -> None:
    scenario = a_scenario(a=Share(2000, borrow=0), b=Share(8000))
    scenario.submit(*leases("a", 5))
    assert granted(scenario.submit(*leases("b", 1))) == ["b0"]
    why = scenario.why("a2")
    assert (why.code, why.resource) == ("share", "api:search")
    assert "project a has 2 of api:search and may take 0 more" in why.reason
    assert scenario.why("a4").code == "share" or scenario.why("a4").code == "behind"


def test_a_project_is_served_in_its_own_order() -> None:
    scenario = a_scenario(a=Share(3000, borrow=0), b=Share(7000))
    scenario.submit(*leases("a", 2))
    scenario.submit(*leases("a", 1, first=2, units=2))
    assert granted(scenario.submit(*leases("a", 1, first=3))) == []
    assert granted(scenario.release("a0", "a")) == ["a2"]


def test_an_action_that_waits_for_its_share_keeps_no_cores_from_others() -> None:
    scenario = a_scenario(a=Share(1000, borrow=0))
    scenario.submit(*leases("a", 1))
    scenario.submit(an_action("both", project="a", cost={"cpu": 8, **SEARCH}))
    assert granted(scenario.submit(an_action("cores", project="b", cost={"cpu": 8}))) == ["cores"]


def test_lent_units_return_as_actions_end_and_no_action_is_ended() -> None:
    scenario = a_scenario(a=Share(4000), b=Share(6000))
    scenario.submit(*leases("a", 10))
    assert granted(scenario.submit(*leases("b", 8))) == []
    assert scenario.outcomes == {}
    for n in range(4):
        assert granted(scenario.release(f"a{n}", "a")) == [f"b{n}"]


def test_a_project_without_a_share_borrows_what_is_left() -> None:
    scenario = a_scenario(a=Share(6000, lend=0))
    assert len(granted(scenario.submit(*leases("c", 20)))) == 4


def test_a_cut_share_is_negative_until_enough_has_ended() -> None:
    scenario = a_scenario(a=Share(8000, borrow=0))
    scenario.submit(*leases("a", 9))
    scenario.configure(configured("minimum", 1, a=Share(2000, borrow=0)))
    assert len(scenario.holding()) == 8
    assert "may take -6 more: its share is 2" in scenario.why("a8").reason
    for n in range(6):
        assert granted(scenario.release(f"a{n}", "a")) == []
    assert granted(scenario.release("a6", "a")) == ["a8"]


def test_shares_may_be_declared_and_dropped_while_actions_wait() -> None:
    scenario = a_scenario(a=Share(1000, borrow=0))
    scenario.submit(*leases("a", 3))
    assert granted(scenario.configure(configured("minimum", 1))) == ["a1", "a2"]


def test_more_than_a_project_can_ever_have_is_refused() -> None:
    scenario = a_scenario(a=Share(2000, borrow=1000))
    scenario.submit(*leases("a", 1, units=4))
    assert "project 'a' can have 3 of api:search" in (scenario.the_finish("a0").detail or "")


def test_unit_sets_are_cut_to_what_the_share_leaves() -> None:
    scenario = a_scenario(policy="paper", a=Share(4000, borrow=0), b=Share(6000, lend=0))
    from domain.elasticity import Elasticity

    wide = [
        an_action(
            f"w{n}",
            kind="noop",
            project="a",
            cost={"api:search": [1, 2, 4, 8]},
            duration_seconds=100.0,
            elasticity=Elasticity(amdahl=1.0),
        )
        for n in range(2)
    ]
    scenario.submit(*wide)
    assert sorted(a.amount for n in range(2) for a in scenario.the_grant(f"w{n}").allocations) == [
        2000,
        2000,
    ]


def test_a_restored_machine_shares_as_the_original() -> None:
    scenario = a_scenario(a=Share(2000, borrow=0), b=Share(8000))
    scenario.submit(*leases("a", 4), *leases("b", 3))
    scenario.machine = snapshot.load(snapshot.dump(scenario.machine), make_ledger)
    assert granted(scenario.release("b0", "b")) == []
    assert granted(scenario.release("a0", "a")) == ["a2"]


AMOUNT = st.integers(0, 8)
SHARES = st.dictionaries(
    st.sampled_from("abc"), st.builds(Share, AMOUNT, st.none() | AMOUNT, st.none() | AMOUNT)
)
TAKES = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 3)), max_size=40)


@given(shares=SHARES, spare=AMOUNT, takes=TAKES)
def test_no_project_passes_its_limit(shares, spare: int, takes) -> None:
    """Only the formula decides here; the sums of what it allows never pass what there is."""
    capacity = sum(share.nominal for share in shares.values()) + spare
    cohort = Cohort(shares)
    used = cohort.used
    for project, amount in takes:
        if amount <= cohort.left(project, capacity):
            cohort.add(project, amount)
        assert sum(used.values()) <= capacity
        for name, share in shares.items():
            if share.borrow is not None:
                assert used.get(name, 0) <= share.nominal + share.borrow
            kept_by_others = sum(
                max(0, other.kept - used.get(who, 0))
                for who, other in shares.items()
                if who != name
            )
            assert sum(used.values()) + kept_by_others <= capacity
            # What is its own and not lent away can always be taken.
            own = share.kept - used.get(name, 0)
            assert cohort.left(name, capacity) >= min(own, max(0, own)) >= min(0, own)
