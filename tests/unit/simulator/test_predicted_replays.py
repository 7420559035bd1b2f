"""A simulated replay submits what the real one does, and a machine without costs adds nothing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from domain.decisions import Decision
from domain.errors import InvalidRequest
from domain.events import ActionSubmitted, Event
from domain.resources import MILLI
from scheduler.core.machine import Machine
from simulator.agenda import Agenda
from simulator.cli import verbs
from simulator.cluster import Cluster
from simulator.compare import Scene
from simulator.engine import ClusterSimulation
from simulator.machine import Hop, MachineCosts
from simulator.overheads import NONE
from simulator.prediction import calibrated, documented, predict, warnings_of
from simulator.processors import Processors
from simulator.replay_costs import cluster_of, costs_of
from simulator.workloads.replayed import Replayed
from tangram_client.clock import Clock
from tangram_client.replay.player import Session
from tangram_client.replay.tally import ReplayTally
from tangram_client.traces.calibration import (
    PROBES,
    MachineCalibration,
    MachineIdentity,
    MeasuredNode,
    ProbedAction,
    ProbeRun,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tangram_client.traces.recording import Recording, TraceError
from tangram_client.traces.submissions import ReplayPlan, Source, cost_named

FREE = MachineCosts(cores=1e6)


@pytest.mark.slow
@pytest.mark.parametrize(("concurrency", "speed"), [(8, 1.0), (3, 2.5), (1, 10.0)])
async def test_simulation_submits_the_actions_of_the_replay_at_the_same_times(
    concurrency: int, speed: float
) -> None:
    recordings, _ = Source(None, seed=4, trajectories=8).recordings()
    assert isinstance(recordings, list)
    short = [replace(each, steps=each.steps[:9]) for each in recordings]
    plan = ReplayPlan("replay", "run", speed, cost_named("from-trace"), reserve_memory=True)

    real = await _replayed(short, plan, concurrency)
    simulated = _simulated(short, plan, concurrency)

    assert [each[1:] for each in real] == [each[1:] for each in simulated]
    assert [each[0] for each in real] == pytest.approx([each[0] for each in simulated], abs=1e-6)
    assert len(real) == 8 * 9


class SleepersClock:
    """Virtual time for several sleepers: it moves on when all of them sleep."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def asleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._now + seconds, id(woken), woken))
        await woken

    async def move_on(self) -> None:
        while True:
            for _ in range(10):  # what is awake goes first
                await asyncio.sleep(0)
            if self._sleepers:
                self._now, _, woken = heappop(self._sleepers)
                woken.set_result(None)


class FreeTangram:
    """A client of a Tangram that takes nothing: actions run at once, for as long as their commands ask."""

    def __init__(self, clock: SleepersClock) -> None:
        self._clock = clock
        self.submitted: list[tuple[object, ...]] = []

    async def status(self) -> dict[str, object]:
        return {}

    async def finish_trajectory(self, name: str) -> None:
        """Forget nothing: there is nothing to clean up."""

    async def run(self, payload: Any) -> SimpleNamespace:
        self.submitted.append((self._clock.now(), *_said(payload)))
        command = payload["exec"]["command"]
        seconds = float(command[1]) if command[0] == "sleep" else int(command[-3]) / 100
        await self._clock.asleep(seconds)
        return SimpleNamespace(outcome="completed", completed=True, exit_code=0, timing=None)


async def _replayed(
    recordings: list[Recording], plan: ReplayPlan, concurrency: int
) -> list[tuple[object, ...]]:
    """Replay against a server without costs: what was submitted, and when."""
    clock = SleepersClock()
    client: Any = FreeTangram(clock)
    moving = asyncio.create_task(clock.move_on())
    try:
        session = Session(recordings, plan, concurrency, ReplayTally(), cast("Clock", clock))
        assert (await session.run(client)).clean
    finally:
        moving.cancel()
    return sorted(client.submitted, key=_by_time)


def _said(payload: Any) -> tuple[object, ...]:
    return (
        payload["trajectory"], payload["step"], payload["family"], tuple(payload["exec"]["command"]),
        round(payload["cost"]["cpu"] * MILLI), payload["environment"]["memory_bytes"],
        payload["timeout_seconds"], payload["task"],
    )  # fmt: skip


