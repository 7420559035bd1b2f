"""From the calibration of a machine to its costs: the probes are played in virtual time until they take what was measured.

Means of probe ``alone`` are the hops on this machine with its other load. Two numbers are not seen directly and are
found by playing the probes: the CPU that Tangram takes for an action (probe ``crowd`` has to take its measured time)
and the number of other programs that never rest (the commands of ``busy`` have to take theirs). A hop whose CPU would
take longer than the hop keeps only what fits; the rest is spent beside the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from domain.errors import InvalidRequest
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.cpu.shared_cores import LIGHT_MILLI, yielding_capacity
from simulator.agenda import Agenda
from simulator.cluster import GIB, Cluster
from simulator.engine import ClusterSimulation
from simulator.machine import COMMAND_WEIGHT, LIGHT_WEIGHT, PARTS_WEIGHT, Hop, MachineCosts
from simulator.overheads import Overheads
from simulator.processors import Processors
from simulator.workloads.replayed import Replayed
from tangram_client.traces.calibration import (
    PROBES,
    Calibration,
    MeasuredNode,
    Probe,
    ProbedAction,
)
from tangram_client.traces.submissions import ReplayPlan, cost_named

#: A pass of the loop, as in `simulator.overheads`.
PASS_SECONDS: Final = 0.001
#: Share of the overhead before the command; the rest is the report of its end (`simulator.overheads`).
_BEFORE: Final = 0.6
#: Bounds of what is searched, and halvings of them.
_MOST_CPU_SECONDS: Final = 1.0
_MOST_OTHERS: Final = 8.0
_HALVINGS: Final = 12
_ROUNDS: Final = 2
MEMORY_BYTES: Final = 1024 * GIB


@dataclass(frozen=True)
class PathMeans:
    """Means of an action's path with few others, in seconds."""

    submit: float
    overhead: float
    environment: float
    process: float
    answer: float

    @classmethod
    def of(cls, actions: Sequence[ProbedAction]) -> PathMeans:
        """Return the means of the probe ``alone``."""
        later = [each for each in actions if not each.first] or list(actions)
        first = [each for each in actions if each.first] or list(actions)
        overhead = fmean(each.overhead_seconds for each in later)
        return cls(
            submit=fmean(each.queue_seconds for each in actions),
            overhead=overhead,
            environment=max(0.0, fmean(each.overhead_seconds for each in first) - overhead),
            process=max(0.0, fmean(each.execution_seconds - each.asked_seconds for each in later)),
            answer=max(0.0, fmean(each.round_trip_seconds - each.act_seconds for each in actions)),
        )


def costs_of(calibration: Calibration, number: int | None = None) -> MachineCosts:
    """Return the costs of one round of a calibration, or of all together."""
    alone = [each for run in calibration.of("alone", number) for each in run.actions]
    means, cores = PathMeans.of(alone), float(calibration.machine.cores)
    cluster = cluster_of(calibration.nodes)
    crowd, busy = (_mean_execution(calibration, name, number) for name in ("crowd", "busy"))
    wall = fmean(run.wall_seconds for run in calibration.of("crowd", number))
    del crowd
    others, cpu_seconds = 0.0, cores * wall / len(calibration.of("crowd", number)[0].actions)
    for _ in range(_ROUNDS):
        others = _root(
            lambda value, cpu=cpu_seconds: _played(  # type: ignore[misc]
                _probe("busy"), _costs(means, cores, value, cpu), cluster
            ).execution_seconds - busy,
            _MOST_OTHERS,
        )  # fmt: skip
        cpu_seconds = _root(
            lambda value, others=others: _played(  # type: ignore[misc]
                _probe("crowd"), _costs(means, cores, others, value), cluster
            ).wall_seconds - wall,
            _MOST_CPU_SECONDS,
        )  # fmt: skip
    return _costs(means, cores, others, cpu_seconds)


def _mean_execution(calibration: Calibration, probe: str, number: int | None) -> float:
    return fmean(
        each.execution_seconds for run in calibration.of(probe, number) for each in run.actions
    )


