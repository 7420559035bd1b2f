"""Choices among the elastic groups of one pool: which one grows, and which ones have nodes too many. Pure.

Growth. For each class of actions (`pool_load`) that would gain `GROW_GAIN` from all nodes that a group may have, the group grows by the fewest
that bring `MOST_OF_GAIN` of that. Of several groups that could, the one with the most gain for its cost grows: the others see its nodes on
their way at the next look. A group whose nodes are overdue is left out. The gain of a class of few actions counts less, unless all groups take it.

Surplus. The groups are visited by what their nodes cost for their size, the dearest first. Each keeps the fewest nodes with which no group, the
ones visited before with what they keep, would gain `SHRINK_GAIN` from all its nodes; a gain that is larger already must not rise. So groups do not
give up nodes on account of each other, and under a constant load none of them grows after one shrank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from contract.pool_demands import PoolDemand
from scheduler.runtime.node_groups.act_estimate import Acts, PoolEstimate
from scheduler.runtime.node_groups.pool_load import NodesFrom, Takers
from scheduler.runtime.node_groups.pool_sight import SeenGroup, joined_path

#: Shares of the mean ACT.
GROW_GAIN: Final = 0.06
SHRINK_GAIN: Final = 0.03
MOST_OF_GAIN: Final = 0.8
#: Share of the memory of nodes that environments may hold after a group shrank.
_MEMORY_SHARE: Final = 0.9
_MEMORY: Final = "memory"
_EPSILON: Final = 1e-9
#: Actions of a class from which on its gain counts by more than half.
_FEW_ACTIONS: Final = 5.0
#: The fewest nodes are found to such a part of those that the bounds allow.
_STEPS: Final = 32


class Growth(NamedTuple):
    """What further nodes of a group would bring to a class of actions."""

    takers: Takers
    #: Beyond those that are there and on their way.
    nodes: int
    #: Share of the mean ACT of that class, with these nodes; and with all, weighted by how many actions it has.
    gain: float
    all_gain: float
    before: float
    after: float
    #: Gain for each unit of cost.
    worth: float


def gain(act: float, better: float) -> float:
    """Return the share of ``act`` by which ``better`` is lower."""
    return 1.0 - better / act if act > 0 else 0.0


def fewest(
    least: int,
    most: int,
    is_enough: Callable[[int], bool],
    hint: int | None = None,
    within: int = 1,
) -> int:
    """Return the fewest nodes from ``least`` on that are enough, ``most`` if none is; by bisection.

    ``hint``: what was found the last time, which is looked at first. ``within``: the answer may be less than so many above.
    """
    if hint is not None and least <= hint <= most and least < most:
        if not is_enough(hint):
            least = min(most, hint + 1)
        elif hint == least or not is_enough(hint - 1):
            return hint
        else:
            most = hint - 1
    while most - least >= within:
        middle = (least + most) // 2
        if is_enough(middle):
            most = middle
        else:
            least = middle + 1
    return most


def costs_of(groups: Sequence[SeenGroup]) -> list[float]:
    """Return the cost of a node of each group: as declared if all declare it, else by its size."""
    declared = [group.spec.cost_per_hour for group in groups]
    return declared if all(declared) else [group.spec.size_cost for group in groups]


@dataclass
class PoolChoice:
    """The groups of a pool at one moment."""

    groups: Sequence[SeenGroup]
    estimate: PoolEstimate
    now: float

    def __post_init__(self) -> None:
        self.costs = costs_of(self.groups)

    def path(self, own: int, nodes: int | None = None) -> tuple[NodesFrom, ...]:
        """Return the nodes of all groups over time as group ``own`` expects them, with so many of its own from its start time on."""
        paths = [
            group.expected(self.now) if number == own else group.awaited(self.now)
            for number, group in enumerate(self.groups)
        ]
        if nodes is not None:
            start = self.groups[own].sight.start_seconds
            before = [each for each in paths[own] if each[0] < start]
            paths[own] = [*before, (start, nodes)]
        return joined_path(paths)

    def growths(self, own: int) -> list[Growth]:
        """Return what further nodes of a group would bring, by class; those with most gain first."""
        group, estimate = self.groups[own], self.estimate
        if group.base >= group.most:
            return []
        act, best = estimate.acts(self.path(own)), estimate.acts(self.path(own, group.most))
        found = []
        for takers, before in act.items():
            if own in takers:
                all_gain = gain(before, best[takers])
                found.append(self._growth(own, takers, before, all_gain))
        return sorted(found, key=lambda each: -each.all_gain)

    def _growth(self, own: int, takers: Takers, before: float, all_gain: float) -> Growth:
        group = self.groups[own]

        def act(nodes: int) -> float:
            return self.estimate.acts(self.path(own, nodes))[takers]

        def is_enough(nodes: int) -> bool:
            return gain(before, act(nodes)) >= MOST_OF_GAIN * all_gain

        nodes, weighted = group.most, self._weight(takers) * all_gain
        if weighted >= GROW_GAIN:
            within = max(1, (group.most - group.base) // _STEPS)
            nodes = fewest(group.base + 1, group.most, is_enough, within=within)
        after = act(nodes)
        lower, more = gain(before, after), nodes - group.base
        worth = lower / (more * self.costs[own])
        return Growth(takers, more, lower, weighted, before, after, worth)

    def _weight(self, takers: Takers) -> float:
        """Return the weight of a class' gain: below 1 for a few actions that not all groups take."""
        if len(takers) == len(self.groups):
            return 1.0
        count = self.estimate.count(takers)
        return count / (count + _FEW_ACTIONS)

    def better(self, own: int, growth: Growth) -> SeenGroup | None:
        """Return the group that brings more for its cost to the same class; None: there is none."""
        found, most = None, growth.worth * (1 + _EPSILON)
        for other in growth.takers:
            group = self.groups[other]
            if other == own or group.sight.late or group.base >= group.most:
                continue
            for each in self.growths(other):
                if (
                    each.takers == growth.takers
                    and each.all_gain >= GROW_GAIN
                    and each.worth > most
                ):
                    found, most = group, each.worth
        return found

    def kept(self, demand: PoolDemand, hints: Sequence[int | None]) -> list[int]:
        """Return how many nodes each group keeps; never more than it has and wants."""
        nodes = [group.base for group in self.groups]
        limits = self._gains(nodes)
        for own in sorted(range(len(nodes)), key=self._dearness, reverse=True):
            least = max(self._least(own, nodes, demand), 0)
            if least >= nodes[own]:
                continue

            def is_enough(count: int, own: int = own) -> bool:
                found = self._gains([*nodes[:own], count, *nodes[own + 1 :]])
                return all(
                    each < max(SHRINK_GAIN, limit + _EPSILON)
                    for each, limit in zip(found, limits, strict=True)
                )

            nodes[own] = fewest(least, nodes[own], is_enough, hints[own])
        return nodes

    def acts_with(self, nodes: Sequence[int]) -> Acts:
        """Return the mean ACT of each class with so many nodes of each group, as if they were there."""
        return self.estimate.acts([NodesFrom(0.0, tuple(nodes))])

    def _dearness(self, own: int) -> tuple[float, float, str]:
        group = self.groups[own]
        return self.costs[own] / group.spec.size_cost, self.costs[own], group.name

    def _gains(self, nodes: Sequence[int]) -> list[float]:
        """Return the most that each group could bring to a class with all its nodes."""
        acts = self.acts_with(nodes)
        found = []
        for own, group in enumerate(self.groups):
            best = self.acts_with([*nodes[:own], max(nodes[own], group.most), *nodes[own + 1 :]])
            gains = (
                self._weight(takers) * gain(act, best[takers])
                for takers, act in acts.items()
                if own in takers
            )
            found.append(max(gains, default=0.0))
        return found

    def _least(self, own: int, nodes: Sequence[int], demand: PoolDemand) -> int:
        """Return the fewest nodes of a group that hold the environments that there are, beside those of the others."""
        load, spec = self.estimate.load, self.groups[own].spec
        other_nodes = load.all_nodes([*nodes[:own], 0, *nodes[own + 1 :]])
        needed = 1 if demand.trajectories and not any(other_nodes) else 0
        memory = load.shapes[own].get(_MEMORY, 0)
        if memory:
            others = sum(
                count * shape.get(_MEMORY, 0)
                for count, shape in zip(other_nodes, load.shapes, strict=True)
            )
            beyond = demand.memory_held - others * _MEMORY_SHARE
            needed = max(needed, ceil(beyond / (memory * _MEMORY_SHARE)))
        return spec.within(needed) - self.groups[own].sight.aside