def _simulated(
    recordings: list[Recording], plan: ReplayPlan, concurrency: int
) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []

    def watch(core: Machine, events: list[Event], decisions: list[Decision]) -> None:
        for event in events:
            if isinstance(event, ActionSubmitted):
                action = event.action
                assert action.exec is not None
                assert action.environment is not None
                found.append(
                    (
                        event.accepted_at, action.trajectory, action.step, action.family,
                        action.exec.command, action.cost["cpu"][0],
                        action.environment.memory_bytes, action.timeout_seconds, action.task,
                    )
                )  # fmt: skip

    ClusterSimulation(
        Replayed(recordings, plan, 1000.0), Cluster(1, 1000), overheads=NONE, watch=watch,
        concurrency=concurrency, machine=FREE,
    ).run()  # fmt: skip
    return sorted(found, key=_by_time)


def _by_time(row: tuple[object, ...]) -> tuple[object, ...]:
    # Times are equal to a rounding error, names and numbers exactly.
    return (row[1], row[2])


# ------------------------------------------------------------------- shared processors


def _ends(cores: float, *jobs: dict[str, float]) -> list[float]:
    """Begin all jobs at 0 and return when each ends."""
    agenda = Agenda()
    processors, ends = Processors(agenda, cores), [-1.0] * len(jobs)

    def ended(number: int) -> None:
        ends[number] = agenda.now

    for number, job in enumerate(jobs):
        options = {name: value for name, value in job.items() if name != "cpu"}
        processors.begin(job["cpu"], ended, number, **options)
    while agenda.advance():
        pass
    return ends


def test_two_jobs_on_one_core_take_twice_as_long():
    assert _ends(1.0, {"cpu": 1.0}, {"cpu": 1.0}) == pytest.approx([2.0, 2.0])


def test_cores_are_divided_by_weight_and_what_is_left_goes_to_the_others():
    # 3 : 1 until the first ends at 4/3 s; then the other has the core alone.
    assert _ends(1.0, {"cpu": 1.0, "weight": 3.0}, {"cpu": 1.0}) == pytest.approx([4 / 3, 2.0])


def test_a_paced_job_that_gets_its_share_ends_on_time():
    paced = {"cpu": 0.5, "paced_seconds": 2.0, "weight": 1.0}

    assert _ends(1.0, paced, {"cpu": 1.5, "weight": 1.0})[0] == pytest.approx(2.0)


def test_a_paced_job_that_falls_behind_catches_up_at_full_speed():
    # Two full jobs leave it a third of the core for 1.5 s, where a half is due: 0.25 behind, caught up by 2.0 s.
    full = {"cpu": 0.5}

    assert _ends(1.0, {"cpu": 2.0, "paced_seconds": 4.0}, full, full) == pytest.approx(
        [4.0, 1.5, 1.5]
    )


def test_a_paced_job_ends_late_when_the_cores_are_taken():
    assert _ends(1.0, {"cpu": 1.0, "paced_seconds": 1.0}, {"cpu": 1.0}) == pytest.approx([2.0, 2.0])


@given(
    st.lists(
        st.tuples(st.floats(0.001, 2.0), st.floats(0.1, 4.0), st.floats(0.1, 8.0)),
        min_size=1,
        max_size=8,
    ),
    st.floats(0.5, 4.0),
)
def test_all_cpu_is_done_and_no_more_than_the_cores_give(
    jobs: list[tuple[float, float, float]], cores: float
) -> None:
    ends = _ends(
        cores, *({"cpu": cpu, "most": most, "weight": weight} for cpu, most, weight in jobs)
    )

    assert min(ends) > 0
    assert all(end >= cpu / most - 1e-6 for end, (cpu, most, _) in zip(ends, jobs, strict=True))
    assert max(ends) >= sum(cpu for cpu, _, _ in jobs) / cores - 1e-6


