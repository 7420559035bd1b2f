"""predicted_replays: replays of several traces, and what ``sim --as-replay`` predicts of them.

Each trace has a Tangram of its own: a calibration, two replays of the trace, and another calibration. The prediction is
made with the first calibration alone, and compared with the mean of the two replays. What the second one would have
predicted is stored beside it (``afterwards``): where the two differ, other load on the machine came or went. How far two replays of the same trace differ says
how far any prediction can be right here, so the allowed difference follows from it:

    mean   5 % where the two means differ by at most 2.5 %, else twice their difference
    p95   10 % where the two p95 differ by at most 5 %, else twice their difference

Traces are made here from stated distributions, so that a model that is fitted to one trace fails on the others:
``--trace PATH`` adds the beginnings of trajectories of a recorded one, faster by ``--speed``. Other load on the machine counts: it is stored how busy it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.record import store
from benchmarks.stack import ROOT, Stack, tangram
from domain.version import VERSION
from simulator.compare import Scene
from simulator.prediction import ReplayPrediction, calibrated, predict
from simulator.replay_costs import cluster_of, largest_node
from simulator.trace_files import recording_lines
from simulator.workloads.replayed import Replayed
from tangram_client.aio import AsyncClient
from tangram_client.clock import SystemClock
from tangram_client.replay.player import Session
from tangram_client.replay.report import Report
from tangram_client.replay.tally import ReplayTally
from tangram_client.traces.calibration import MachineCalibration, MachineIdentity, read_calibration
from tangram_client.traces.recording import RecordedStep, Recording, read_trace
from tangram_client.traces.submissions import ReplayPlan, Source, cost_named

#: Differences of two replays below which the fixed targets hold, and the targets' multiple of the difference.
QUIET_MEAN: Final = 0.025
QUIET_P95: Final = 0.05
MULTIPLE: Final = 2.0
#: Trajectories of a recorded trace that are played, and steps of each.
RECORDED: Final = 10
RECORDED_STEPS: Final = 25


@dataclass(frozen=True)
class Case:
    """A trace and the options of its replay."""

    name: str
    trace: Path
    speed: float = 1.0


def search(chooser: Random) -> list[RecordedStep]:
    """Draw a trajectory that searches: long thinking, calls of 1 s at the median, hardly any CPU."""
    return [
        RecordedStep(
            chooser.expovariate(1 / 1.2),
            min(6.0, chooser.lognormvariate(-0.3, 0.7)),
            chooser.uniform(0.01, 0.06),
            "search",
        )
        for _ in range(14)
    ]


def bursts(chooser: Random) -> list[RecordedStep]:
    """Draw a trajectory of bursts: four to eight calls of 0.05 to 2 s at once, then a pause."""
    return [
        RecordedStep(
            chooser.uniform(2.0, 5.0) if call == 0 else chooser.uniform(0.0, 0.1),
            min(2.0, max(0.05, chooser.lognormvariate(-1.4, 0.9))),
            chooser.choice((0.05, 0.1, 0.2)),
            "tool",
        )
        for _ in range(5)
        for call in range(chooser.randint(4, 8))
    ]


def suites(chooser: Random) -> list[RecordedStep]:
    """Draw a trajectory of short edits and test suites that keep a core busy."""
    return [
        RecordedStep(chooser.expovariate(1 / 2.0), chooser.lognormvariate(0.0, 0.5), 1.0, "test")
        if chooser.random() < 0.2
        else RecordedStep(
            chooser.expovariate(1 / 1.5), chooser.lognormvariate(-2.5, 0.8), 0.1, "file"
        )
        for _ in range(16)
    ]


MADE: Final[dict[str, tuple[Callable[[Random], list[RecordedStep]], int]]] = {
    "search": (search, 16),
    "bursts": (bursts, 8),
    "suites": (suites, 4),
}


def make(name: str, folder: Path) -> Case:
    """Write a trace that is made here."""
    draw, count = MADE[name]
    recordings = [
        Recording(f"{name}-{number}", tuple(draw(Random(f"{name}/{number}"))), 0)
        for number in range(count)
    ]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(recording_lines(recordings)))
    return Case(name, path)


def part_of(trace: Path, folder: Path, speed: float) -> Case:
    """Write the first steps of trajectories that are spread over a recorded trace."""
    recordings = read_trace(trace)
    chosen = recordings[:: max(1, len(recordings) // RECORDED)][:RECORDED]
    path = folder / "recorded.jsonl"
    short = (replace(each, steps=each.steps[:RECORDED_STEPS]) for each in chosen)
    path.write_text("".join(recording_lines(short)))
    return Case("recorded", path, speed=speed)


def calibrate(stack: Stack) -> MachineCalibration:
    """Calibrate as a user does."""
    url = f"http://{stack.host}:{stack.port}"
    subprocess.run(
        [sys.executable, "-m", "tangram_client", "calibrate", "-q", "--url", url],
        env={**os.environ, "TANGRAM_HOME": str(stack.home), "TANGRAM_TOKEN": stack.token},
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    found = read_calibration(stack.home / "replay-calibration.json")
    assert found is not None  # it was just written
    return found


async def replay(stack: Stack, case: Case, run: str) -> Report:
    """Replay a trace as `tangram replay` does."""
    recordings, count = Source(case.trace).recordings()
    session = Session(
        recordings, ReplayPlan("replay", run, case.speed, cost_named("from-trace")), count,
        ReplayTally(), SystemClock(),
    )  # fmt: skip
    url = f"http://{stack.host}:{stack.port}"
    async with AsyncClient(url, token=stack.token) as client:
        report = await session.run(client)
    if not report.clean:
        raise SystemExit(f"{case.name}: {report.outcomes}, {report.failures}")
    return report


def predicted(case: Case, calibration: MachineCalibration) -> ReplayPrediction:
    """Predict the replay of a trace with one calibration."""
    recordings, count = Source(case.trace).recordings()
    cluster = cluster_of(calibration.nodes)
    plan = ReplayPlan("replay", "replay", case.speed, cost_named("from-trace"))
    workload = Replayed(list(recordings), plan, largest_node(cluster))
    costs = calibrated(calibration, datetime.now(UTC), MachineIdentity.this(), VERSION)
    return predict(Scene(workload, cluster, concurrency=count), calibration.policy, costs)[0]


def verdict(measured: tuple[float, float], predicted: float, quiet: float) -> dict[str, Any]:
    """Compare a prediction with two measurements; ``quiet``: their difference that counts as none."""
    middle = sum(measured) / 2
    difference = abs(measured[0] - measured[1]) / middle
    off, allowed = predicted / middle - 1, MULTIPLE * max(difference, quiet)
    return {
        "measured": [round(each, 4) for each in measured],
        "predicted": round(predicted, 4),
        "replays_differ": round(difference, 4),
        "off": round(off, 4),
        "allowed": round(allowed, 4),
        "holds": abs(off) <= allowed,
    }


def judged(reports: tuple[Report, Report], prediction: ReplayPrediction) -> dict[str, Any]:
    """Return the verdict of a trace."""
    first, second = (report.seconds["act"] for report in reports)
    assert first is not None  # something ended
    assert second is not None
    assert prediction.mean.value is not None  # it is calibrated
    assert prediction.p95.value is not None
    mean = verdict((first.mean, second.mean), prediction.mean.value, QUIET_MEAN)
    p95 = verdict((first.p95, second.p95), prediction.p95.value, QUIET_P95)
    return {
        "actions": reports[0].actions,
        "mean": {
            **mean,
            "interval": [round(prediction.mean.least, 4), round(prediction.mean.most, 4)],
        },
        "p95": {**p95, "interval": [round(prediction.p95.least, 4), round(prediction.p95.most, 4)]},
        "holds": mean["holds"] and p95["holds"],
    }


def processor_ticks() -> tuple[int, int]:
    """Return the ticks since boot in which processors were busy, and all of them."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def measure(case: Case) -> dict[str, Any]:
    """Measure one trace."""
    with tangram("--nodes", "1") as stack:
        calibration = calibrate(stack)
        began = processor_ticks()
        reports = tuple(asyncio.run(replay(stack, case, f"{case.name}-{n}")) for n in range(2))
        busy, every = (now - then for now, then in zip(processor_ticks(), began, strict=True))
        afterwards = predicted(case, calibrate(stack))
    assert len(reports) == 2  # for the type
    found = judged((reports[0], reports[1]), predicted(case, calibration))
    later = {"mean": afterwards.mean.value, "p95": afterwards.p95.value}
    return {
        "speed": case.speed,
        "machine_busy": round(busy / every, 3),
        **found,
        "afterwards": {name: round(value or 0.0, 4) for name, value in later.items()},
    }


def main() -> None:
    """Measure, predict, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="a recorded trace, of which a part is played")
    parser.add_argument("--speed", type=float, default=4.0, help="of the recorded trace")
    parser.add_argument("--only", choices=sorted(MADE), action="append", help="of the made ones")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = [make(name, Path(folder)) for name in options.only or MADE]
        if options.trace is not None:
            cases.append(part_of(options.trace, Path(folder), options.speed))
        for case in cases:
            results[case.name] = measure(case)
            print(case.name, json.dumps(results[case.name]), flush=True)
            if not options.dry:  # an interrupted run keeps what it has
                print("stored in", store("predicted_replays", {"result": results}), flush=True)


if __name__ == "__main__":
    main()
