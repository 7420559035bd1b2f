"""Policies of placement by name, as the configuration of a fleet and benchmarks name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from domain.errors import InvalidRequest
from placement.policies.hedged import HedgedPolicy
from placement.policies.paper import PaperPolicy
from placement.policies.plain import ORDERS, ROUTERS, PlainPolicy
from placement.policies.protocol import PlacementPolicy

#: Orders × routers of engines and RL frameworks, as ``rr+cache``.
RIVALS: Final[Mapping[str, Callable[[], PlacementPolicy]]] = {
    f"{order}+{router}": partial(PlainPolicy, order, router)
    for order in ORDERS
    for router in ROUTERS
}
DEFAULT: Final = "hedged"
POLICIES: Final[Mapping[str, Callable[[], PlacementPolicy]]] = {
    DEFAULT: HedgedPolicy,
    "paper": PaperPolicy,
    **RIVALS,
}


def make_policy(name: str = DEFAULT) -> PlacementPolicy:
    """Return a new policy. Raises InvalidRequest for an unknown name."""
    make = POLICIES.get(name)
    if make is None:
        raise InvalidRequest(f"policy {name!r} is not known: give one of {', '.join(POLICIES)}")
    return make()
