"""What elastic groups are seen to be, and the load of their pool that follows from it. Pure.

Nodes that are there have what the scheduler says is free on them. Where it does not say (a loop of an earlier version), what runs is
spread evenly over all nodes. Nodes of other groups, and those of fixed groups on their way, are nodes whose number does not change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from contract.pool_demands import DemandRow, NodesAlike, PoolDemand
from domain.node_groups import NodeGroupSpec
from domain.resources import MILLI
from scheduler.runtime.node_groups.pool_load import (
    Amounts,
    ArrivingActions,
    NodesFrom,
    Place,
    PoolLoad,
)

#: From a launch until the node joins, until one was measured.
START_SECONDS: Final = 30.0
#: Nodes that were asked for are overdue after so many times their start time.
OVERDUE: Final = 3.0
_LEVELS: Final = 4
_MEMORY: Final = "memory"


class ComingNodes(NamedTuple):
    """Nodes of a group that were asked for and have not joined."""

    pool: str
    shape: Amounts
    nodes: int


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
    #: Group → what it has on its way, of this pool.
    coming: Mapping[str, ComingNodes] = {}
    #: Nodes that an operator has drained: they count as wanted, and take no work.
    aside: int = 0
    #: Other groups with bounds of this pool.
    peers: Collection[str] = ()

    @property
    def late(self) -> list[float]:
        """Ages of the nodes that are overdue."""
        return [age for age in self.starting if age > OVERDUE * self.start_seconds]


@dataclass
class SeenGroup:
    """An elastic group as it was seen last, with the number of nodes that was decided then."""

    name: str
    spec: NodeGroupSpec
    sight: GroupSight
    at: float
    wanted: int

    @property
    def most(self) -> int:
        """Most nodes that take work."""
        return max(0, (self.spec.max_count or 0) - self.sight.aside)

    @property
    def base(self) -> int:
        """Nodes that take work once all that was decided has joined."""
        return max(0, self.wanted - self.sight.aside)

    @property
    def ready(self) -> int:
        """Nodes that take work now."""
        return min(self.sight.ready, self.base)

    def expected(self, now: float) -> list[tuple[float, int]]:
        """Return the nodes of the group over time without a decision; what is overdue is expected at once."""
        found = [(0.0, self.ready)]
        if self.base > self.ready:
            # Those that are asked for in this pass, or before.
            age = max(self.sight.starting, default=0.0) + now - self.at
            found.append((max(1.0, self.sight.start_seconds - age), self.base))
        return found

    def awaited(self, now: float) -> list[tuple[float, int]]:
        """Return the same as another group counts on it: without nodes that are overdue."""
        found = self.expected(now)
        late = len(self.sight.late)
        if len(found) == 1 or not late:
            return found
        nodes = self.base - late
        return [*found[:1], (found[1][0], nodes)] if nodes > self.ready else found[:1]


def shape_of(spec: NodeGroupSpec) -> dict[str, int]:
    """Return what a node of a group offers; without memory where that is what its machine has."""
    shape = {"cpu": spec.cpus * MILLI}
    if spec.gpus:
        shape["gpu"] = spec.gpus * MILLI
    if spec.memory_bytes:
        shape["memory"] = spec.memory_bytes
    return shape


def joined_path(paths: Sequence[Sequence[tuple[float, int]]]) -> tuple[NodesFrom, ...]:
    """Return the paths of all groups as one."""
    moments = sorted({at for path in paths for at, _ in path})
    return tuple(
        NodesFrom(moment, tuple([n for at, n in path if at <= moment][-1] for path in paths))
        for moment in moments
    )


def load_of(
    groups: Sequence[SeenGroup], demand: PoolDemand, coming: Mapping[str, ComingNodes],
    arrivals: Sequence[ArrivingActions],
) -> PoolLoad:  # fmt: skip
    """Return the load of the pool of ``groups``."""
    shapes: list[Amounts] = [shape_of(group.spec) for group in groups]
    names = {group.name: number for number, group in enumerate(groups)}
    other_counts: dict[int, int] = {}
    bars = demand.nodes or _bars(groups, demand)
    there: list[tuple[int, NodesAlike]] = []
    known: dict[object, int] = {}
    for bar in (*bars, *_on_their_way(names, coming)):
        shape = names.get(bar.begins)
        if shape is None:
            key = tuple(sorted((k, n if k != _MEMORY else n.bit_length()) for k, n in bar.capacity.items()))  # fmt: skip
            shape = known.get(key)
            if shape is None:
                shape = known[key] = len(shapes)
                shapes.append(bar.capacity)
            other_counts[shape] = other_counts.get(shape, 0) + bar.count
        there.append((shape, bar))
    others = tuple(other_counts[shape] for shape in range(len(groups), len(shapes)))
    empty = PoolLoad(demand.rows, arrivals, shapes, len(groups), others)
    places = [_place(empty, shape, bar) for shape, bar in there]
    return PoolLoad(demand.rows, arrivals, shapes, len(groups), others, places, demand.trajectories)


def _place(load: PoolLoad, shape: int, bar: NodesAlike) -> Place:
    free = dict(bar.free)
    if _MEMORY not in load.shapes[shape]:  # what the group's nodes have is not known
        free.pop(_MEMORY, None)
    chunks = bar.chunks
    counts = (chunks[0], chunks[1], chunks[2], chunks[3]) if len(chunks) == _LEVELS else None
    return Place(shape, bar.count, load.vector(free), counts)


def _on_their_way(
    elastic: Mapping[str, int], coming: Mapping[str, ComingNodes]
) -> Iterable[NodesAlike]:
    for group, nodes in coming.items():
        if group not in elastic and nodes.nodes:
            shape = dict(nodes.shape)
            yield NodesAlike("", nodes.nodes, shape, shape)


def _bars(groups: Sequence[SeenGroup], demand: PoolDemand) -> list[NodesAlike]:
    """Return the nodes that are there where only sums are known."""
    names = {group.name for group in groups}
    found = [
        (group.name, group.sight.ready, shape_of(group.spec))
        for group in groups
        if group.sight.ready
    ]
    found += [(begins, 1, have) for begins, have in demand.capacity.items() if begins not in names]
    total: dict[str, int] = {}
    for _, count, have in found:
        for kind, amount in have.items():
            total[kind] = total.get(kind, 0) + count * amount
    held = _running(demand.rows)
    held[_MEMORY] = demand.memory_held

    def free(kind: str, amount: int) -> int:
        return amount - amount * held.get(kind, 0) // max(1, total[kind])

    return [
        NodesAlike(begins, count, dict(have), {kind: free(kind, n) for kind, n in have.items()})
        for begins, count, have in found
    ]


def _running(rows: Iterable[DemandRow]) -> dict[str, int]:
    held: dict[str, int] = {}
    for row in rows:
        for kind, amount in row.needs.items():
            held[kind] = held.get(kind, 0) + row.running * amount
    return held