def _costs(means: PathMeans, cores: float, others: float, cpu_seconds: float) -> MachineCosts:
    """Return costs whose path takes ``means`` beside ``others``, and ``cpu_seconds`` an action."""
    path = {
        "submit": means.submit,
        "start": _BEFORE * max(0.0, means.overhead - PASS_SECONDS),
        "report": (1 - _BEFORE) * max(0.0, means.overhead - PASS_SECONDS),
        "answer": max(0.0, means.answer - PASS_SECONDS),
        "process": means.process,
    }
    parts, light = (_slowness(cores, others, weight) for weight in (PARTS_WEIGHT, LIGHT_WEIGHT))
    share = cpu_seconds / max(sum(path.values()), 1e-9)

    def hop(name: str, seconds: float) -> Hop:
        slowness = light if name == "process" else parts
        cpu = min(share * seconds, seconds / slowness)
        return Hop(max(0.0, seconds - cpu * slowness), cpu)

    hops = {name: hop(name, seconds) for name, seconds in path.items()}
    on_path = sum(each.cpu_seconds for each in hops.values())
    return MachineCosts(
        cores=cores,
        others=others,
        environment=hop("environment", means.environment),
        beside_cpu_seconds=max(0.0, cpu_seconds - on_path),
        **hops,
    )


def _slowness(cores: float, others: float, weight: float) -> float:
    """Return how many times as long a job of ``weight`` takes beside the other programs alone."""
    processors = Processors(Agenda(), cores)
    if others > 0:
        processors.begin(1e12, weight=COMMAND_WEIGHT * others, most=others)
    return 1.0 / processors.rate_of_newcomer(weight)


@dataclass(frozen=True)
class PlayedProbe:
    """A probe in virtual time."""

    wall_seconds: float
    execution_seconds: float


def _played(probe: Probe, costs: MachineCosts, cluster: Cluster) -> PlayedProbe:
    plan = ReplayPlan("calibration", "probe", 1.0, cost_named("from-trace"))
    workload = Replayed(probe.recordings, plan, most_cores=largest_node(cluster))
    simulation = ClusterSimulation(
        workload,
        cluster,
        overheads=overheads_of(costs),
        concurrency=probe.concurrency,
        machine=costs,
    )
    rows = simulation.run().rows
    return PlayedProbe(simulation.trainers.ended_at, fmean(rows.execution))


def overheads_of(costs: MachineCosts) -> Overheads:
    """Return what the parts of a simulation that know no machine take."""
    return Overheads(
        submit_seconds=costs.submit.seconds,
        pass_seconds=PASS_SECONDS,
        start_seconds=costs.start.seconds,
        report_seconds=costs.report.seconds,
        answer_seconds=costs.answer.seconds,
        environment_seconds=costs.environment.seconds,
    )


def _root(excess: Callable[[float], float], most: float) -> float:
    """Return where ``excess``, which rises, passes 0 between 0 and ``most``; an end where it does not."""
    least = 0.0
    if excess(least) >= 0:
        return least
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        if excess(middle) < 0:
            least = middle
        else:
            most = middle
    return (least + most) / 2


def _probe(name: str) -> Probe:
    return next(probe for probe in PROBES if probe.name == name)


def cluster_of(nodes: Iterable[MeasuredNode]) -> Cluster:
    """Return the nodes of a calibration. Raises InvalidRequest when none has a core."""
    machines = {node.name: _inventory(node) for node in nodes if node.cores >= 1}
    if not machines:
        raise InvalidRequest("the calibration names no node with a core")
    return Cluster(nodes=len(machines), machines=machines)


def _inventory(node: MeasuredNode) -> dict[str, ResourceInventory]:
    count = round(node.cores)
    cpu = ResourceInventory(
        count * MILLI,
        shared_units=tuple(range(count, count + node.kept)),
        shared_capacity=node.kept * LIGHT_MILLI,
        yielding_capacity=0 if node.kept else yielding_capacity(count, {}),
    )
    return {"cpu": cpu, "memory": ResourceInventory(MEMORY_BYTES)}


def largest_node(cluster: Cluster) -> float:
    """Return the cores of the largest node."""
    return max(node.resources["cpu"].capacity for node in cluster.inventories()) / MILLI
