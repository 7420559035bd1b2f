"""``--as-replay``: from the options of `tangram replay` to a scene, and its costs.

The options have the names, defaults and meanings of `tangram replay`; what is submitted comes from the module that it
submits with, too (`tangram_client.traces.submissions`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from domain.errors import InvalidRequest
from domain.version import VERSION
from managers.common.affinity import usable_cores
from simulator.cluster import Cluster
from simulator.compare import BASELINES, Scene
from simulator.prediction import ReplayCosts, calibrated, documented
from simulator.replay_costs import cluster_of, largest_node
from simulator.workloads.replayed import Replayed
from tangram_client.traces.calibration import (
    MachineCalibration,
    MachineIdentity,
    MeasuredNode,
    calibration_path,
    read_calibration,
)
from tangram_client.traces.submissions import FROM_TRACE, ReplayPlan, Source, cost_named

#: Options of the verbs that a replay has as well, or that say how the result is shown.
SHARED: Final = frozenset(
    {"trace", "nodes", "cores", "seed", "as_json", "quiet", "policy", "policies", "journal"}
)
#: Options that only a replay has.
OWN: Final = (
    "generated", "trajectories", "concurrency", "speed", "task", "cost_cpu", "reserve_memory",
    "calibration",
)  # fmt: skip

_OPTIONS: Final = (
    click.option("--as-replay", is_flag=True,
                 help="Play exactly what `tangram replay TRACE` submits, on this machine."),
    click.option("--generate", "generated", is_flag=True, help="As replay: make trajectories up."),
    click.option("--trajectories", type=click.IntRange(1), metavar="N",
                 help="As replay: how many; resampled when the trace has fewer [all of it; generated: 8]."),
    click.option("--concurrency", type=click.IntRange(1), metavar="N",
                 help="As replay: at once [all]."),
    click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
                 help="As replay: think times and durations are divided by it."),
    click.option("--task", default="replay", show_default=True, help="As replay: the task."),
    click.option("--cost-cpu", default=FROM_TRACE, show_default=True,
                 help="As replay: cores of each action: as recorded (light below half a core), or a number."),
    click.option("--reserve-memory", is_flag=True,
                 help="As replay: reserve the recorded peak on the node."),
    click.option("--calibration", type=click.Path(path_type=Path),
                 help="As replay: costs of a machine [replay-calibration.json in TANGRAM_HOME]."),
)  # fmt: skip


def with_replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a replay."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class ReplayScene:
    """A replay that is ready to be predicted."""

    scene: Scene
    costs: ReplayCosts
    #: Of the calibrated pool; empty without a calibration.
    policy: str


def build_replay(given: set[str], **options: Any) -> ReplayScene:
    """Return the replay that the options ask for.

    ``given``: names of the options that stand on the command line. Raises InvalidRequest or TraceError.
    """
    for name in sorted(given - SHARED - set(OWN) - {"as_replay"}):
        raise InvalidRequest(f"--{name.replace('_', '-')} is no option of --as-replay")
    trace: Path | None = options["trace"]
    if options["generated"] == (trace is not None):
        raise InvalidRequest("--as-replay: give a TRACE or --generate")
    if not math.isfinite(options["speed"]):
        raise InvalidRequest(f"--speed must be a finite number, not {options['speed']}")
    calibration = _calibration(options["calibration"])
    cluster = _cluster(calibration, given, options)
    source = Source(trace, options["seed"], options["trajectories"])
    recordings, count = source.recordings()
    try:
        cost = cost_named(options["cost_cpu"])
    except ValueError as error:
        raise InvalidRequest(f"--cost-cpu: {error}") from None
    plan = ReplayPlan(
        options["task"], options["task"], options["speed"], cost, options["reserve_memory"]
    )
    workload = Replayed(list(recordings), plan, largest_node(cluster))
    assumed: tuple[str, ...] = ()
    if workload.refused:
        assumed = (f"{workload.refused} actions fit no node: left out, as the server refuses them",)
    scene = Scene(
        workload, cluster, seed=options["seed"], assumed=assumed,
        concurrency=options["concurrency"] or count,
    )  # fmt: skip
    machine = MachineIdentity.this()
    if calibration is None:
        return ReplayScene(scene, documented(float(machine.cores)), "")
    costs = calibrated(calibration, datetime.now(UTC), machine, VERSION)
    return ReplayScene(scene, costs, calibration.policy)


def check_replayed_policies(policies: Sequence[str]) -> None:
    """Raise InvalidRequest for a baseline: no replay runs on one."""
    for policy in policies:
        if policy in BASELINES:
            raise InvalidRequest(f"--as-replay: {policy} is a baseline, which no replay runs on")


def _calibration(path: Path | None) -> MachineCalibration | None:
    found = read_calibration(path or calibration_path(os.environ))
    if found is None and path is not None:
        raise InvalidRequest(f"{path}: there is no such file")
    return found


def _cluster(
    calibration: MachineCalibration | None, given: set[str], options: dict[str, Any]
) -> Cluster:
    """Return the nodes that are asked for, else those of the calibration, else one of this machine."""
    if calibration is not None and not given & {"nodes", "cores"}:
        return cluster_of(calibration.nodes)
    nodes = options["nodes"] if "nodes" in given else 1
    cores = options["cores"] if "cores" in given else len(usable_cores())
    for name, value in (("nodes", nodes), ("cores", cores)):
        if value < 1:
            raise InvalidRequest(f"{name} must be at least 1, not {value}")
    return cluster_of([MeasuredNode(f"n{number:03d}", cores, 0) for number in range(nodes)])
