"""elastic groups: mean ACT and core-hours of a day, with all nodes, with ours, and with a target of utilisation.

    python -m benchmarks.elastic_groups TRACE --hours 8 --seed 1
    python -m benchmarks.elastic_groups TRACE --hours 8 --seed 1 --shapes 8:12,32:6 --builds-per-hour 30 --peak-busy 0.5 --variant shapes
    python -m benchmarks.elastic_groups TRACE --hours 8 --seed 1 --shapes 8:12,32:4 --builds-per-hour 60 --variant scarce

`scheduler.runtime.node_groups.elastic` and `managers.launch.plan` run in virtual time on the cluster of `benchmarks.elastic_day`. Trajectories
are those of a recording; their arrivals are GENERATED: a Poisson process whose rate follows the hours of a day, since no recording has the
arrivals of a day. A node counts from its launch to its end, drains included. The rule of Kubernetes: desired = ceil(nodes × utilisation / 0.7)
with a tolerance of 0.1, each 15 s, and a fall to the highest of five minutes; its nodes need the same time to start.

Several shapes are one group each, of one pool. Builds are single actions of 16, 24 or 32 cores, GENERATED as well: durations are lognormal
(median 40 s), arrivals follow the same day. The rule of Kubernetes looks at each group alone.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.elastic_day import (
    BUILD_CORES,
    BUILD_MEDIAN_SECONDS,
    BUILD_SPREAD,
    MEMORY_OF_CORE,
    DayCluster,
    cores_of,
    draw_builds,
    draw_day,
)
from benchmarks.record import name_paths, store
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, InstanceState
from managers.launch.plan import NodeWork, Steps, plan
from scheduler.runtime.node_groups.elastic import ElasticGroup, ElasticPools
from scheduler.runtime.node_groups.pool_sight import GroupSight
from simulator.traces import read_recordings
from tangram_client.traces.recording import Recording

PASS_SECONDS: Final = 3.0
HPA_SECONDS: Final = 15.0
HPA_TARGET: Final = 0.7
HPA_TOLERANCE: Final = 0.1
HPA_WINDOW_SECONDS: Final = 300.0

Rule = Callable[["PlayedGroup", float], int]


@dataclass
class PlayedGroup:
    """The nodes of the group: an engine that starts each within the same seconds, and a rule."""

    name: str
    cluster: DayCluster
    spec: NodeGroupSpec
    rule: Rule
    start_seconds: float
    wanted: int
    #: Instance → when its node joins.
    launched: dict[str, float] = field(default_factory=dict)
    node_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    _before: float = 0.0

    def begin(self) -> None:
        """Begin with the wanted nodes, and look at the group from now on."""
        for number in range(self.wanted):
            name = f"{self.name}-{number + 1}"
            self.launched[name] = 0.0
            self.cluster.join(name, self.spec.cpus)
        self.cluster.at(PASS_SECONDS, self._look)

    @property
    def ready(self) -> list[str]:
        """Nodes that take work."""
        return [name for name in self._there() if not self.cluster.nodes[name].drained]

    def _there(self) -> list[str]:
        return [name for name in self.launched if name in self.cluster.nodes]

    def _look(self, _: Any) -> None:
        now = self.cluster.now
        self.node_seconds += len(self.launched) * (now - self._before)
        self._before = now
        wanted = self.rule(self, now)
        self.counts["changes"] += wanted != self.wanted
        self.wanted = wanted
        works = {
            name: NodeWork(len(node.running), node.trajectories, node.drained, node.drained)
            for name in self._there()
            for node in (self.cluster.nodes[name],)
        }
        instances = [Instance(name, InstanceState.RUNNING, name) for name in self.launched]
        self._take(plan(self.name, self.spec, wanted, instances, works, now), now)
        self.cluster.at(now + PASS_SECONDS, self._look)

    def _take(self, steps: Steps, now: float) -> None:
        for name in steps.resume:
            self.cluster.drain(name, drained=False)
        for name in steps.drain:
            self.cluster.drain(name, drained=True)
        for name in steps.end:
            del self.launched[name]
            self.cluster.leave(name)
        for name in steps.launch:
            joins_at = self.launched[name] = now + self.start_seconds
            self.cluster.at(joins_at, self._join, (name, joins_at))
        self.counts["launches"] += len(steps.launch)
        self.counts["drains"] += len(steps.drain)

    def _join(self, entry: tuple[str, float]) -> None:
        name, joins_at = entry
        if self.launched.get(name) == joins_at:
            self.cluster.join(name, self.spec.cpus)


def ours(groups: Sequence[str]) -> Iterable[Rule]:
    """Return the rule of this project for each group: they are judged together."""
    pools = ElasticPools()
    return [_our_rule(pools.group(name), frozenset(groups) - {name}) for name in groups]


def _our_rule(elastic: ElasticGroup, peers: frozenset[str]) -> Rule:

    def decide(group: PlayedGroup, now: float) -> int:
        starting = tuple(
            now - at + group.start_seconds for at in group.launched.values() if at > now
        )
        demand = group.cluster.demand()
        sight = GroupSight(
            len(group.ready), group.wanted, starting, group.start_seconds, demand, peers=peers
        )
        return elastic.decide(group.spec, sight, now).wanted

    return decide


def target(groups: Sequence[str]) -> Iterable[Rule]:
    """Return the rule of Kubernetes' HorizontalPodAutoscaler for each group."""
    return [_target_rule() for _ in groups]


