"""Policy ``paper``: elastic scheduling of ARL-Tangram (§4.2, Algorithms 1 to 3)."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.policies.eviction import evict
from scheduler.core.policies.group import Arrangement, Group, at_smallest
from scheduler.core.policies.protocol import Policy
from scheduler.core.policies.registry import register

#: The paper: "setting depth = 2 or 3 is sufficient".
DEPTH = 2


@register("paper")
@dataclass(frozen=True)
class Paper(Policy):
    """Greedy eviction over the best allocation of the candidates.

    A group without known elasticity is granted whole, at smallest counts (Algorithm 1, lines 5 and
    6). Cost and departures: `eviction`, `dp_arrange`, `estimate`. The paper does not say how
    restores enter the allocation of GPUs (§5.3); here they are part of a call's duration at each
    count, before the dynamic program. `FreeRestores` is the literal reading.
    """

    depth: int = DEPTH
    name: str = "paper"

    arranges = True
    takes_turns = False

    def arrange(self, group: Group) -> Arrangement:
        """Return the arrangement of Algorithm 1."""
        return evict(group, self.depth) if group.elastic else at_smallest(group)


@register("paper(free restores)")
@dataclass(frozen=True)
class FreeRestores(Paper):
    """`Paper` with the durations of §4.1 alone: counts are chosen as if restores took no time."""

    name: str = "paper(free restores)"

    charges_restores = False