# ------------------------------------------------------------------------ calibrations

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
HERE = MachineIdentity("host", "a processor", 2)
TRUE = MachineCosts(
    cores=2.0, submit=Hop(0.0, 0.001), start=Hop(0.002, 0.006), environment=Hop(0.02, 0.01),
    process=Hop(0.002, 0.004), report=Hop(0.0, 0.003), answer=Hop(0.001, 0.004),
)  # fmt: skip


def _measured(costs: MachineCosts, rounds: int = 1) -> MachineCalibration:
    """Measure a simulated machine: the calibration that it would store."""
    runs = [
        _probe_run(costs, number, name)
        for number in range(rounds)
        for name in ("alone", "crowd", "busy")
    ]
    return MachineCalibration(
        NOW.isoformat(), HERE, "1.0", "minimum", (MeasuredNode("n1", 2.0, 0),), tuple(runs)
    )


def _probe_run(costs: MachineCosts, number: int, name: str) -> ProbeRun:
    probe = next(each for each in PROBES if each.name == name)
    plan = ReplayPlan("calibration", "p", 1.0, cost_named("from-trace"))
    workload = Replayed(probe.recordings, plan, 2.0)
    simulation = ClusterSimulation(
        workload, cluster_of([MeasuredNode("n1", 2.0, 0)]), concurrency=probe.concurrency,
        machine=costs, overheads=replace(NONE, pass_seconds=0.001),
    )  # fmt: skip
    rows = simulation.run().rows
    by_trajectory: dict[int, int] = {}
    actions = []
    for queue, overhead, execution, trajectory in zip(
        rows.queue, rows.overhead, rows.execution, rows.trajectory, strict=True
    ):
        step = by_trajectory.setdefault(trajectory, 0)
        by_trajectory[trajectory] += 1
        recorded = probe.recordings[trajectory].steps[step]
        act = queue + overhead + execution
        actions.append(
            ProbedAction(
                step == 0, act + costs.answer.seconds + 0.001, queue, overhead, execution,
                recorded.duration_seconds, plan.cost(recorded.cpu_cores),
            )
        )  # fmt: skip
    return ProbeRun(name, number, simulation.trainers.ended_at, tuple(actions))


@pytest.mark.slow
def test_costs_that_are_found_by_probes_predict_the_machine_that_was_measured():
    calibration = _measured(TRUE)
    generated, _ = Source(None, seed=2, trajectories=6).recordings()
    recordings = [replace(each, steps=each.steps[:10]) for each in generated]
    plan = ReplayPlan("replay", "run", 10.0, cost_named("from-trace"))
    cluster = cluster_of(calibration.nodes)
    scene = Scene(Replayed(recordings, plan, 2.0), cluster, concurrency=6)

    found, _ = predict(scene, "minimum", calibrated(calibration, NOW, HERE, "1.0"))
    true = ClusterSimulation(
        scene.workload, cluster, concurrency=6, machine=TRUE,
        overheads=replace(NONE, pass_seconds=0.001),
    )  # fmt: skip
    act = np.array(true.run().rows.queue) + true.tally.rows.overhead + true.tally.rows.execution

    assert found.calibrated
    assert found.mean.value == pytest.approx(act.mean(), rel=0.03)
    assert found.p95.value == pytest.approx(np.quantile(act, 0.95), rel=0.03)
    assert found.mean.least <= (found.mean.value or 0.0) <= found.mean.most


@pytest.mark.slow
def test_other_programs_on_the_machine_are_found():
    quiet, busy = (costs_of(_measured(replace(TRUE, others=others))) for others in (0.0, 1.5))

    assert quiet.others < 0.3
    assert busy.others == pytest.approx(1.5, abs=0.4)


def test_calibration_is_stored_and_read_again(tmp_path: Path):
    calibration = _measured(TRUE)
    path = calibration_path({"TANGRAM_HOME": str(tmp_path / "home")})

    assert read_calibration(path) is None
    write_calibration(calibration, path)
    assert read_calibration(path) == calibration


@pytest.mark.parametrize("content", ["nonsense", "[]", '{"format": 1}', '{"format": 99}'])
def test_broken_calibration_is_named(tmp_path: Path, content: str):
    path = tmp_path / "replay-calibration.json"
    path.write_text(content)

    with pytest.raises(TraceError, match=r"replay-calibration.json: .*; calibrate once more"):
        read_calibration(path)


