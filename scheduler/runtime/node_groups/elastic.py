"""ElasticGroups: the number of nodes of groups with bounds, from what waits. Pure: time is given.

Growth is quick. If more nodes would lower the mean ACT (`act_estimate`) by what they cost (`pool_choice`), the group grows by the
fewest nodes that have most of that; nodes on their way count from when they are expected. It does not grow while
nodes that it asked for are overdue: a blocked engine gets no longer list. Of several groups of a pool one grows.

Shrinking is slow. At each look the fewest nodes are found for which all further ones would gain less than a part of what growth needs. The group
shrinks to the most of those numbers within `WINDOW_SECONDS`: under a constant load, a group that shrank does not grow again.

Each group is decided on when its own pass has looked at its engine, with what was seen of the others at theirs. One that was not seen
for `_FORGET_SECONDS`, as when its engine does not answer, is no elastic group meanwhile: its nodes are like those of others. At the
beginning nothing grows before all have been seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from contract.node_group_reports import NodeGroupEstimate
from contract.pool_demands import PoolDemand
from domain.node_groups import NodeGroupSpec
from scheduler.runtime.node_groups.act_estimate import PoolEstimate
from scheduler.runtime.node_groups.group_reasons import (
    chosen_before,
    engine_is_late,
    lacking,
    nodes_of,
    rounded,
    says_growth,
    says_more,
    waits_for,
)
from scheduler.runtime.node_groups.pool_choice import Growth, PoolChoice
from scheduler.runtime.node_groups.pool_load import ArrivalRates
from scheduler.runtime.node_groups.pool_sight import GroupSight, SeenGroup, load_of

#: A group shrinks to what was enough for so long, and not within so long after it grew.
WINDOW_SECONDS: Final = 300.0
_FORGET_SECONDS: Final = 15.0


@dataclass
class _Memory:
    """What is remembered of a group."""

    began_at: float
    grew_at: float = float("-inf")
    #: When it was looked at → nodes that were enough; rising times.
    enough: deque[tuple[float, int]] = field(default_factory=deque)
    #: The latest of them.
    latest: int | None = None

    @property
    def most(self) -> int | None:
        """What was enough at all looks of the window; None: there were none."""
        return self.enough[0][1] if self.enough else None

    def remember(self, now: float, enough: int) -> None:
        """Note how many nodes were enough; forget what is older than the window."""
        self.latest = enough
        # A number that a later one exceeds can be the most of no window.
        while self.enough and self.enough[-1][1] <= enough:
            self.enough.pop()
        self.enough.append((now, enough))
        while self.enough[0][0] < now - WINDOW_SECONDS:
            self.enough.popleft()


@dataclass
class ElasticPool:
    """The groups with bounds of one pool."""

    _rates: ArrivalRates = field(default_factory=ArrivalRates)
    _began_at: float = float("inf")
    _learned: PoolDemand | None = None
    _learned_at: float = float("-inf")
    _seen: dict[str, SeenGroup] = field(default_factory=dict)
    _memories: dict[str, _Memory] = field(default_factory=dict)

    def decide(
        self, name: str, spec: NodeGroupSpec, sight: GroupSight, now: float
    ) -> NodeGroupEstimate:
        """Return the number of nodes that a group should have now, with the estimate and its reason."""
        base = spec.within(sight.wanted)
        self._began_at = min(self._began_at, now)
        self._seen[name] = SeenGroup(name, spec, sight, now, base)
        self._forget(now)
        memory = self._memory_of(name, now)
        if (
            sight.demand is not self._learned or now != self._learned_at
        ):  # the groups of a pass share a demand
            self._rates.learn(sight.demand.rows, now)
            self._learned, self._learned_at = sight.demand, now
        groups = [self._seen[each] for each in sorted(self._seen)]
        load = load_of(groups, sight.demand, sight.coming, self._rates.arrivals())
        choice = PoolChoice(groups, PoolEstimate(load), now)
        own = next(number for number, group in enumerate(groups) if group.name == name)
        found = _grown(choice, own)
        unseen = sorted(set(sight.peers) - self._seen.keys())
        if found.wanted > base and unseen and now < self._began_at + _FORGET_SECONDS:
            found.wanted, found.reason = base, waits_for(found.reason, unseen[0])
        if found.wanted > base:
            memory.grew_at = now
        if found.more:
            memory.remember(now, base)
        else:
            enough = [self._memories[group.name].most for group in groups]
            kept = choice.kept(own, sight.demand, enough, memory.latest)
            memory.remember(now, kept + sight.aside)
            found = _shrunk(found, choice, own, memory)
        self._seen[name].wanted = found.wanted
        found.start_seconds = round(sight.start_seconds, 1)
        lacks = lacking(sight.demand.rows, load.shapes[own])
        found.reason += f"; {lacks}" if lacks else ""
        return found

    def _memory_of(self, name: str, now: float) -> _Memory:
        """Return what is remembered of a group; nothing of one that was not looked at for long."""
        found = self._memories.get(name)
        if found is None or found.enough[-1][0] < now - WINDOW_SECONDS / 2:
            found = self._memories[name] = _Memory(now)
        return found

    def _forget(self, now: float) -> None:
        for name in [
            name for name, group in self._seen.items() if group.at < now - _FORGET_SECONDS
        ]:
            del self._seen[name]
        for name in [name for name, each in self._memories.items() if name not in self._seen and each.enough[-1][0] < now - WINDOW_SECONDS]:  # fmt: skip
            del self._memories[name]


class ElasticPools:
    """All pools, for one keeper."""

    def __init__(self) -> None:
        self._pools: dict[str, ElasticPool] = {}

    def group(self, name: str) -> ElasticGroup:
        """Return what decides on a group."""
        return ElasticGroup(name, self)

    def pool(self, name: str) -> ElasticPool:
        """Return the groups of a pool."""
        return self._pools.setdefault(name, ElasticPool())


@dataclass
class ElasticGroup:
    """The decisions on one group."""

    name: str
    pools: ElasticPools = field(default_factory=ElasticPools)

    def decide(self, spec: NodeGroupSpec, sight: GroupSight, now: float) -> NodeGroupEstimate:
        """Return the number of nodes that the group should have now, with the estimate and its reason."""
        return self.pools.pool(spec.pool).decide(self.name, spec, sight, now)


def _grown(choice: PoolChoice, own: int) -> NodeGroupEstimate:
    group = choice.groups[own]
    base = group.spec.within(group.sight.wanted)
    found = NodeGroupEstimate(base, act_seconds=rounded(choice.estimate.act(choice.path(own))))
    load = choice.estimate.load
    if not any(own in takers for takers in (*load.waiting, *load.arriving)):
        something = any(row.waiting or row.running for row in load.rows)
        found.reason = f"nothing waits or arrives{' that its nodes take' if something else ''}"
        return found
    if base >= (group.spec.max_count or 0):
        found.reason = f"{base} nodes are max_count"
        return found
    growths = choice.growths(own)
    worthwhile = [each for each in growths if each.is_worth]
    if not worthwhile:
        first = growths[0]
        found.gain = max(0.0, round(first.gain, 2))
        found.reason = f"{says_more(choice, own, first)}, to grow it takes {first.needed:.0%}"
        return found
    _choose(found, choice, own, worthwhile)
    return found


def _choose(found: NodeGroupEstimate, choice: PoolChoice, own: int, growths: list[Growth]) -> None:
    """Let the group grow, unless another one brings more for its cost, or its engine is late."""
    group = choice.groups[own]
    mine = [(each, choice.better(own, each)) for each in growths]
    chosen = [each for each, better in mine if better is None]
    said = max(chosen or growths, key=lambda each: each.nodes)
    found.more, found.gain = said.nodes, round(said.gain, 2)
    says = says_more(choice, own, said)
    if group.sight.late:
        found.reason = engine_is_late(says, group.sight.late)
    elif not chosen:
        better = next(better for each, better in mine if each is said and better is not None)
        found.reason = chosen_before(says, better.name)
    else:
        found.wanted += said.nodes
        found.reason = says_growth(choice, own, said)


def _shrunk(
    found: NodeGroupEstimate, choice: PoolChoice, own: int, memory: _Memory
) -> NodeGroupEstimate:
    """Let the group shrink to what was enough for the whole window."""
    group = choice.groups[own]
    base, enough = found.wanted, group.spec.within(memory.enough[0][1])
    if enough >= base:
        return found
    left = max(memory.began_at, memory.grew_at) + WINDOW_SECONDS - choice.now
    says = f"{nodes_of(enough)} {'is' if enough == 1 else 'are'} enough"
    if left > 0:
        found.reason = f"{says}; the group shrinks when that has held for {WINDOW_SECONDS:.0f} s"
        return found
    nodes = [each.base for each in choice.groups]
    fewer = [*nodes[:own], max(0, enough - group.sight.aside), *nodes[own + 1 :]]
    before, after = choice.acts_with(nodes), choice.acts_with(fewer)
    rises = [after[takers] / act - 1.0 for takers, act in before.items() if own in takers and act > 0]  # fmt: skip
    found.wanted = enough
    found.reason = (
        f"{says} for the last {WINDOW_SECONDS:.0f} s: with {base - enough} fewer the mean ACT"
        f" rises by {max([0.0, *rises]):.1%}"
    )
    return found
