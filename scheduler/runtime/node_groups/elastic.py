"""ElasticNodes: the number of nodes of a group with bounds, from what waits. Pure: time is given.

Growth is quick. If all nodes that the bounds allow would lower the mean ACT (`act_estimate`) by `GROW_GAIN`, the group grows by the
fewest nodes that have `MOST_OF_GAIN` of that; nodes on their way count from when they are expected. It does not grow while
nodes that it asked for are overdue: a blocked engine gets no longer list.

Shrinking is slow. At each look the fewest nodes are found for which all further ones would gain less than `SHRINK_GAIN`. The group shrinks
to the most of those numbers within `WINDOW_SECONDS`. `SHRINK_GAIN` is below `GROW_GAIN`: under a constant load, a group that shrank does
not grow again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, exp, floor, log2
from typing import Final, NamedTuple

from contract.node_group_reports import NodeGroupEstimate
from contract.pool_demands import DemandRow, PoolDemand
from domain.node_groups import NodeGroupSpec
from domain.resources import MILLI
from scheduler.runtime.node_groups.act_estimate import (
    ArrivingActions,
    NodesFrom,
    PoolLoad,
    mean_act,
)

#: Shares of the mean ACT.
GROW_GAIN: Final = 0.06
SHRINK_GAIN: Final = 0.03
MOST_OF_GAIN: Final = 0.8
#: A group shrinks to what was enough for so long, and not within so long after it grew.
WINDOW_SECONDS: Final = 300.0
#: Arrival rates are means over about so long.
RATE_SECONDS: Final = 120.0
#: From a launch until the node joins, until one was measured.
START_SECONDS: Final = 30.0
#: Nodes that were asked for are overdue after so many times that.
_OVERDUE: Final = 3.0
#: Share of the memory of nodes that environments may hold after the group shrank.
_MEMORY_SHARE: Final = 0.9
_LEAST_RATE: Final = 1e-6


class GroupSight(NamedTuple):
    """A group as it is found."""

    #: Nodes that have joined and take work.
    ready: int
    #: What was wanted before.
    wanted: int
    #: For how long each of the nodes that were asked for and have not joined has been starting, in seconds.
    starting: tuple[float, ...]
    start_seconds: float
    demand: PoolDemand
    #: Of the nodes that other groups of the pool have on their way.
    coming: Mapping[str, int] = {}
    #: Nodes that an operator has drained: they count as wanted, and take no work.
    aside: int = 0


@dataclass
class _Rate:
    needs: Mapping[str, int]
    bound: bool
    seconds: float
    per_second: float = 0.0


@dataclass
class ElasticGroup:
    """The decisions on one group, and what they remember."""

    name: str
    #: By kind of row.
    _rates: dict[tuple[object, ...], _Rate] = field(default_factory=dict)
    _weight: float = 0.0
    _looked_at: float | None = None
    _began_at: float | None = None
    _grew_at: float | None = None
    #: When it was looked at → nodes that were enough; rising times.
    _enough: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, spec: NodeGroupSpec, sight: GroupSight, now: float) -> NodeGroupEstimate:
        """Return the number of nodes that the group should have now, with the estimate and its reason."""
        load = self._load(spec, sight, now)
        base = spec.within(sight.wanted)
        enough = max(self._fewest(spec, load), self._floor(spec, sight.demand, load))
        self._remember(now, enough)
        found = self._grown(spec, sight, load, base)
        if found.wanted > base:
            self._grew_at = now
        elif not found.more:
            found = self._shrunk(found, load, base, now)
        found.start_seconds = round(sight.start_seconds, 1)
        return found

    def _load(self, spec: NodeGroupSpec, sight: GroupSight, now: float) -> PoolLoad:
        shape = shape_of(spec)
        rows = [row for row in sight.demand.rows if _fits(row, shape)]
        self._learn(rows, now)
        others: dict[str, int] = dict(sight.coming)
        for begins, have in sight.demand.capacity.items():
            if begins != self.name:
                for kind, amount in have.items():
                    others[kind] = others.get(kind, 0) + amount
        for kind, amount in shape.items() if sight.aside else ():
            others[kind] = others.get(kind, 0) - sight.aside * amount
        arrivals = [
            ArrivingActions(each.needs, each.bound, each.seconds, each.per_second / self._weight)
            for each in self._rates.values()
            if each.per_second / self._weight > _LEAST_RATE
        ]
        held = sight.demand.memory_held
        if "memory" not in shape:  # what the group's nodes have is not known
            others.pop("memory", None)
            held = 0
        return PoolLoad(rows, arrivals, shape, others, held, sight.demand.trajectories)

    def _learn(self, rows: list[DemandRow], now: float) -> None:
        """Update the arrival rates: as many arrive of each kind as end (Little's law)."""
        passed = RATE_SECONDS if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if self._began_at is None:
            self._began_at = now
        share = 1.0 - exp(-passed / RATE_SECONDS)
        self._weight += (1.0 - self._weight) * share
        for each in self._rates.values():
            each.per_second *= 1.0 - share
        for row in rows:
            if row.running:
                key = (*sorted(row.needs.items()), row.bound, floor(log2(row.seconds)))
                rate = self._rates.setdefault(key, _Rate(row.needs, row.bound, row.seconds))
                rate.seconds = row.seconds
                rate.per_second += share * row.ending_per_second
        for key in [key for key, each in self._rates.items() if each.per_second < _LEAST_RATE]:
            del self._rates[key]

    def _remember(self, now: float, enough: int) -> None:
        # A number that a later one exceeds can be the most of no window.
        while self._enough and self._enough[-1][1] <= enough:
            self._enough.pop()
        self._enough.append((now, enough))
        while self._enough[0][0] < now - WINDOW_SECONDS:
            self._enough.popleft()

    def _fewest(self, spec: NodeGroupSpec, load: PoolLoad) -> int:
        """Return the fewest nodes for which all further ones would gain less than `SHRINK_GAIN`."""
        most = spec.max_count or 0
        best = mean_act(load, [NodesFrom(0.0, most)])
        return fewest(
            spec.min_count,
            most,
            lambda nodes: gain(mean_act(load, [NodesFrom(0.0, nodes)]), best) < SHRINK_GAIN,
        )

    def _floor(self, spec: NodeGroupSpec, demand: PoolDemand, load: PoolLoad) -> int:
        """Return the fewest nodes that hold the environments that there are."""
        needed = (
            1 if demand.trajectories and not any(each > 0 for each in load.others.values()) else 0
        )
        shape = load.shape.get("memory", 0)
        if shape:
            beyond = demand.memory_held - load.others.get("memory", 0) * _MEMORY_SHARE
            needed = max(needed, ceil(beyond / (shape * _MEMORY_SHARE)))
        return spec.within(needed)

    def _grown(
        self, spec: NodeGroupSpec, sight: GroupSight, load: PoolLoad, base: int
    ) -> NodeGroupEstimate:
        most, path = spec.max_count or 0, _path(sight, base)
        act = mean_act(load, path)
        found = NodeGroupEstimate(base, act_seconds=_rounded(act))
        if load.is_idle:
            found.reason = "nothing waits or arrives"
            return found
        if base >= most:
            found.reason = f"{base} nodes are max_count"
            return found
        start = sight.start_seconds
        nodes, all_gain = _most_of_gain(load, path, start, most)
        better = mean_act(load, [*path, NodesFrom(start, nodes)])
        lower = gain(act, better)
        says = f"{_more(nodes - base)} would lower the mean ACT by {lower:.0%}"
        if all_gain < GROW_GAIN:
            found.gain = round(lower, 2)
            found.reason = f"{says}, to grow it takes {GROW_GAIN:.0%}"
            return found
        found.more, found.gain = nodes - base, round(lower, 2)
        late = [age for age in sight.starting if age > _OVERDUE * start]
        if late:
            found.reason = (
                f"{says}, but the engine has not started {_nodes(len(late))}"
                f" that it was asked for {max(late):.0f} s ago"
            )
            return found
        found.wanted = nodes
        found.reason = f"{says}, from {_seconds(act)} to {_seconds(better)}"
        return found

    def _shrunk(
        self, found: NodeGroupEstimate, load: PoolLoad, base: int, now: float
    ) -> NodeGroupEstimate:
        """Let the group shrink to what was enough for the whole window."""
        enough = self._enough[0][1]
        if enough >= base:
            return found
        since = max(self._began_at or 0.0, self._grew_at or 0.0)
        left = since + WINDOW_SECONDS - now
        says = f"{_nodes(enough)} {'is' if enough == 1 else 'are'} enough"
        if left > 0:
            found.reason = (
                f"{says}; the group shrinks when that has held for {WINDOW_SECONDS:.0f} s"
            )
            return found
        act = mean_act(load, [NodesFrom(0.0, enough)])
        before = mean_act(load, [NodesFrom(0.0, base)])
        rises = max(0.0, act / before - 1.0) if before else 0.0
        found.wanted = enough
        found.reason = f"{says} for the last {WINDOW_SECONDS:.0f} s: with {base - enough} fewer the mean ACT rises by {rises:.1%}"
        return found


def shape_of(spec: NodeGroupSpec) -> dict[str, int]:
    """Return what a node of a group offers; without memory where that is what its machine has."""
    shape = {"cpu": spec.cpus * MILLI}
    if spec.gpus:
        shape["gpu"] = spec.gpus * MILLI
    if spec.memory_bytes:
        shape["memory"] = spec.memory_bytes
    return shape


def gain(act: float, better: float) -> float:
    """Return the share of ``act`` by which ``better`` is lower."""
    return 1.0 - better / act if act > 0 else 0.0


def fewest(least: int, most: int, is_enough: Callable[[int], bool]) -> int:
    """Return the fewest nodes from ``least`` on that are enough, ``most`` if none is; by bisection."""
    while least < most:
        middle = (least + most) // 2
        if is_enough(middle):
            most = middle
        else:
            least = middle + 1
    return most


def _most_of_gain(
    load: PoolLoad, path: list[NodesFrom], start: float, most: int
) -> tuple[int, float]:
    """Return the fewest nodes beyond those of ``path`` that have most of the gain of ``most``, and that gain."""
    act = mean_act(load, path)
    all_gain = gain(act, mean_act(load, [*path, NodesFrom(start, most)]))

    def is_enough(nodes: int) -> bool:
        better = mean_act(load, [*path, NodesFrom(start, nodes)])
        return gain(act, better) >= MOST_OF_GAIN * all_gain

    return fewest(path[-1].nodes + 1, most, is_enough), all_gain


def _path(sight: GroupSight, base: int) -> list[NodesFrom]:
    """Return the nodes of the group over time, as they are expected without a decision."""
    ready = min(sight.ready + sight.aside, base)
    path = [NodesFrom(0.0, ready)]
    if base > ready:
        # Those that are asked for in this pass, or before.
        age = max(sight.starting, default=0.0)
        path.append(NodesFrom(max(1.0, sight.start_seconds - age), base))
    return path


def _fits(row: DemandRow, shape: Mapping[str, int]) -> bool:
    return all(shape.get(kind, 0) >= amount for kind, amount in row.needs.items()) and (
        "memory" not in shape or row.memory_bytes <= shape["memory"]
    )


def _rounded(seconds: float) -> float:
    """Return two digits: a report that stays the same is not stored again."""
    return float(f"{seconds:.2g}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _more(count: int) -> str:
    return f"{count} more node" if count == 1 else f"{count} more nodes"
