"""Elastic calls of a pool get one count of GPUs, chosen by replays of recent calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from domain.action import Action
from domain.elasticity import Elasticity
from domain.events import ActionSubmitted
from domain.ids import ActionId
from domain.inventory import PoolConfig
from scheduler.core.policies.registry import policy_named
from scheduler.core.residency import steady_counts
from scheduler.core.residency.policy import RestoreTimes
from scheduler.core.residency.service_replay import ReplayedService, mean_act
from scheduler.core.residency.steady_memory import ReplayedCall
from scheduler.core.state import snapshot
from scheduler.core.state.invariants import check
from tests.builders import START, a_config, a_machine, an_action, make_ledger
from tests.tiers import by_tier
from tests.unit.core.test_restore_costs import NAMES, a_wide_call
from tests.unit.core.test_services_on_chunks import a_gpu_node, a_service


class Pool:
    """A machine with one node of GPUs, whose calls have a steady count."""

    def __init__(
        self,
        *,
        steady: bool = True,
        shadows: bool = False,
        policy: str = "malleable",
        gpus: int = 8,
    ) -> None:
        config = a_config(
            pools=[PoolConfig("default", policy, steady_counts=steady, shadow_pools=shadows)],
            services={name: a_service((2, 50), (4, 35), (8, 30)) for name in NAMES},
        )
        self.machine = a_machine([a_gpu_node(gpus)], config)
        self.at = START

    def submit(self, *actions: Action) -> None:
        self.at += 1
        self.machine.handle(*(ActionSubmitted(action=each, at=self.at) for each in actions))
        check(self.machine.state)

    def widths(self) -> dict[str, int]:
        """Return for each action with how many GPUs it is admitted, or which it holds."""
        lives = self.machine.state.actions.values()
        return {live.id: live.needs.key_amount // 1000 for live in lives}


def test_calls_on_one_chunk_wait_for_each_other_and_for_restores():
    """a: restore 2, call 1 → 3. a again: waits until 3 → ends at 4. b: at 4, restore 2, call 1 → 7."""
    calls = [ReplayedCall(0.0, "a", 1.0), ReplayedCall(1.0, "b", 1.0), ReplayedCall(2.0, "a", 1.0)]
    services = dict.fromkeys("ab", ReplayedService(2.0, 60))

    assert mean_act(calls, services, 1, 80) == pytest.approx((3.0 + 6.0 + 2.0) / 3)
    assert mean_act(calls, services, 2, 80) == pytest.approx((3.0 + 3.0 + 2.0) / 3)
    assert mean_act(calls, services, 2, 80, warm=True) == pytest.approx((1.0 + 1.0 + 1.0) / 3)
    assert mean_act(calls, services, 0, 80) == float("inf")


def test_services_that_fit_beside_each_other_are_restored_once():
    calls = [ReplayedCall(10.0 * number, "ab"[number % 2], 1.0) for number in range(6)]

    assert mean_act(calls, dict.fromkeys("ab", ReplayedService(2.0, 60)), 1, 80) == 3.0
    assert mean_act(calls, dict.fromkeys("ab", ReplayedService(2.0, 40)), 1, 80) == 10.0 / 6


def test_calls_share_a_chunk_up_to_the_seats_of_their_service():
    calls = [ReplayedCall(0.0, "a", 4.0)] * 3

    assert mean_act(calls, {"a": ReplayedService(9.0, 60, seats=3)}, 1, 80) <= 13.0
    assert mean_act(calls, {"a": ReplayedService(9.0, 60)}, 1, 80) == (13.0 + 17.0 + 21.0) / 3


@given(
    gaps=st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from("abcd")), min_size=1, max_size=20),
    chunks=st.integers(1, 4),
    restore=st.floats(0.0, 3.0),
)
@settings(max_examples=by_tier(30, 100, 1000), deadline=None)
def test_every_replayed_call_ends_and_none_before_its_seconds(gaps, chunks, restore):
    at, calls = 0.0, []
    for gap, service in gaps:
        at += gap
        calls.append(ReplayedCall(at, service, 1.0))
    services = dict.fromkeys("abcd", ReplayedService(restore, 60))

    found = mean_act(calls, services, chunks, 80)

    assert 1.0 - 1e-9 <= found <= len(calls) * (1.0 + restore) + 1e-9


def test_calls_begin_with_the_efficient_count_at_which_most_services_stay_in_memory():
    """Four services of two GPUs fill eight; of four GPUs two fit beside each other, twice; 8 is inefficient."""
    pool = Pool()
    pool.submit(*(a_wide_call(name, name) for name in NAMES))

    assert set(pool.widths().values()) == {4}


def test_commands_and_calls_without_a_profile_have_no_steady_count():
    pool = Pool()
    pool.submit(
        a_wide_call("1", "a"),
        replace(a_wide_call("2", "b"), elasticity=None, duration_seconds=None),
        an_action("3", cost={"gpu": [1, 2]}),
    )

    assert pool.widths() == {"1": 4, "2": 2, "3": 1}


@pytest.mark.parametrize(("steady", "policy"), [(False, "malleable"), (True, "paper")])
def test_earlier_configurations_and_the_paper_choose_for_each_call(steady, policy):
    pool = Pool(steady=steady, policy=policy)
    pool.submit(a_wide_call("1", "a"))

    (held,) = pool.machine.state.actions[ActionId("1")].allocations
    assert held.amount == 8000
    assert pool.machine.state.residency.memory.steady == {}


def crowded() -> Pool:
    """Return a pool of which far more is asked than its GPUs can do: two GPUs a call waste least."""
    pool = Pool()
    for name in NAMES:
        pool.machine.state.residency.memory.times[name] = RestoreTimes(0.1, 4.0)
    wasteful = Elasticity(table=((1000, 1.0), (2000, 1.0), (4000, 0.8), (8000, 0.5)))
    calls = [
        replace(a_wide_call(f"c{number}", NAMES[number % 4]), elasticity=wasteful)
        for number in range(2 * steady_counts.FIRST)
    ]
    while calls:
        pool.submit(*calls[:16])
        del calls[:16]
    return pool


def test_waiting_calls_get_another_count_when_recent_calls_would_have_finished_sooner(monkeypatch):
    monkeypatch.setattr(steady_counts, "NOISE", 0.0)
    pool = crowded()

    waiting = {live.needs.key_amount for live in pool.machine.state.actions.values() if live.queue}
    assert waiting == {2000}


def test_what_was_chosen_and_why_is_in_the_snapshot():
    pool = Pool()
    pool.submit(*(a_wide_call(f"c{number}", "a") for number in range(5)))

    loaded = snapshot.load(snapshot.dump(pool.machine), make_ledger)

    kept = loaded.state.residency.memory.steady
    assert kept == pool.machine.state.residency.memory.steady
    assert len(kept["default"].recent) == 5


def test_only_policies_that_cap_grants_have_steady_counts():
    state = Pool().machine.state

    for policy, found in (("balanced", True), ("malleable", True), ("minimum", False)):
        state.pools.policies["default"] = policy_named(policy)
        assert steady_counts.is_steady(state, "default") is found
    assert not steady_counts.is_steady(state, "other")
