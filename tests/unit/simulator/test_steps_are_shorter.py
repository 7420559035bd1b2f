"""Policy `makespan` shortens the step of a crowded cluster, within bounds that hold for any scheduler."""

from __future__ import annotations

import pytest

from simulator.clairvoyant import least_step_seconds, rests, simulate
from simulator.cluster import Cluster
from simulator.compare import Scene, run
from simulator.result import Result
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.program import Think
from simulator.workloads.rewards import Rewards
from tangram_client.traces.recording import RecordedStep, Recording
from tests.unit.simulator.scripts import act, script

CORES = 4


def a_recording(name: str, interactions: int) -> Recording:
    return Recording(name, (RecordedStep(1.0, 3.0, 1.0, "bash"),) * interactions, 0)


#: One trajectory is ten times as long as the others.
RECORDINGS = [a_recording("long", 80), *(a_recording(f"short{n}", 8) for n in range(47))]


def a_scene(length_error: float | None = None) -> Scene:
    rewards = Rewards(median_seconds=3.0, sigma=0.1, malleable=True)
    return Scene(
        AiCoding(RECORDINGS, len(RECORDINGS), rewards=rewards, length_error=length_error),
        Cluster(1, CORES),
    )


def step_and_mean(result: Result) -> tuple[float, float]:
    (step,) = result.step_seconds
    return step, result.whole.act.mean


def test_a_step_with_declared_lengths_is_a_tenth_shorter_at_a_bounded_loss_in_the_mean():
    step, mean = step_and_mean(run(a_scene(), "malleable").result)
    shorter, longer = step_and_mean(run(a_scene(0.0), "makespan").result)

    assert shorter <= 0.9 * step
    assert longer <= 1.05 * mean


def test_known_times_bound_what_is_possible_and_no_step_is_shorter_than_the_least():
    scene = a_scene(0.0)
    (least,) = least_step_seconds(scene.workload, CORES)
    (known,) = simulate(scene).step_seconds
    step, _ = step_and_mean(run(scene, "makespan").result)

    assert least <= known <= 1.05 * step
    assert least <= step


def test_the_least_step_is_the_longest_trajectory_or_all_work_on_all_cores():
    waits = script([Think(1.0), act("a", 3.0), Think(2.0), act("b", 2.0)], [act("c", 4.0)])

    assert least_step_seconds(waits, 2) == [8.0]
    assert least_step_seconds(waits, 1) == [9.0]
    assert dict(rests(waits)) == {"a": 7.0, "b": 2.0, "c": 4.0}


def test_more_cores_shorten_the_least_step_of_elastic_work():
    wide = script([act("a", 8.0, amdahl=0.5, cost={"cpu": 4}, key="cpu")])

    # 4 · E(4) = 1.6
    assert least_step_seconds(wide, 8) == [pytest.approx(5.0)]
