"""A day of trajectories on nodes that come and go, in virtual time: a model that is fast enough for 1.5 million actions.

A trajectory begins on the node with the least share of its memory held that takes work and has its cores free, else waits for one; it stays
there. Its actions come one after the other, each after its think time, and wait for cores of that node by arrival; what does not fit is passed
by what does. Durations, cores and think times are those of a recording. Hops and environments take no time.

A first action of `LARGE` cores or more that waits keeps a node: the one with the most free cores of those that are large enough. What was
submitted later starts there only if it leaves it enough, as in the scheduler.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from contract.pool_demands import DemandRow, NodesAlike, PoolDemand
from domain.resources import MILLI
from tangram_client.traces.recording import RecordedStep, Recording

GIB: Final = 2**30
#: Of each environment.
MEMORY_BYTES: Final = GIB
#: Memory of a node for each of its cores.
MEMORY_OF_CORE: Final = 4 * GIB
#: Rate at the quietest hour, as a share of that at the busiest.
NIGHT: Final = 0.1
#: Cores of an action from which on a node is kept for it, and those of builds.
LARGE: Final = 16
BUILD_CORES: Final = (16, 16, 16, 24, 32)
#: Of the logarithm of a build's seconds.
BUILD_MEDIAN_SECONDS: Final = 40.0
BUILD_SPREAD: Final = 0.8
_OVERDUE_SHARE: Final = 0.25
_LEAST_SECONDS: Final = 1e-3


def cores_of(used: float) -> int:
    """Return whole cores for what an action used of them."""
    return max(1, math.ceil(used - 0.1))


def rate_at(second: float, peak_per_second: float, day_seconds: float) -> float:
    """Return trajectories a second; the busiest hour is 14:00 of a day with 24."""
    wave = 0.5 - 0.5 * math.cos(2 * math.pi * (second / day_seconds - 2 / 24))
    return peak_per_second * (NIGHT + (1 - NIGHT) * wave)


def draw_day(
    recordings: Sequence[Recording], peak_per_second: float, seed: int, seconds: float
) -> list[tuple[float, Recording]]:
    """Draw arrivals of a Poisson process (thinned from the peak rate), and a recording for each."""
    chooser, at = Random(f"elastic/{seed}"), 0.0
    arrivals: list[tuple[float, Recording]] = []
    while (at := at + chooser.expovariate(peak_per_second)) < seconds:
        recording = recordings[chooser.randrange(len(recordings))]
        if chooser.random() * peak_per_second < rate_at(at, peak_per_second, seconds):
            arrivals.append((at, recording))
    return arrivals


def draw_builds(peak_per_second: float, seed: int, seconds: float) -> list[tuple[float, Recording]]:
    """Draw builds: single actions with many cores, each in an environment of its own; their rate follows the day, too."""
    chooser, at = Random(f"elastic/builds/{seed}"), 0.0
    builds: list[tuple[float, Recording]] = []
    while peak_per_second and (at := at + chooser.expovariate(peak_per_second)) < seconds:
        cores = chooser.choice(BUILD_CORES)
        lasts = chooser.lognormvariate(math.log(BUILD_MEDIAN_SECONDS), BUILD_SPREAD)
        step = RecordedStep(0.0, lasts, float(cores), "build")
        if chooser.random() * peak_per_second < rate_at(at, peak_per_second, seconds):
            builds.append((at, Recording("build", (step,), memory_bytes=0)))
    return builds


@dataclass(eq=False, slots=True)
class DayAction:
    """One action, from its submission."""

    trajectory: DayTrajectory
    cores: int
    seconds: float
    predicted: float
    submitted_at: float
    started_at: float = 0.0


@dataclass(eq=False, slots=True)
class DayTrajectory:
    """One trajectory, and the steps that it has left."""

    recording: Recording
    step: int = 0
    node: DayNode | None = None


@dataclass(eq=False, slots=True)
class DayNode:
    """One node that has joined."""

    name: str
    cores: int
    free: int
    room: int
    drained: bool = False
    trajectories: int = 0
    #: The large action that waits for it.
    kept_for: DayAction | None = None
    #: Cores → actions that wait for them.
    queues: dict[int, deque[DayAction]] = field(default_factory=lambda: defaultdict(deque))
    running: set[DayAction] = field(default_factory=set)


class DayCluster:
    """The nodes, what waits for them, and the clock."""

    def __init__(self, arrivals: Iterable[tuple[float, Recording]]) -> None:
        self.now = 0.0
        self.nodes: dict[str, DayNode] = {}
        #: Cores → first actions, which any node may take.
        self.unplaced: dict[int, deque[DayAction]] = defaultdict(deque)
        self.open = 0
        self.acts: list[float] = []
        #: Those of actions with `LARGE` cores or more.
        self.large_acts: list[float] = []
        self.waits = self.core_seconds = 0.0
        self._entered = 0
        self._agenda: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._arrivals = iter(arrivals)
        self._means: dict[tuple[str, int], tuple[float, int]] = {}
        self._arrive_next()

    def at(self, moment: float, step: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``step(argument)`` at ``moment``."""
        self._entered += 1
        heappush(self._agenda, (moment, self._entered, step, argument))

    @property
    def over(self) -> bool:
        """The last trajectory has ended."""
        return self._done and not self.open

    def run(self) -> None:
        """Play until the last trajectory has ended."""
        agenda = self._agenda
        while agenda and not self.over:
            self.now, _, step, argument = heappop(agenda)
            step(argument)

    def join(self, name: str, cores: int) -> None:
        """Let a node take work."""
        room = cores * MEMORY_OF_CORE // MEMORY_BYTES
        node = self.nodes[name] = DayNode(name, cores, cores, room)
        self._keep_nodes()
        self._serve(node)

    def drain(self, name: str, drained: bool) -> None:
        """Let a node take new trajectories, or none."""
        self.nodes[name].drained = drained
        self._keep_nodes()
        self._serve(self.nodes[name])

    def leave(self, name: str) -> None:
        """Remove an empty node."""
        self.nodes.pop(name, None)
        self._keep_nodes()

    def _keep_nodes(self) -> None:
        """Keep a node for the first large action of each size that waits."""
        heads = [queue[0] for cores, queue in self.unplaced.items() if cores >= LARGE and queue]
        freed = []
        for node in self.nodes.values():
            if node.kept_for is not None and (node.drained or node.kept_for not in heads):
                node.kept_for = None
                freed.append(node)
        kept = {node.kept_for for node in self.nodes.values()}
        for head in heads:
            able = [each for each in self.nodes.values() if not each.drained and each.cores >= head.cores and each.kept_for is None]  # fmt: skip
            if head not in kept and able:
                max(able, key=lambda each: each.free).kept_for = head
        for node in freed:
            self._serve(node)

    def _arrive_next(self) -> None:
        found = next(self._arrivals, None)
        self._done = found is None
        if found is not None:
            self.at(found[0], self._arrive, DayTrajectory(found[1]))

    def _arrive(self, trajectory: DayTrajectory) -> None:
        self._arrive_next()
        self.open += 1
        self._think(trajectory)

    def _think(self, trajectory: DayTrajectory) -> None:
        steps = trajectory.recording.steps
        if trajectory.step < len(steps):
            self.at(self.now + steps[trajectory.step].think_seconds, self._submit, trajectory)
            return
        self.open -= 1
        node = trajectory.node
        if node is not None:
            node.trajectories -= 1
            node.room += 1
            self._serve(node)

    def _submit(self, trajectory: DayTrajectory) -> None:
        step = trajectory.recording.steps[trajectory.step]
        cores = cores_of(step.cpu_cores)
        mean, _ = self._means.get((step.family, cores), (1.0, 0))
        action = DayAction(trajectory, cores, step.duration_seconds, mean, self.now)
        node = trajectory.node
        if node is None:
            self.unplaced[cores].append(action)
            nodes = [each for each in self.nodes.values() if self._takes(each, cores)]
            if cores >= LARGE:
                self._keep_nodes()
            if nodes:
                self._serve(min(nodes, key=_load))
        elif node.free >= cores and self._lets(node, action):
            self._start(node, action)
        else:
            node.queues[cores].append(action)

    @staticmethod
    def _lets(node: DayNode, action: DayAction) -> bool:
        """Whether the action for which a node is kept lets another one start there."""
        kept_for = node.kept_for
        return (
            kept_for is None
            or kept_for is action
            or action.submitted_at < kept_for.submitted_at
            or node.free - action.cores >= kept_for.cores
        )

    def _takes(self, node: DayNode, cores: int) -> bool:
        return not node.drained and node.free >= cores and node.room > 0

    def _serve(self, node: DayNode) -> None:
        """Start what fits on a node, by arrival."""
        while node.free:
            fitting = [
                queue for cores, queue in node.queues.items() if queue and cores <= node.free
            ]
            fitting += [
                queue
                for cores, queue in self.unplaced.items()
                if queue and self._takes(node, cores)
            ]
            fitting = [queue for queue in fitting if self._lets(node, queue[0])]
            if not fitting:
                return
            self._start(node, min(fitting, key=lambda queue: queue[0].submitted_at).popleft())

    def _start(self, node: DayNode, action: DayAction) -> None:
        if action.trajectory.node is None:
            action.trajectory.node = node
            node.trajectories += 1
            node.room -= 1
        node.free -= action.cores
        node.running.add(action)
        if node.kept_for is action:
            node.kept_for = None
        if action.cores >= LARGE:
            self._keep_nodes()
        action.started_at = self.now
        self.at(self.now + action.seconds, self._end, action)

    def _end(self, action: DayAction) -> None:
        trajectory = action.trajectory
        node = trajectory.node
        assert node is not None  # it was started there
        node.running.remove(action)
        node.free += action.cores
        self.acts.append(self.now - action.submitted_at)
        if action.cores >= LARGE:
            self.large_acts.append(self.acts[-1])
        self.waits += action.started_at - action.submitted_at
        self.core_seconds += action.seconds * action.cores
        self._learn(trajectory.recording.steps[trajectory.step].family, action)
        trajectory.step += 1
        self._serve(node)
        self._think(trajectory)

    def _learn(self, family: str, action: DayAction) -> None:
        """Follow the mean of a family, as the scheduler does."""
        mean, count = self._means.get((family, action.cores), (0.0, 0))
        share = max(0.1, 1 / (count + 1))
        mean += share * (max(_LEAST_SECONDS, action.seconds) - mean)
        self._means[family, action.cores] = mean, count + 1

    def demand(self) -> PoolDemand:
        """Return what the loop would answer."""
        sums: dict[tuple[int, int, bool, int], list[float]] = {}

        def row(action: DayAction, memory: int, bound: bool) -> list[float]:
            key = action.cores, memory, bound, math.floor(math.log2(action.predicted))
            return sums.setdefault(key, [0.0] * 5)

        for node in self.nodes.values():
            for action in node.running:
                age = self.now - action.started_at
                left = max(action.predicted - age, _OVERDUE_SHARE * age, _LEAST_SECONDS)
                found = row(action, 0, True)
                found[1] += 1
                found[2] += action.predicted
                found[3] += left
                found[4] += 1 / (age + left)
        waiting = [
            (queue, 0, True) for node in self.nodes.values() for queue in node.queues.values()
        ]
        waiting += [(queue, MEMORY_BYTES, False) for queue in self.unplaced.values()]
        for queue, memory, bound in waiting:
            for action in queue:
                found = row(action, memory, bound)
                found[0] += 1
                found[2] += action.predicted
        rows = [
            DemandRow(
                {"cpu": cores * MILLI}, memory, bound, seconds / (waits + runs), round(waits), round(runs),
                left / runs if runs else 0.0, ending,
            )
            for (cores, memory, bound, _), (waits, runs, seconds, left, ending) in sums.items()
        ]  # fmt: skip
        there = sum(node.trajectories for node in self.nodes.values())
        return PoolDemand(rows, {}, there * MEMORY_BYTES, there, self._free_nodes())

    def _free_nodes(self) -> list[NodesAlike]:
        found = Counter(
            (node.name.rpartition("-")[0], node.cores, node.free, node.room)
            for node in self.nodes.values()
            if not node.drained
        )
        return [
            NodesAlike(
                begins, count,
                {"cpu": cores * MILLI, "memory": cores * MEMORY_OF_CORE},
                {"cpu": free * MILLI, "memory": room * MEMORY_BYTES},
            )
            for (begins, cores, free, room), count in found.items()
        ]  # fmt: skip


def _load(node: DayNode) -> tuple[float, float]:
    """Return the sort key of nodes: least share of memory held, then most free cores, as shares."""
    room = node.cores * MEMORY_OF_CORE // MEMORY_BYTES
    return -node.room / room, -node.free / node.cores
