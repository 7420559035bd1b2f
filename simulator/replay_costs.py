"""From the calibration of a machine to its costs: the probes are played in virtual time until they take what was measured.

Means of probe ``alone`` are the hops on this machine with its other load. Three numbers are not seen directly and are
found by playing the probes: the CPU that Tangram takes for an action (probe ``crowd`` has to take its measured time),
the number of other programs that never rest (the command of ``busy`` with a core has to take its time) and the weight
that light commands have in effect beside them (the light one has to take its own). A hop whose CPU would
take longer than the hop keeps only what fits; the rest is spent beside the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from domain.decisions import Decision, Finish
from domain.errors import InvalidRequest
from domain.events import Event
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.cpu.shared_cores import LIGHT_MILLI, yielding_capacity
from scheduler.core.machine import Machine
from simulator.agenda import Agenda
from simulator.cluster import GIB, Cluster
from simulator.engine import ClusterSimulation
from simulator.machine import COMMAND_WEIGHT, LIGHT_WEIGHT, PARTS_WEIGHT, Hop, MachineCosts
from simulator.overheads import Overheads
from simulator.processors import Processors
from simulator.workloads.replayed import Replayed
from tangram_client.traces.calibration import (
    PROBES,
    MachineCalibration,
    MeasuredNode,
    ProbedAction,
    ReplayProbe,
)
from tangram_client.traces.submissions import ReplayPlan, cost_named

#: A pass of the loop, as in `simulator.overheads`.
PASS_SECONDS: Final = 0.001
#: Share of the overhead before the command; the rest is the report of its end (`simulator.overheads`).
_BEFORE: Final = 0.6
#: Bounds of what is searched, and halvings of them.
_MOST_CPU_SECONDS: Final = 1.0
_MOST_OTHERS: Final = 16.0
_LEAST_WEIGHT: Final = 10.0
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


@dataclass(frozen=True)
class _Found:
    """What is found by playing the probes."""

    #: CPU of an action, in seconds.
    cpu_seconds: float
    others: float = 0.0
    light_weight: float = LIGHT_WEIGHT


def costs_of(calibration: MachineCalibration, number: int | None = None) -> MachineCosts:
    """Return the costs of one round of a calibration, or of all together."""
    alone = [each for run in calibration.of("alone", number) for each in run.actions]
    means, cores = PathMeans.of(alone), float(calibration.machine.cores)
    cluster = cluster_of(calibration.nodes)
    crowd = calibration.of("crowd", number)
    wall = fmean(run.wall_seconds for run in crowd)
    busy = [each for run in calibration.of("busy", number) for each in run.actions]
    whole, light = (
        fmean(each.execution_seconds for each in busy if (each.cores < 1) is is_light)
        for is_light in (False, True)
    )

    def play(probe: str, found: _Found) -> PlayedProbe:
        return _played(_probe(probe), _costs(means, cores, found), cluster)

    found = _Found(cores * wall / len(crowd[0].actions))
    for _ in range(_ROUNDS):
        found = _root(
            found, "others", (0.0, _MOST_OTHERS),
            lambda tried: play("busy", tried).whole_seconds - whole,
        )  # fmt: skip
        found = _root(
            found, "light_weight", (COMMAND_WEIGHT, _LEAST_WEIGHT),
            lambda tried: play("busy", tried).light_seconds - light,
        )  # fmt: skip
        found = _root(
            found, "cpu_seconds", (0.0, _MOST_CPU_SECONDS),
            lambda tried: play("crowd", tried).wall_seconds - wall,
        )  # fmt: skip
    return _costs(means, cores, found)


def _costs(means: PathMeans, cores: float, found: _Found) -> MachineCosts:
    """Return costs whose path takes ``means`` beside the other programs, with the CPU that was found."""
    others = found.others
    path = {
        "submit": means.submit,
        "start": _BEFORE * max(0.0, means.overhead - PASS_SECONDS),
        "report": (1 - _BEFORE) * max(0.0, means.overhead - PASS_SECONDS),
        "answer": max(0.0, means.answer - PASS_SECONDS),
        "process": means.process,
    }
    parts = _slowness(cores, others, PARTS_WEIGHT)
    light = _slowness(cores, others, found.light_weight)
    share = found.cpu_seconds / max(sum(path.values()), 1e-9)

    def hop(name: str, seconds: float) -> Hop:
        slowness = light if name == "process" else parts
        cpu = min(share * seconds, seconds / slowness)
        return Hop(max(0.0, seconds - cpu * slowness), cpu)

    hops = {name: hop(name, seconds) for name, seconds in path.items()}
    on_path = sum(each.cpu_seconds for each in hops.values())
    return MachineCosts(
        cores=cores,
        others=others,
        light_weight=found.light_weight,
        environment=hop("environment", means.environment),
        beside_cpu_seconds=max(0.0, found.cpu_seconds - on_path),
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
    """A probe in virtual time; executions on whole cores and of light actions on the mean, 0 without any."""

    wall_seconds: float
    whole_seconds: float
    light_seconds: float


def _played(probe: ReplayProbe, costs: MachineCosts, cluster: Cluster) -> PlayedProbe:
    plan = ReplayPlan("calibration", "probe", 1.0, cost_named("from-trace"))
    workload = Replayed(probe.recordings, plan, most_cores=largest_node(cluster))
    executions: tuple[list[float], list[float]] = ([], [])

    def watch(_: Machine, events: list[Event], decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Finish):
                light = all(each.amount < MILLI for each in decision.allocations)
                executions[light].append(decision.timing.execution_seconds)

    simulation = ClusterSimulation(
        workload, cluster, overheads=overheads_of(costs), watch=watch,
        concurrency=probe.concurrency, machine=costs,
    )  # fmt: skip
    simulation.run()
    whole, light = (fmean(each) if each else 0.0 for each in executions)
    return PlayedProbe(simulation.trainers.ended_at, whole, light)


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


def _root(
    found: _Found, name: str, bounds: tuple[float, float], excess: Callable[[_Found], float]
) -> _Found:
    """Return ``found`` with the ``name`` where ``excess`` passes 0; it rises from the first bound to the second.

    Where it does not pass 0, the bound that is nearer to it is taken.
    """
    low, high = bounds
    if excess(replace(found, **{name: low})) >= 0:
        return replace(found, **{name: low})
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if excess(replace(found, **{name: middle})) < 0:
            low = middle
        else:
            high = middle
    return replace(found, **{name: (low + high) / 2})


def _probe(name: str) -> ReplayProbe:
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
