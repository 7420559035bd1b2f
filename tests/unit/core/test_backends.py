"""Leases of ``llm:POOL`` take seats on backends, which change at run time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from domain import events
from domain.backends import BackendPool, Balance
from domain.decisions import SetBackends
from domain.ids import ActionId, ResourceId
from domain.inventory import PoolConfig
from domain.limits import Share
from domain.resources import MILLI
from domain.rollout_events import BackendJudged
from domain.rollouts import RolloutOutcome
from scheduler.core.handlers import backends
from scheduler.core.state import snapshot
from tests.builders import a_config, a_lease, a_node, an_action, granted, make_ledger, only
from tests.unit.core.rollout_scenario import (
    RolloutScenario,
    a_backend,
    a_rollout,
    the_backends,
)


@pytest.fixture
def core() -> Iterator[RolloutScenario]:
    scenario = RolloutScenario(a_node("n1", cpus=4), config=a_config(apis={"search": 1}))
    yield scenario
    scenario.check()


def seat_of(core: RolloutScenario, name: str) -> tuple[int, ...]:
    """Return the units of the seat that a lease got."""
    (allocation,) = [
        each for each in core.the_grant(name).allocations if each.resource == "llm:policy"
    ]
    assert allocation.shared
    return allocation.units


def lease(core: RolloutScenario, *names: str, **fields: Any) -> list[str]:
    """Submit leases of one seat each; return those that are granted at once."""
    leases = [a_lease(name, cost={"llm:policy": 1}, **fields) for name in names]
    return granted(core.submit(*leases))


def judge(core: RolloutScenario, backend: str, unhealthy: str) -> None:
    core.handle(BackendJudged(pool="policy", backend=backend, unhealthy=unhealthy))


def test_a_grant_names_the_backend_and_leases_spread_over_backends(core):
    core.change_backends(a_backend("b1"), a_backend("b2"))

    lease(core, "l1", "l2", "l3")

    assert [seat_of(core, name) for name in ("l1", "l2", "l3")] == [(1,), (2,), (1,)]


def test_a_lease_waits_while_its_pool_has_no_backend(core):
    core.submit_rollouts(a_rollout(1, llm="policy"))

    assert lease(core, "l1") == []
    assert core.why("l1").code == "no_backend"
    assert core.why("l1").reason == (
        "no backend of llm:policy is usable now: add one, or end its drain"
    )
    assert granted(core.change_backends(a_backend("b1"))) == ["l1"]


def test_a_lease_that_waits_for_a_backend_holds_nothing_else_back(core):
    core.change_backends()

    both = a_lease("both", cost={"api:search": 1, "llm:policy": 1})
    other = a_lease("other", cost={"api:search": 1})

    assert granted(core.submit(both, other)) == ["other"]


def test_a_lease_of_stage_and_seat_is_granted_at_once_or_not_at_all(core):
    core.change_backends(a_backend("b1", seats=1))
    first, second = (a_lease(n, cost={"api:search": 1, "llm:policy": 1}) for n in ("a", "b"))

    assert granted(core.submit(first, second)) == ["a"]
    assert granted(core.release("a")) == ["b"]


def test_a_trajectory_keeps_its_backend(core):
    core.change_backends(a_backend("b1"), a_backend("b2"))
    lease(core, "first", "mine", "third", trajectory=None)
    lease(core, "t1", trajectory="t")
    before = seat_of(core, "t1")
    core.release("t1")
    lease(core, "x")  # the other one would be the least loaded next

    lease(core, "t2", trajectory="t")

    assert seat_of(core, "t2") == before


def test_a_trajectory_gets_another_backend_when_its_own_is_full(core):
    core.change_backends(a_backend("b1", seats=1), a_backend("b2", seats=1))
    lease(core, "t1", trajectory="t")
    core.release("t1")
    lease(core, "x")

    assert lease(core, "t2", trajectory="t") == ["t2"]
    assert seat_of(core, "x") != seat_of(core, "t2")


@pytest.mark.parametrize("how", ["drained", "unhealthy", "removed"])
def test_a_backend_that_takes_nothing_new_keeps_its_holders(core, how):
    core.change_backends(a_backend("b1", seats=2), a_backend("b2", seats=2))
    lease(core, "l1", "l2")
    if how == "drained":
        core.change_backends(a_backend("b1", seats=2, drained=True))
    elif how == "unhealthy":
        judge(core, "b1", "it does not answer")
    else:
        core.change_backends(removed=("b1",))

    assert lease(core, "l3", "l4") == ["l3"]
    assert seat_of(core, "l3") == (2,)
    assert core.the_grant("l1").allocations == core.live("l1").allocations
    core.release("l1")
    assert core.state("l4").value == "queued"


def test_a_backend_that_works_again_serves_waiting_leases(core):
    core.change_backends(a_backend("b1"))
    judge(core, "b1", "it does not answer")
    lease(core, "l1")
    before = len(only(SetBackends, core.decisions))

    judge(core, "b1", "it does not answer")  # judged twice
    assert len(only(SetBackends, core.decisions)) == before
    judge(core, "b1", "")

    assert seat_of(core, "l1") == (1,)


def test_clearing_makes_a_new_weights_version_and_numbers_are_never_used_again(core):
    first = core.change_backends(a_backend("b1"), a_backend("b2"))
    assert the_backends(first) == [("b1", 1, 1), ("b2", 2, 1)]
    core.change_backends(clear=True)

    assert the_backends(core.change_backends(a_backend("b1"))) == [("b1", 3, 2)]


def test_a_backend_at_the_same_address_keeps_its_number_and_its_health(core):
    core.change_backends(a_backend("b1"))
    judge(core, "b1", "it does not answer")

    (same,) = only(SetBackends, core.change_backends(a_backend("b1", weights_version=5)))
    (backend,) = same.backends.backends
    assert (backend.number, backend.unhealthy, backend.weights_version) == (
        1, "it does not answer", 5,
    )  # fmt: skip

    moved = replace(a_backend("b1"), address="http://elsewhere:1")
    (other,) = only(SetBackends, core.change_backends(moved))
    (backend,) = other.backends.backends
    assert (backend.number, backend.unhealthy, backend.weights_version) == (2, "", 5)


def test_an_equal_change_decides_nothing(core):
    core.change_backends(a_backend("b1"))

    assert core.change_backends(a_backend("b1")) == []


def test_a_new_backend_gets_its_part_of_new_leases_and_not_all_of_them(core):
    core.change_backends(a_backend("b1", seats=50), a_backend("b2", seats=50))
    lease(core, *(f"old{n}" for n in range(20)))
    core.change_backends(a_backend("b3", seats=50))

    lease(core, *(f"new{n}" for n in range(9)))

    got = [seat_of(core, f"new{n}")[0] for n in range(9)]
    assert {number: got.count(number) for number in (1, 2, 3)} == {1: 3, 2: 3, 3: 3}


def test_a_new_backend_catches_up_as_the_others_holders_leave(core):
    core.change_backends(a_backend("b1", seats=50))
    lease(core, *(f"old{n}" for n in range(20)))
    core.change_backends(a_backend("b2", seats=50))
    for n in range(20):
        core.release(f"old{n}")
        lease(core, f"new{n}")

    numbers = [seat_of(core, f"new{n}")[0] for n in range(20)]
    assert 8 <= numbers.count(2) <= 12


def test_the_balance_of_the_paper_counts_what_each_backend_was_given(core):
    core.change_backends(a_backend("b1"), a_backend("b2"), balance=Balance.PAPER)
    for n in range(4):  # one at a time: in flight, each would get the first backend
        lease(core, f"l{n}")
        core.release(f"l{n}")

    assert [seat_of(core, f"l{n}") for n in range(4)] == [(1,), (2,), (1,), (2,)]


def test_a_resource_document_limits_the_seats_of_all_backends(core):
    declared = a_config(apis={"search": 1}, revision=1)
    declared.resources["llm:policy"] = 3 * MILLI
    core.configure(declared)
    core.change_backends(a_backend("b1"), a_backend("b2"))

    assert lease(core, "l1", "l2", "l3", "l4") == ["l1", "l2", "l3"]
    core.configure(a_config(apis={"search": 1}, revision=2))
    assert core.state("l4").value != "queued"


def test_a_pool_without_backends_that_a_document_declares_counts_as_before(core):
    """Journals of earlier versions have no backends: their ``llm:`` resources are counted amounts."""
    declared = a_config(apis={"search": 1}, revision=1)
    declared.resources["llm:policy"] = 2 * MILLI
    core.configure(declared)

    assert lease(core, "l1", "l2", "l3") == ["l1", "l2"]
    (allocation,) = core.the_grant("l1").allocations
    assert (allocation.units, allocation.shared) == ((), False)


def test_an_action_that_waits_from_before_the_pool_was_known_is_granted(core):
    core.submit_rollouts(a_rollout(1))
    other = RolloutScenario(empty=True, config=a_config())
    other.submit(a_lease("early", cost={"llm:policy": 1}))

    assert granted(other.change_backends(a_backend("b1"))) == ["early"]


def test_a_restored_machine_chooses_the_same_backends(core):
    core.change_backends(a_backend("b1", seats=9), a_backend("b2", seats=9))
    lease(core, *(f"l{n}" for n in range(6)))
    lease(core, "t1", trajectory="t")
    core.change_backends(a_backend("b3", seats=9))
    core.release("t1")
    judge(core, "b1", "it does not answer")
    before = snapshot.dump(core.machine)
    restored = RolloutScenario(empty=True)
    restored.machine, restored.now = snapshot.load(before, make_ledger), core.now
    assert snapshot.dump(restored.machine) == before

    for scenario in (core, restored):
        lease(scenario, *(f"n{n}" for n in range(6)))
        lease(scenario, "t2", trajectory="t")

    assert [seat_of(core, f"n{n}") for n in range(6)] == [
        seat_of(restored, f"n{n}") for n in range(6)
    ]
    assert seat_of(core, "t2") == seat_of(restored, "t2")


def test_commands_run_beside_pools_of_backends(core):
    core.change_backends(a_backend("b1"))

    assert granted(core.submit(an_action("a", cost={"cpu": 2}))) == ["a"]
    assert core.machine.state.supply.ledgers[ResourceId("llm:policy")].free == 4 * MILLI


def test_a_lease_that_is_short_of_seats_says_so_and_when_it_may_start(core):
    core.change_backends(a_backend("b1", seats=1))
    lease(core, "l1", "l2", duration_seconds=10.0)

    why = core.why("l2")

    assert (why.code, why.resource) == ("short_of", "llm:policy")
    assert why.reason == "waits for 1 of llm:policy, 0 free"


def test_projects_share_the_seats_of_all_backends(core):
    shares = {"llm:policy": {"default": Share(MILLI, 0), "other": Share(MILLI, 0)}}
    core.configure(a_config(apis={"search": 1}, shares=shares, revision=1))
    core.change_backends(a_backend("b1", seats=1), a_backend("b2", seats=1))

    assert lease(core, "l1", "l2") == ["l1"]
    assert core.why("l2").code == "share"
    assert lease(core, "o1", project="other") == ["o1"]


def test_names_of_pools_that_trainers_invent_do_not_fill_the_memory(core, monkeypatch):
    monkeypatch.setattr(backends, "MAX_POOLS", 2)
    core.join_worker(slots=9)
    core.submit_rollouts(*(a_rollout(n, llm=f"pool{n}") for n in range(1, 4)))

    assert core.end_of(3).result.outcome is RolloutOutcome.INFRA_FAILED
    assert core.change_backends(a_backend("b1"), pool="pool4") == []
    assert only(SetBackends, core.change_backends(a_backend("b1"), pool="pool1"))
    assert core.machine.state.backends.keys() == {"pool1", "pool2"}


def test_a_pool_without_backends_is_forgotten_with_its_last_rollout(core):
    core.join_worker(slots=9)
    core.submit_rollouts(*(a_rollout(n, llm="new") for n in (1, 2)), a_rollout(3, llm="policy"))
    core.change_backends(a_backend("b1"))
    core.change_backends(clear=True)
    lease(core, "l1", "l2")
    core.submit(a_lease("waits", cost={"llm:new": 1}))
    core.cancel_rollout(1)
    assert core.machine.state.backends.keys() == {"new", "policy"}
    before = snapshot.load(snapshot.dump(core.machine), make_ledger).state

    core.cancel_rollout(2)
    core.cancel_rollout(3)  # its pool has had a backend: the weights version is kept

    state = core.machine.state
    assert state.backends.keys() == {"policy"}
    assert before.rollouts.name_pool("new")
    assert not state.rollouts.name_pool("new")
    assert "llm:new" not in state.config.resources
    assert "llm:new" not in state.supply.ledgers
    assert the_backends(core.change_backends(a_backend("b2"))) == [("b2", 2, 2)]
    assert granted(core.change_backends(a_backend("b3"), pool="new")) == ["waits"]


def test_an_empty_pool_is_forgotten_when_an_operator_asks(core):
    core.join_worker(slots=9)
    core.change_backends(a_backend("b1", seats=2))
    core.submit_rollouts(a_rollout(1, llm="policy"))
    lease(core, "l1")

    assert core.change_backends(forget=True) == []  # it has a backend
    core.change_backends(clear=True)
    assert core.change_backends(forget=True) == []  # a rollout names it
    core.cancel_rollout(1)
    assert core.change_backends(forget=True) == []  # a lease has a seat
    core.handle(events.LeaseReleased(action_id=ActionId("l1"), project="default"))

    (forgotten,) = only(SetBackends, core.change_backends(forget=True))
    assert (forgotten.pool, forgotten.backends) == ("policy", BackendPool())
    state = snapshot.load(snapshot.dump(core.machine), make_ledger).state
    for each in (state, core.machine.state):
        assert each.backends == {}
        assert "llm:policy" not in each.config.resources
    assert core.change_backends(forget=True) == []
    assert the_backends(core.change_backends(a_backend("b2"))) == [("b2", 1, 1)]


def test_a_pool_that_a_document_declares_is_not_forgotten(core):
    declared = a_config(apis={"search": 1}, revision=1)
    declared.resources["llm:policy"] = 2 * MILLI
    core.configure(declared)
    lease(core, "l1")
    core.submit_rollouts(a_rollout(1, llm="policy"))
    core.cancel_rollout(1)

    assert "llm:policy" in core.machine.state.config.resources
    core.release("l1")


def test_one_project_does_not_use_up_the_names_of_pools(core, monkeypatch):
    monkeypatch.setattr(backends, "MAX_POOLS_OF_PROJECT", 2)
    core.join_worker(slots=9)
    core.submit_rollouts(*(a_rollout(n, llm=f"pool{n}") for n in range(1, 4)))
    assert core.end_of(3).result.reason.startswith("rollouts of the project name 2 pools")

    core.submit_rollouts(a_rollout(4, llm="pool4", project="other"), a_rollout(5, llm="pool4"))
    core.cancel_rollout(1)
    core.cancel_rollout(2)
    core.submit_rollouts(a_rollout(6, llm="pool6"))

    assert core.machine.state.backends.keys() == {"pool4", "pool6"}


@pytest.mark.parametrize("policy", ["paper", "minimum", "fixed(2)", "balanced", "malleable"])
def test_under_each_policy_leases_of_stages_and_seats_take_what_there_is(policy):
    config = a_config(apis={"stage": 3}, pools=[PoolConfig("default", policy)])
    core = RolloutScenario(a_node("n1", cpus=4), config=config)
    core.change_backends(a_backend("b1", seats=1), a_backend("b2", seats=1))
    cost = {"api:stage": 1, "llm:policy": 1}

    first = core.submit(*(a_lease(f"l{n}", cost=cost) for n in range(4)), an_action("tool"))

    assert sorted(granted(first)) == ["l0", "l1", "tool"]
    assert {seat_of(core, "l0"), seat_of(core, "l1")} == {(1,), (2,)}
    assert core.why("l2").resource == "llm:policy"
    assert granted(core.change_backends(a_backend("b3", seats=1))) == ["l2"]
    assert core.why("l3").resource == "api:stage"
    assert granted(core.release("l0")) == ["l3"]
