"""Prediction of a replay: its mean and p95 ACT on one machine, each with an interval.

With a calibration, the replay is simulated with the costs of all its rounds together and with those of each round:
the interval spans these runs. Without one, it spans the smallest and the largest costs that are documented
(`SMALLEST`, `LARGEST`), and there is no value between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec

from simulator.compare import Progress, Scene, Timed, run
from simulator.machine import Hop, MachineCosts
from simulator.overheads import DOCKER_ENVIRONMENT_SECONDS, DOCKER_EXEC_SECONDS, Overheads
from simulator.replay_costs import costs_of, overheads_of
from simulator.result import Result
from tangram_client.traces.calibration import FRESH_SECONDS, MachineCalibration, MachineIdentity

#: The path on a loaded machine over that on an idle one (`benchmarks.predicted`, 2026-11-21: 9.2).
LOADED: Final = 9.2
#: What a process took beside its work there, and the start of a program in a shell that is kept open.
LOADED_PROCESS_SECONDS: Final = 0.037
QUIET_PROCESS_SECONDS: Final = 0.0012


class PredictedSeconds(msgspec.Struct, frozen=True):
    """A predicted value of seconds between bounds; None: only the bounds are known."""

    least: float
    value: float | None
    most: float


class ReplayPrediction(msgspec.Struct, frozen=True):
    """What a replay under one policy will report."""

    policy: str
    mean: PredictedSeconds
    p95: PredictedSeconds
    calibrated: bool
    #: Of the calibration.
    age_seconds: float | None
    warnings: tuple[str, ...]
    #: The simulation with the costs of all rounds; without a calibration, with the smallest ones.
    result: Result


@dataclass(frozen=True)
class ReplayCosts:
    """Costs with which a replay is simulated: the first are those of the value, if there is one."""

    costs: tuple[MachineCosts, ...]
    calibrated: bool
    age_seconds: float | None = None
    warnings: tuple[str, ...] = ()


def documented(cores: float) -> ReplayCosts:
    """Return the smallest and the largest documented costs on a machine with ``cores``."""
    quiet = Overheads()
    smallest = _of_overheads(quiet, cores, 1.0, QUIET_PROCESS_SECONDS)
    largest = _of_overheads(quiet, cores, LOADED, LOADED_PROCESS_SECONDS)
    largest = replace(
        largest,
        start=Hop(largest.start.seconds + DOCKER_EXEC_SECONDS),
        environment=Hop(DOCKER_ENVIRONMENT_SECONDS),
    )
    said = (
        "this machine is not calibrated (./tangram sim calibrate): an interval of documented costs"
    )
    return ReplayCosts((smallest, largest), calibrated=False, warnings=(said,))


def calibrated(
    calibration: MachineCalibration, now: datetime, machine: MachineIdentity, version: str
) -> ReplayCosts:
    """Return the costs of a calibration: of all rounds together, and of each.

    ``machine`` and ``version`` are those of the simulator, where it is known; other ones become warnings.
    """
    age = calibration.age_seconds(now)
    rounds = calibration.rounds
    costs = [costs_of(calibration)]
    if len(rounds) > 1:
        costs += [costs_of(calibration, number) for number in rounds]
    warnings = warnings_of(calibration, age, machine, version)
    return ReplayCosts(tuple(costs), True, age, warnings)


def warnings_of(
    calibration: MachineCalibration, age: float, machine: MachineIdentity, version: str
) -> tuple[str, ...]:
    """Return what makes a calibration of ``age`` seconds doubtful on ``machine``, as sentences."""
    found = []
    if age > FRESH_SECONDS:
        found.append(f"the calibration is {age_text(age)} old: calibrate once more")
    if calibration.machine != machine:
        measured = calibration.machine
        found.append(
            f"the calibration is of another machine: {measured.host}, {measured.cores} × {measured.cpu}"
        )
    if version and calibration.version and calibration.version != version:
        found.append(f"the calibration is of version {calibration.version}, this is {version}")
    if len(calibration.rounds) < 2:
        found.append("the calibration has one round: there is no interval")
    return tuple(found)


def age_text(seconds: float) -> str:
    """Return an age for people: minutes, hours or days."""
    for size, name in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(0.0, seconds):.0f} seconds"


def predict(
    scene: Scene, policy: str, costs: ReplayCosts, progress: Progress | None = None
) -> tuple[ReplayPrediction, Timed]:
    """Simulate the replay of ``scene`` under one policy with each of the costs."""
    timed = [
        run(replace(scene, machine=each, overheads=overheads_of(each)), policy, progress)
        for each in costs.costs
    ]
    acts = [each.result.whole.act for each in timed]
    means, p95s = [act.mean for act in acts], [act.p95 for act in acts]
    prediction = ReplayPrediction(
        policy, _interval(means, costs), _interval(p95s, costs), costs.calibrated,
        costs.age_seconds, costs.warnings, timed[0].result,
    )  # fmt: skip
    return prediction, timed[0]


def _interval(values: Sequence[float], costs: ReplayCosts) -> PredictedSeconds:
    return PredictedSeconds(min(values), values[0] if costs.calibrated else None, max(values))


def _of_overheads(
    overheads: Overheads, cores: float, ratio: float, process_seconds: float
) -> MachineCosts:
    """Return the hops ``ratio`` times as long, all of it waiting."""
    return MachineCosts(
        cores=cores,
        submit=Hop(ratio * overheads.submit_seconds),
        start=Hop(ratio * overheads.start_seconds),
        environment=Hop(ratio * overheads.environment_seconds),
        process=Hop(process_seconds),
        report=Hop(ratio * overheads.report_seconds),
        answer=Hop(ratio * overheads.answer_seconds),
    )