def _target_rule() -> Rule:
    asked: deque[tuple[float, int]] = deque()

    def decide(group: PlayedGroup, now: float) -> int:
        if asked and now - asked[-1][0] < HPA_SECONDS:
            return group.wanted
        nodes = [group.cluster.nodes[name] for name in group.ready]
        used = sum(1 - node.free / node.cores for node in nodes) / max(1, len(nodes))
        desired = group.wanted
        if abs(used / HPA_TARGET - 1) > HPA_TOLERANCE:
            desired = math.ceil(len(nodes) * used / HPA_TARGET)
        asked.append((now, group.spec.within(desired)))
        while asked[0][0] < now - HPA_WINDOW_SECONDS:
            asked.popleft()
        return max(asked[-1][1], min(group.wanted, max(count for _, count in asked)))

    return decide


def everything(groups: Sequence[str]) -> Iterable[Rule]:
    """Return the rule that keeps all nodes."""
    return [lambda group, now: group.spec.max_count or 0 for _ in groups]


RULES: Final[dict[str, Callable[[Sequence[str]], Iterable[Rule]]]] = {
    "full": everything,
    "ours": ours,
    "target": target,
}


def play(options: argparse.Namespace, recordings: Sequence[Recording], name: str) -> dict[str, Any]:
    """Play the day under one rule."""
    shapes = shapes_of(options)
    cores = sum(size * nodes for size, nodes in shapes)
    work = sum(cores_of(s.cpu_cores) * s.duration_seconds for r in recordings for s in r.steps)
    builds = options.builds_per_hour / 3600
    left = max(0.0, options.peak_busy * cores - builds * build_core_seconds())
    seconds = options.hours * 3600
    arrivals = [
        *draw_day(recordings, left * len(recordings) / work, options.seed, seconds),
        *draw_builds(builds, options.seed, seconds),
    ]
    cluster = DayCluster(sorted(arrivals, key=lambda arrival: arrival[0]))
    names = [f"n{size}" for size, _ in shapes]
    groups = [
        _group(cluster, names[number], shapes[number], rule, options.start_seconds, name)
        for number, rule in enumerate(RULES[name](names))
    ]
    for group in groups:
        group.begin()
    cluster.run()
    acts = sorted(cluster.acts)
    held = sum(group.node_seconds * group.spec.cpus for group in groups)
    counts = sum((group.counts for group in groups), Counter[str]())
    found = {
        "mean_act_seconds": round(sum(acts) / len(acts), 4),
        "p99_act_seconds": round(acts[len(acts) * 99 // 100], 3),
        "mean_wait_seconds": round(cluster.waits / len(acts), 4),
        "core_hours": round(held / 3600, 1),
        "busy": round(cluster.core_seconds / held, 3),
        "trajectories": len(arrivals),
        "actions": len(acts),
        **{name: counts[name] for name in ("changes", "launches", "drains")},
    }
    if cluster.large_acts:
        large = cluster.large_acts
        found["builds"] = len(large)
        found["mean_act_seconds_of_builds"] = round(sum(large) / len(large), 2)
    if len(groups) > 1:
        for group in groups:
            hours = group.node_seconds * group.spec.cpus / 3600
            found[f"core_hours_of_{group.spec.cpus}_cores"] = round(hours, 1)
    return found


def shapes_of(options: argparse.Namespace) -> list[tuple[int, int]]:
    """Return cores and most nodes of each shape."""
    if not options.shapes:
        return [(options.cores, options.nodes)]
    pairs = [each.split(":") for each in options.shapes.split(",")]
    return [(int(cores), int(nodes)) for cores, nodes in pairs]


def build_core_seconds() -> float:
    """Return the mean work of a build."""
    seconds = BUILD_MEDIAN_SECONDS * math.exp(BUILD_SPREAD**2 / 2)
    return seconds * sum(BUILD_CORES) / len(BUILD_CORES)


def _group(
    cluster: DayCluster, name: str, shape: tuple[int, int], rule: Rule, start_seconds: float, rule_name: str
) -> PlayedGroup:  # fmt: skip
    cores, most = shape
    spec = NodeGroupSpec(
        "processes", min_count=1, max_count=most, cpus=cores, memory_bytes=cores * MEMORY_OF_CORE
    )
    first = most if rule_name == "full" else max(1, most // 4)
    return PlayedGroup(name, cluster, spec, rule, start_seconds, first)


def main() -> None:
    """Play, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help="recorded trajectories, JSON lines")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--shapes", default="", help="CORES:NODES of each group, as 8:12,32:4")
    parser.add_argument("--builds-per-hour", type=float, default=0.0, help="at 14:00")
    parser.add_argument("--peak-busy", type=float, default=0.65, help="share of cores at 14:00")
    parser.add_argument("--start-seconds", type=float, default=30.0)
    parser.add_argument(
        "--hours", type=float, default=24.0, help="of the day: with fewer, its rate changes faster"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--variant", default="", help="of the stored result: shapes, scarce")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    recordings = read_recordings(options.trace)
    found: dict[str, dict[str, Any]] = {}
    for name in options.rules.split(","):
        found[name] = result = play(options, recordings, name)
        if "full" in found:
            full = found["full"]
            for measure in ("mean_act_seconds", "p99_act_seconds", "mean_act_seconds_of_builds", "core_hours"):  # fmt: skip
                if measure in full:
                    result[f"{measure}_to_full"] = round(result[measure] / full[measure], 3)
        print(name, result, flush=True)
    if not options.dry:
        name_paths()
        body = {
            "arrivals": "generated: a Poisson process whose rate follows the hours of a day,"
            f" here of {options.hours:g} hours",
            "time": "virtual",
            "rules": found,
        }
        print("stored in", store("elastic_groups", body, options.variant))


if __name__ == "__main__":
    main()