def test_age_machine_and_version_of_a_calibration_become_warnings():
    calibration = _measured(TRUE)

    assert calibration.age_seconds(NOW + timedelta(hours=1)) == 3600.0
    assert warnings_of(calibration, 3600.0, HERE, "1.0") == (
        "the calibration has one round: there is no interval",
    )
    assert warnings_of(calibration, 3 * 86_400.0, replace(HERE, host="elsewhere"), "1.1")[:3] == (
        "the calibration is 3 days old: calibrate once more",
        "the calibration is of another machine: host, 2 × a processor",
        "the calibration is of version 1.0, this is 1.1",
    )


# -------------------------------------------------------------------- the command line


def sim(home: Path, *arguments: str) -> Result:
    return CliRunner(env={"TANGRAM_HOME": str(home)}).invoke(verbs, arguments)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    step = {"think_s": 0.5, "dur_s": 0.3, "cpu_pct_mean": 10.0, "family": "tool"}
    path.write_text(json.dumps({"id": "t", "steps": [step, step]}) + "\n")
    return path


@pytest.mark.slow
def test_without_a_calibration_there_is_an_interval_and_it_is_said(trace: Path, tmp_path: Path):
    done = sim(tmp_path, "run", str(trace), "--as-replay", "--cores", "2", "--json", "-q")

    (found,) = json.loads(done.stdout)
    assert "this machine is not calibrated" in done.stderr
    assert (found["calibrated"], found["mean"]["value"], found["age_seconds"]) == (
        False,
        None,
        None,
    )
    assert 0.3 < found["mean"]["least"] < 0.35 < found["mean"]["most"] < 0.8
    assert found["result"]["whole"]["actions"] == 2


@pytest.mark.slow
def test_age_of_the_calibration_is_shown(trace: Path, tmp_path: Path):
    write_calibration(_measured(TRUE, rounds=2), tmp_path / "replay-calibration.json")

    done = sim(tmp_path, "run", str(trace), "--as-replay", "-q")

    assert done.exit_code == 0
    assert "tangram sim: calibrated" in done.stderr
    assert "ACT of the replay, predicted seconds" in done.stdout
    assert "minimum" in done.stdout  # the policy of the calibrated pool


def test_a_replay_has_neither_rewards_nor_another_batch(trace: Path, tmp_path: Path):
    done = sim(tmp_path, "run", str(trace), "--as-replay", "--trajectories", "3", "--json", "-q")

    (found,) = json.loads(done.stdout)
    assert found["result"]["whole"]["actions"] == 6
    assert found["result"]["rewards"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--as-replay",), "--as-replay: give a TRACE or --generate"),
        (("--as-replay", "--generate", "--batch", "3"), "--batch is no option of --as-replay"),
        (
            ("--as-replay", "--generate", "--cost-cpu", "many"),
            "--cost-cpu: give from-trace or a number",
        ),
        (
            ("--as-replay", "--generate", "--cost-cpu", "1.5"),
            "1.5 cores: an action gets whole cores",
        ),
        (("--as-replay", "--generate", "--policy", "kubernetes"), "kubernetes is a baseline"),
        (("--as-replay", "--generate", "--calibration", "/none"), "/none: there is no such file"),
        (("--as-replay", "--generate", "--speed", "nan"), "--speed must be a finite number"),
        (("--speed", "2"), "--speed is an option of --as-replay"),
    ],
)
def test_wrong_options_of_a_replay_are_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path
):
    done = sim(tmp_path, "run", *arguments, "--cores", "4", "-q")

    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_smallest_documented_costs_are_below_the_largest():
    smallest, largest = documented(2.0).costs

    for name in ("submit", "start", "environment", "process", "report", "answer"):
        assert getattr(smallest, name).seconds < getattr(largest, name).seconds


def test_a_node_without_cores_is_refused():
    with pytest.raises(InvalidRequest, match="names no node with a core"):
        cluster_of([MeasuredNode("n1", 0.0, 0)])
