"""MOPD: bursts of calls of teacher models that share GPUs, through the core's own books."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.apis import CallSpec
from domain.decisions import Grant
from domain.errors import InvalidRequest
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, run
from simulator.engine import ClusterSimulation
from simulator.llm_trace import LlmRequest, make_requests
from simulator.overheads import NONE
from simulator.result import encode
from simulator.work import ActionWork
from simulator.workloads.mopd import BURSTS, ELASTICITY, Mopd, bunched, teachers
from simulator.workloads.program import Act, SimulatedTrajectory, Think
from tests.builders import an_action
from tests.unit.simulator.scripts import checked, script

WORKLOAD = Mopd(make_requests(50, 0), batch=24, rl_steps=2, group_size=4, domains=3)


def gpus(count: int, services: int = 3) -> Cluster:
    return Cluster(-(-count // 8), 1, GIB, gpus=count, models=teachers(services))


def call(name: str, number: int, seconds: float) -> Act:
    action = an_action(
        name, kind="call", cost={"gpu": [2]}, key="gpu", call=CallSpec(f"service:teacher-{number}")
    )
    return Act(action, ActionWork(seconds, None, key="gpu"))


def test_a_restore_is_overhead_and_what_is_cached_costs_none():
    """64e9 bytes on two GPUs at 50e9 a second, and 0.1 s to wake."""
    workload = script([call("first", 0, 3.0), call("again", 0, 2.0), call("other", 1, 1.0)])

    ClusterSimulation(workload, gpus(2), "paper", overheads=NONE, watch=checked).run()

    parts: dict[str, Any] = {
        name: (finish.timing.overhead_seconds, finish.timing.execution_seconds)
        for name, finish in workload.answers.items()
    }
    assert parts == {
        "first": (pytest.approx(0.74), pytest.approx(3.0)),
        "again": (pytest.approx(0.0), pytest.approx(2.0)),
        "other": (pytest.approx(0.74), pytest.approx(1.0)),
    }


def test_the_core_records_how_long_restores_take():
    simulation = ClusterSimulation(
        script([call("one", 0, 3.0)]), gpus(2), "minimum", overheads=NONE
    )

    simulation.run()

    assert simulation.machine.state.residency.memory.times[
        "teacher-0"
    ].restore_seconds == pytest.approx(0.74)


def test_every_trajectory_is_scored_once_and_no_gpu_works_for_two():
    granted: Counter[str] = Counter()

    def watch(machine, events, decisions):
        checked(machine, events, decisions)
        granted.update(each.action_id for each in decisions if isinstance(each, Grant))

    simulation = ClusterSimulation(WORKLOAD, gpus(8), watch=watch)
    tally = simulation.run()

    assert tally.outcomes == {"completed": WORKLOAD.actions}
    assert set(granted.values()) == {1}


def ends_of(workload: Mopd) -> list[tuple[float, str]]:
    """Return when each trajectory of the first step is scored, and by which teacher."""
    found = []
    for rollout in next(iter(workload.steps())):
        thought, scored = rollout.program()
        assert isinstance(thought, Think)
        assert isinstance(scored, Act)
        assert scored.action.call is not None
        found.append((thought.seconds, scored.action.call.target))
    return found


def test_trajectories_end_as_the_trace_has_it_within_the_time_of_a_rollout():
    moments = sorted(at for at, _ in ends_of(WORKLOAD))
    calm = sorted(at for at, _ in ends_of(replace(WORKLOAD, rollout_seconds=60.0)))

    assert moments[0] == 0.0
    assert moments[-1] == pytest.approx(600.0)
    assert calm == pytest.approx([at / 10 for at in moments])


def test_bursts_of_the_trace_stay_bursts():
    """Ten requests at one moment, a long pause, ten more."""
    requests = [LlmRequest(at, 10, 10) for at in (0.0,) * 10 + (30.0,) * 10]
    moments = sorted(at for at, _ in ends_of(Mopd(requests, batch=20, domains=2, seed=3)))

    pauses = [later - before for before, later in pairwise(moments)]
    assert sum(pause > 1 for pause in pauses) <= 2


def test_a_group_belongs_to_one_teacher():
    targets = [target for _, target in ends_of(WORKLOAD)]

    for first in range(0, WORKLOAD.batch, WORKLOAD.group_size):
        assert len(set(targets[first : first + WORKLOAD.group_size])) == 1


def test_equal_seeds_give_equal_bytes_and_other_seeds_others():
    def result(seed: int) -> bytes:
        scene = Scene(replace(WORKLOAD, seed=seed), gpus(4))
        return encode([run(scene, "paper").result])

    assert result(0) == result(0)
    assert result(0) != result(1)


def test_more_gpus_halve_nothing_but_the_time_of_a_call():
    model = teachers(1)["teacher-0"]

    assert ELASTICITY.duration_seconds(8.0, 8000) < ELASTICITY.duration_seconds(8.0, 4000) < 8.0
    assert model.restore_seconds(8) < model.restore_seconds(4) < model.restore_seconds(2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cluster(1, 1, GIB, gpus=9), "gpus of 1 nodes are 0 to 8, not 9"),
        (lambda: Mopd([]), "there must be two"),
        (lambda: Mopd(make_requests(5, 0), domains=0), "domains must be at least 1"),
    ],
    ids=["gpus", "requests", "domains"],
)
def test_impossible_parameters_are_refused(make, said):
    with pytest.raises(InvalidRequest, match=said):
        make()


@given(
    st.lists(st.floats(0.0, 600.0), min_size=1, max_size=30), st.floats(1.0, 1000.0),
)  # fmt: skip
def test_bursts_keep_the_order_of_arrivals_and_the_mean_rate_of_each_period(moments, peak_ratio):
    ordered = sorted(moments)
    period = 600.0 / BURSTS

    bunched_ones = [bunched(at, 600.0, peak_ratio) for at in ordered]

    assert bunched_ones == sorted(bunched_ones)
    for at, then in zip(ordered, bunched_ones, strict=True):
        begin = at // period * period
        assert begin <= then <= begin + (at - begin) / peak_ratio + 1e-6


def test_without_a_peak_calls_arrive_as_they_did():
    assert [bunched(at, 600.0, 1.0) for at in (0.1, 59.999, 600.0)] == [0.1, 59.999, 600.0]


def test_calls_arrive_within_the_first_part_of_each_period():
    even = Mopd(make_requests(200, 0), batch=200, rollout_seconds=100.0)
    bursty = replace(even, peak_ratio=4.0)

    moments = [_first_think(each) for each in next(bursty.steps())]

    assert max(at % 10.0 for at in moments if at < 99.0) <= 2.5 + 1e-9
    assert sorted(moments) != sorted(_first_think(each) for each in next(even.steps()))


def test_a_peak_below_the_mean_is_refused():
    with pytest.raises(InvalidRequest, match=r"peak_ratio must be at least 1, not 0\.5"):
        Mopd(make_requests(2, 0), peak_ratio=0.5)


def _first_think(trajectory: SimulatedTrajectory) -> float:
    move = next(trajectory.program())
    assert isinstance(move, Think)
    return move.seconds
