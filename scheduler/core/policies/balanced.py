"""Policy ``balanced``: as ``paper``, but nobody takes more than a fair share.

The paper's policy hands out wide grants to the few that are there just before a burst, and those
hold them while the many wait: it loses to a fixed degree of parallelism then. Here no grant passes

    ⌈(units that inelastic actions do not need) / (elastic actions in the system)⌉,

running ones included, so that a grant fits the load that there is and not the one at this moment's
head of the line. `Group.fair_share` carries it; without one nothing is capped.

Nor does a grant come below the largest count whose efficiency E(m) is still `EFFICIENT`: the scan
admits at it. Up to there units are hardly wasted, so it is better to wait for them and then be done
than to hold one unit for very long, also when it is calm again: where units add up without loss, one
after the other beats all at once. The exception is a crowd (`pools.crowded`): when more wait than
there are units, each lost percent makes everybody wait longer, and the smallest count admits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from domain.elasticity import Elasticity
from domain.resources import MILLI, UnitSet
from scheduler.core.policies.eviction import evict
from scheduler.core.policies.group import Arrangement, Group, at_smallest

DEPTH = 3
#: E(m) at which units still count as well used.
EFFICIENT = 0.9


@dataclass(frozen=True, slots=True)
class Balanced:
    """Greedy eviction with a cap on each grant. Cost as `Paper`, plus O(n) for capping."""

    depth: int = DEPTH
    name: str = "balanced"
    shares: bool = True

    def admits_at(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the largest count that is efficient; the smallest one without a profile."""
        return units[0] if elasticity is None else efficient(units, elasticity)

    def arrange(self, group: Group) -> Arrangement:
        """Decide who goes and with what, nobody with more than the fair share."""
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
def efficient(units: UnitSet, elasticity: Elasticity) -> int:
    """Return the largest count with E(m) of at least `EFFICIENT`, else the smallest count."""
    counts = (count for count in reversed(units) if elasticity.efficiency(count) >= EFFICIENT)
    return next(counts, units[0])


def fair_share(units: int, elastic: int) -> int:
    """Return the cap in milli-units for ``units`` milli-units and so many elastic actions."""
    return max(1, -(-max(0, units) // (MILLI * max(1, elastic)))) * MILLI
