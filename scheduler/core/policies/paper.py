"""Policy ``paper``: elastic scheduling as ARL-Tangram has it (§4.2, Algorithms 1 to 3)."""

from __future__ import annotations

from dataclasses import dataclass

from domain.elasticity import Elasticity
from domain.resources import UnitSet
from scheduler.core.policies.eviction import evict
from scheduler.core.policies.group import Arrangement, Group, at_smallest

#: The paper: "setting depth = 2 or 3 is sufficient".
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Paper:
    """Greedy eviction over the best allocation of the candidates.

    A group without known elasticity goes whole, at smallest counts (Algorithm 1, lines 5 and 6).
    Cost and departures: `evict`, `arrange`, `estimate`.
    """

    depth: int = DEPTH
    name: str = "paper"
    shares: bool = False

    def admits_at(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the smallest count (Algorithm 1, line 2)."""
        return units[0]

    def arrange(self, group: Group) -> Arrangement:
        """Decide who goes and with what."""
        return evict(group, self.depth) if group.elastic else at_smallest(group)
