"""Policies of simulated fleets by name: those of production, and single orders of theirs with plain routers for ablations."""

from __future__ import annotations

import math
from typing import Final

from placement.facts import TrajectoryFacts
from placement.policies.hedged import HedgedPolicy, HedgedSettings
from placement.policies.plain import ORDERS, ROUTERS, PlainPolicy
from placement.policies.protocol import FleetView, PlacementPolicy
from placement.policies.registry import make_policy
from placement.priorities import rank_by_tokens

#: The order of `hedged` where caches are: it arranges and moves nothing.
SECONDS: Final = "seconds+cache"
#: The order of the paper's Algorithm 1, by remaining tokens, with a plain router.
TOKENS: Final = "tokens"
_ORDER_ALONE: Final = HedgedSettings(arrange_share=math.inf, moves=None, patience=math.inf)


class TokenOrder(PlainPolicy):
    """Longest remaining first by tokens, and a plain router."""

    def __init__(self, router: str) -> None:
        super().__init__(next(iter(ORDERS)), router)
        self.name = f"{TOKENS}+{router}"

    def rank(self, trajectory: TrajectoryFacts, fleet: FleetView) -> float:
        """Return the remaining tokens."""
        return rank_by_tokens(trajectory.prediction)


def policy_of(name: str) -> PlacementPolicy:
    """Return a new policy. Raises InvalidRequest for an unknown name."""
    if name == SECONDS:
        return HedgedPolicy(_ORDER_ALONE)
    order, _, router = name.partition("+")
    if order == TOKENS and router in ROUTERS:
        return TokenOrder(router)
    return make_policy(name)
