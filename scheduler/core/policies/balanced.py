"""Policy ``balanced``: as ``paper``, with each grant capped at a fair share.

The paper's policy gives wide grants to the few actions that are present just before a burst, which
hold them while many actions wait: then it loses to a fixed degree of parallelism. Here no grant
exceeds

    ⌈(units that inelastic actions do not need) / (elastic actions in the system)⌉,

running ones included, so that a grant fits the load of the system and not that of the queue's head
at one moment. `Group.fair_share` carries the cap; without it no grant is capped.

Nor is a grant below the largest count whose efficiency E(m) is at least `EFFICIENT`: the scan admits
at it. Up to there hardly any unit is wasted, so waiting for these units and finishing early beats
holding one unit for long, under low load too: where speedup is linear, running actions one after the
other beats running all at once. The exception is a crowd (`pool_policies.crowded`): when more
actions wait than there are units, each percent lost delays all of them, and the smallest count
admits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from domain.elasticity import Elasticity
from domain.resources import UnitSet
from scheduler.core.policies.eviction import evict
from scheduler.core.policies.group import Arrangement, Group, at_smallest
from scheduler.core.policies.protocol import Policy
from scheduler.core.policies.registry import register

DEPTH = 3
#: Least E(m) of a count that wastes few units.
EFFICIENT = 0.9


@register("balanced")
@dataclass(frozen=True)
class Balanced(Policy):
    """Greedy eviction with a cap on each grant. Cost as `Paper`, plus O(n) for the caps."""

    depth: int = DEPTH
    name: str = "balanced"

    arranges = True
    caps_grants = True

    def admit_count(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the largest efficient count; the smallest count without a profile."""
        return units[0] if elasticity is None else efficient_count(units, elasticity)

    def arrange(self, group: Group) -> Arrangement:
        """Return the best arrangement without a grant above the fair share."""
        if not group.elastic:
            return at_smallest(group)
        if group.fair_share is None:
            return evict(group, self.depth)
        most = group.fair_share
        candidates = [each.capped(most) for each in group.candidates]
        behind = [each.capped(most) for each in group.behind[:1]]  # the others take the smallest
        capped = replace(group, candidates=candidates, behind=[*behind, *group.behind[1:]])
        return evict(capped, self.depth)


@lru_cache(maxsize=4096)
def efficient_count(units: UnitSet, elasticity: Elasticity) -> int:
    """Return the largest count with E(m) of at least `EFFICIENT`, else the smallest count."""
    counts = (count for count in reversed(units) if elasticity.efficiency(count) >= EFFICIENT)
    return next(counts, units[0])
