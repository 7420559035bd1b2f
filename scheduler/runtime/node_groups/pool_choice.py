"""Choices among the elastic groups of one pool: which one grows, and which ones have nodes too many. Pure.

Price. Nodes are worth it if the mean ACT falls by at least `ELASTICITY` percent for each percent that they add to the cost of the pool
(`PoolChoice.needed`). A node of 32 cores beside 40 has to bring more than a node of 8 beside 200: so cores are spent while many actions are there.

Growth. For each class of actions (`pool_load`), a group grows by the fewest nodes that bring `MOST_OF_GAIN` of what all nodes that it may have would
bring, if they are worth it, else by one node if that is. Of several groups that could, the one with the most gain for its cost grows: the others see
its nodes on their way at the next look. A group whose nodes are overdue is left out. The gain of a class of few actions counts less, unless all
groups take it.

Surplus. A group keeps the fewest nodes with which no group would gain `KEEP` of what is needed, from all its nodes or from one; what is beyond that
already must not rise. Groups whose nodes cost more for their size give up theirs first: they count with what was enough for the whole window, the
others with what they have. So groups do not give up nodes on account of each other, and none keeps nodes for what another one gives up at some
looks only. No group grows that would give the nodes up again: under a constant load none grows after one shrank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from operator import itemgetter, mul
from typing import Final, NamedTuple

from contract.pool_demands import PoolDemand
from domain.node_groups import CORES_OF_GPU
from domain.resources import MILLI
from scheduler.runtime.node_groups.act_estimate import Acts, PoolEstimate
from scheduler.runtime.node_groups.pool_load import Amounts, NodesFrom, Takers
from scheduler.runtime.node_groups.pool_sight import SeenGroup, joined_path

#: Percent by which the mean ACT must fall for each percent of cost; and the least and the most that is needed, as shares of the mean ACT.
ELASTICITY: Final = 0.17
LEAST_GAIN: Final = 0.03
MOST_GAIN: Final = 0.2
#: Part of what growth needs, for which nodes are kept.
KEEP: Final = 0.5
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
    #: Share of the mean ACT of that class, and what share these nodes have to bring.
    gain: float
    needed: float
    is_worth: bool
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


def _size(shape: Amounts) -> float:
    """Return the relative cost of a node by its size, as `NodeGroupSpec.size_cost`."""
    return (shape.get("cpu", 0) + CORES_OF_GPU * shape.get("gpu", 0)) / MILLI


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
        self._found: dict[int, list[Growth]] = {}
        load = self.estimate.load
        sizes = [_size(shape) for shape in load.shapes]
        price = sum(self.costs) / max(_EPSILON, sum(sizes[: load.groups]))
        fixed = zip(load.others, sizes[load.groups :], strict=True)
        #: Of the nodes of the pool whose number does not change.
        self._fixed_cost = price * sum(count * size for count, size in fixed)

    def needed(self, own: int, more: int, nodes: Sequence[int] | None = None) -> float:
        """Return the share by which so many more nodes of a group must lower a mean ACT; ``nodes``: of each group, else those that it has."""
        there = [group.base for group in self.groups] if nodes is None else nodes
        cost = self._fixed_cost + sum(map(mul, self.costs, there))
        added = more * self.costs[own]
        share: float = 1.0 - (1.0 + added / max(_EPSILON, cost)) ** -ELASTICITY
        return min(MOST_GAIN, max(LEAST_GAIN, share))

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
        found = self._found.get(own)
        if found is None:
            found = self._found[own] = self._growths(own)
        return found

    def _growths(self, own: int) -> list[Growth]:
        group, estimate = self.groups[own], self.estimate
        if group.base >= group.most:
            return []
        act, best = estimate.acts(self.path(own)), estimate.acts(self.path(own, group.most))
        found = []
        for takers, before in act.items():
            if own in takers:
                all_gain = gain(before, best[takers])
                found.append((-self._weight(takers) * all_gain, self._growth(own, takers, before, all_gain)))  # fmt: skip
        return [growth for _, growth in sorted(found, key=itemgetter(0))]

    def _growth(self, own: int, takers: Takers, before: float, all_gain: float) -> Growth:
        group = self.groups[own]

        def act(nodes: int) -> float:
            return self.estimate.acts(self.path(own, nodes))[takers]

        def is_enough(nodes: int) -> bool:
            return gain(before, act(nodes)) >= MOST_OF_GAIN * all_gain

        def is_worth(nodes: int) -> bool:
            return weight * gain(before, act(nodes)) >= self.needed(own, nodes - group.base)

        nodes, found, weight = group.most, False, self._weight(takers)
        if weight * all_gain >= self.needed(own, 1):
            within = max(1, (group.most - group.base) // _STEPS)
            nodes = fewest(group.base + 1, group.most, is_enough, within=within)
            kept = KEEP * self.needed(own, group.most - group.base)
            if not (found := is_worth(nodes) and weight * all_gain >= kept):
                nodes = group.base + 1
                found = is_worth(nodes)
        after, more = act(nodes), nodes - group.base
        lower = gain(before, after)
        worth = lower / (more * self.costs[own])
        return Growth(takers, more, lower, self.needed(own, more), found, before, after, worth)

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
                if each.takers == growth.takers and each.is_worth and each.worth > most:
                    found, most = group, each.worth
        return found

    def kept(
        self, own: int, demand: PoolDemand, enough: Sequence[int | None], hint: int | None
    ) -> int:
        """Return how many nodes a group keeps; never more than it has and wants.

        ``enough``: to what each group shrinks, as far as it is known: the dearer ones count with that. ``hint``: what was found the last time.
        """
        nodes = [group.base for group in self.groups]
        for other, known in enumerate(enough):
            if known is not None and self._dearness(other) > self._dearness(own):
                nodes[other] = max(0, min(nodes[other], known - self.groups[other].sight.aside))
        limits = self._beyond(nodes)
        least = max(self._least(own, nodes, demand), 0)
        if least >= nodes[own]:
            return nodes[own]

        def is_enough(count: int) -> bool:
            found = self._beyond([*nodes[:own], count, *nodes[own + 1 :]])
            return all(
                each < max(0.0, limit + _EPSILON) for each, limit in zip(found, limits, strict=True)
            )

        return fewest(least, nodes[own], is_enough, hint)

    def acts_with(self, nodes: Sequence[int]) -> Acts:
        """Return the mean ACT of each class with so many nodes of each group, as if they were there."""
        return self.estimate.acts([NodesFrom(0.0, tuple(nodes))])

    def _dearness(self, own: int) -> tuple[float, float, str]:
        group = self.groups[own]
        return self.costs[own] / group.spec.size_cost, self.costs[own], group.name

    def _beyond(self, nodes: Sequence[int]) -> list[float]:
        """Return the most that each group could bring to a class with all its nodes, or with one, beyond that for which they are kept."""
        found = []
        for own, group in enumerate(self.groups):
            most = max(0, group.most - nodes[own])
            all_gain = self._gain_of(own, most, nodes)
            beyond = all_gain - KEEP * self.needed(own, most, nodes)
            one = KEEP * self.needed(own, 1, nodes)
            if most > 1 and all_gain - one > beyond:  # one node brings no more than all
                beyond = max(beyond, self._gain_of(own, 1, nodes) - one)
            found.append(beyond)
        return found

    def _gain_of(self, own: int, more: int, nodes: Sequence[int]) -> float:
        """Return the most that so many more nodes of a group would bring to a class."""
        acts = self.acts_with(nodes)
        best = self.acts_with([*nodes[:own], nodes[own] + more, *nodes[own + 1 :]])
        gains = (
            self._weight(takers) * gain(act, best[takers])
            for takers, act in acts.items()
            if own in takers
        )
        return max(gains, default=0.0)

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
