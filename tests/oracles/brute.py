"""Every allocation there is, one by one: what the best one is, for few candidates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tests.oracles.literal import Action


def best_allocation(candidates: Sequence[Action], free: int) -> tuple[float, list[int]]:
    """Return the least sum of durations and its counts.

    Ties: fewest units, then more for earlier arrivals.
    """
    allocations = (
        (
            sum(each.seconds[k] for each, k in zip(candidates, chosen, strict=True)),
            sum(each.units[k] for each, k in zip(candidates, chosen, strict=True)),
            [each.units[k] for each, k in zip(candidates, chosen, strict=True)][::-1],
        )
        for chosen in product(*(range(len(each.units)) for each in candidates))
    )
    seconds, _, backward = min(each for each in allocations if each[1] <= free)
    return seconds, backward[::-1]
