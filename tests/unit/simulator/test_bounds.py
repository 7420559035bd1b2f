"""Bounds and the clairvoyant reference, by hand and against policies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.elasticity import Elasticity
from simulator.bounds import NO_WAITING, SRPT, bounds, srpt_acts
from simulator.compare import run
from simulator.gpu_sweep import GpuCell
from simulator.llm_trace import make_requests
from simulator.sweep import Cell, shortened
from simulator.traces import make_recordings
from simulator.work import ActionWork
from simulator.workloads.program import Act, Think
from tests.builders import an_action
from tests.tiers import by_tier

#: As fast as its cores are many.
LINEAR = Elasticity(table=((1000, 1.0), (4000, 1.0)))


def a_task(seconds: float, cores: int = 1) -> Act:
    """Return an action of so many core·seconds on 1 to ``cores`` cores."""
    counts = list(range(1, cores + 1))
    return Act(an_action(cost={"cpu": counts}), ActionWork(seconds, LINEAR if cores > 1 else None))


def test_the_shortest_rest_is_served_first_and_the_longer_one_resumed():
    """On one core: 4 s from 0; 1 s from 1 s, which ends at 2; the first one ends at 5."""
    acts = srpt_acts([[a_task(4.0)], [Think(1.0), a_task(1.0)]], 1.0)

    assert acts == pytest.approx([1.0, 5.0])


def test_an_action_is_no_faster_than_on_its_fastest_count():
    """Four core·seconds on at most two of eight cores."""
    assert srpt_acts([[a_task(4.0, cores=2)]], 8.0) == pytest.approx([2.0])


def test_cores_that_the_shortest_cannot_use_serve_the_next_one():
    """On four cores: 2 at 2 cores for a second, 8 at 2 cores, then at 4: 2 + 6 / 4."""
    acts = srpt_acts([[a_task(2.0, cores=2)], [a_task(8.0, cores=4)]], 4.0)

    assert acts == pytest.approx([1.0, 1.0 + 6.0 / 4.0])


def test_a_trajectory_goes_on_when_its_action_has_ended():
    acts = srpt_acts([[a_task(1.0), Think(5.0), a_task(2.0)], [Think(0.5)]], 1.0)

    assert acts == pytest.approx([1.0, 2.0])


@given(
    tasks=st.lists(
        st.tuples(st.floats(0.0, 20.0), st.floats(0.01, 9.0), st.integers(1, 4)),
        min_size=1,
        max_size=12,
    ),
    units=st.integers(1, 6),
)
@settings(max_examples=by_tier(30, 100, 1000), deadline=None)
def test_every_action_ends_and_none_before_its_fastest_duration(tasks, units):
    played: list[list[Think | Act]] = [
        [Think(at), a_task(seconds, cores)] for at, seconds, cores in tasks
    ]

    acts = srpt_acts(played, units)

    assert len(acts) == len(tasks)
    fastest = sum(seconds / cores for _, seconds, cores in tasks)
    assert sum(acts) >= fastest * (1 - 1e-6)
    work = sum(seconds for _, seconds, _ in tasks)
    assert max(acts) <= work + 1e-6


def test_no_policy_beats_the_bound_on_gpus_or_on_cores():
    gpus = GpuCell(1.0, 4, 0.5, calls=24)
    cores = Cell(1, 4, 1.0, "light")
    for scene, units in (
        (gpus.scene(make_requests(24, 0), 0), gpus.gpus),
        (cores.scene(shortened(make_recordings(4, 0), 5)), cores.cores),
    ):
        found = bounds(scene.workload, units)
        assert 0.0 < found[NO_WAITING] <= found[SRPT] * (1 + 1e-9)
        for policy in ("minimum", "malleable"):
            assert found[NO_WAITING] <= run(scene, policy).result.whole.act.mean
