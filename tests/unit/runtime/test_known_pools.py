"""A rollout worker keeps the pools that have had a backend: the core forgets the others without a decision."""

from __future__ import annotations

from domain.backends import BackendPool
from domain.decisions import SetBackends
from scheduler.runtime.rollouts.assignments import Assignments
from tests.unit.core.rollout_scenario import a_backend


async def test_names_of_pools_do_not_fill_the_memory_of_a_worker():
    assignments = Assignments("w1", 1)
    assignments.take(SetBackends("policy", BackendPool((a_backend(),), next_number=2)))
    for number in range(3):
        assignments.take(SetBackends(f"pool{number}", BackendPool()))

    assert assignments.pools.keys() == {"policy"}
    assignments.take(SetBackends("policy", BackendPool(next_number=2, weights_version=2)))
    assert assignments.pools["policy"].weights_version == 2
