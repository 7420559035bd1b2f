"""Policies side by side: the same trainers, the same draws, one run each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Protocol

import msgspec

from domain.errors import InvalidRequest
from domain.events import Event
from domain.ids import ActionId
from domain.policies import parse_policy
from simulator.baselines import kubernetes, unmanaged
from simulator.cluster import Cluster
from simulator.engine import ClusterSimulation, Switch, Watch
from simulator.machine import MachineCosts
from simulator.overheads import Overheads
from simulator.result import Finished, Result, summarise
from simulator.tally import SimulationTally
from simulator.workloads.program import Workload

#: Called with the policy and how many of its actions have finished.
Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Scene:
    """The workload, cluster and draws that all policies of a comparison share."""

    workload: Workload
    cluster: Cluster = field(default_factory=Cluster)
    overheads: Overheads = field(default_factory=Overheads)
    failure_ratio: float = 0.0
    seed: int = 0
    #: Of policies that look ahead (Algorithm 2); None: each its own.
    depth: int | None = None
    #: What is begun with, where ``cluster`` and the policy come in force only after a while.
    prelude: Prelude | None = None
    #: What happens where the prelude ends.
    events: tuple[Event, ...] = ()
    #: What the trace lacks and what stands in its place, as sentences.
    assumed: tuple[str, ...] = ()
    #: Trajectories of a step that are played at once; None: all of them.
    concurrency: int | None = None
    #: Costs of the one machine that runs everything; None: ``overheads`` alone.
    machine: MachineCosts | None = None


@dataclass(frozen=True)
class Prelude:
    """A warm-up under another configuration, until the moment from which on actions count."""

    cluster: Cluster
    policy: str
    until_seconds: float
    #: Actions that do not count.
    actions: frozenset[ActionId] = frozenset()


@dataclass(frozen=True)
class Timed:
    """A result, and how long it took to simulate (that alone is real time)."""

    result: Result
    wall_seconds: float

    @property
    def actions_per_second(self) -> float:
        """Actions simulated per second of real time."""
        return self.result.whole.actions / self.wall_seconds if self.wall_seconds else 0.0


class Runnable(Finished, Protocol):
    """A simulation that has not begun, of the core or of a baseline."""

    def run(self) -> SimulationTally: ...


class MakeBaseline(Protocol):
    """Prepare a baseline for a workload on a cluster; ``progress`` counts finished actions."""

    def __call__(
        self, workload: Workload, cluster: Cluster, *, progress: Callable[[int], None] | None
    ) -> Runnable: ...


#: Systems that are modelled without the core, by the name that stands for a policy. The evaluation
#: adds those that only it compares with.
BASELINES: dict[str, MakeBaseline] = {
    name: partial(kubernetes.Kubernetes, rules=rules) for name, rules in kubernetes.RULES.items()
} | {name: partial(unmanaged.Unmanaged, rules=rules) for name, rules in unmanaged.RULES.items()}


def check_policies(policies: Sequence[str]) -> None:
    """Raise InvalidRequest for a policy that the core does not know, or that is named twice."""
    for policy in policies:
        if policy not in BASELINES:
            parse_policy(policy)
    if len(set(policies)) < len(policies):
        raise InvalidRequest("each policy once")


def run(
    scene: Scene, policy: str, progress: Progress | None = None, watch: Watch | None = None
) -> Timed:
    """Simulate ``scene`` under one policy or baseline; ``watch`` sees each pass of the core."""
    simulation = prepare(
        scene, policy, None if progress is None else partial(progress, policy), watch
    )
    began = perf_counter()
    simulation.run()
    wall_seconds = perf_counter() - began
    return Timed(summarise(simulation, scene.cluster, policy), wall_seconds)


def prepare(
    scene: Scene, policy: str, tell: Callable[[int], None] | None, watch: Watch | None
) -> Runnable:
    """Return the simulation of ``scene`` under one policy or baseline, ready to run."""
    workload, cluster = scene.workload, scene.cluster
    if policy in BASELINES:
        return BASELINES[policy](workload, cluster, progress=tell)
    began, switch = scene.prelude, None
    if began is not None:
        config = msgspec.structs.replace(cluster.config(policy), revision=2)
        switch = Switch(began.until_seconds, config, cluster.served(), began.actions)
    simulation = ClusterSimulation(
        workload,
        cluster if began is None else began.cluster,
        policy if began is None else began.policy,
        overheads=scene.overheads,
        failure_ratio=scene.failure_ratio,
        seed=scene.seed,
        depth=scene.depth,
        watch=watch,
        progress=tell,
        switch=switch,
        concurrency=scene.concurrency,
        machine=scene.machine,
    )
    simulation.inject(began.until_seconds if began is not None else 0.0, *scene.events)
    return simulation


def compare(
    scene: Scene,
    policies: Sequence[str],
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Iterator[Timed]:
    """Simulate ``scene`` under each policy in turn."""
    check_policies(policies)
    for policy in policies:
        yield run(scene, policy, progress, watch)
