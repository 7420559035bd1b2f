"""Policy ``balanced``: as ``paper``, but nobody takes more than a fair share.

The paper's policy hands out wide grants to the few that are there just before a burst, and those
hold them while the many wait: it loses to a fixed degree of parallelism then. Here no grant passes

    ⌈(units that inelastic actions do not need) / (elastic actions in the system)⌉,

running ones included, so that a grant fits the load that there is and not the one at this moment's
head of the line. `Group.fair_share` carries it; without one nothing is capped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from domain.resources import MILLI, UnitSet
from scheduler.core.policies.evict import evict
from scheduler.core.policies.group import Arrangement, Group, at_smallest

DEPTH = 3


@dataclass(frozen=True, slots=True)
class Balanced:
    """Greedy eviction with a cap on each grant. Cost as `Paper`, plus O(n) for capping."""

    depth: int = DEPTH
    name: str = "balanced"
    shares: bool = True

    def admits_at(self, units: UnitSet) -> int:
        """Return the smallest count."""
        return units[0]

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


def fair_share(units: int, elastic: int) -> int:
    """Return the cap in milli-units for ``units`` milli-units and so many elastic actions."""
    return max(1, -(-max(0, units) // (MILLI * max(1, elastic)))) * MILLI
