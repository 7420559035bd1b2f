"""Policy ``malleable``: actions that declare it are resized while they run.

A grant is no longer a bet on the load to come: whoever arrives takes units from those that run, and
units that come free go to those that remain. The paper cannot do this. Actions that do not declare
it are treated as by `balanced`; what they need at their smallest counts is taken from malleable
ones as well.

Who gets how much. Everybody has at least the smallest count. Beyond it the less work an action has
left, the more units it gets: optimal for the mean completion time of actions that are there
together and get faster as a power k^p of their units is heSRPT (B. Berg, R. Vesilo,
M. Harchol-Balter, Performance Evaluation 144, 2020). Its shares are those that make the sum of

    w(rank) · speed,   w(rank) = rank · (1 − (1 − 1/rank)^(1/(1 − p)))^(1 − p)

largest, the action with the most work left being of rank 1. We hand out units one step at a time
where w · gain is largest, with each action's own profile as speed and p its slope at an equal share.
Work that nobody knows has the middle rank. Profiles of both limits are what one would expect: where
units add up without loss (p = 1) the shortest goes first, where they help little all are alike.

An action counts only up to the width from which on its profile says it gets no faster. A program
with a fixed number of workers runs with as many as its widest count, squeezed onto fewer cores.

Each running action grows at most once in `RESIZE_SECONDS`, and so is shrunk for the sake of shorter
ones; it is shrunk at any time for who would have to wait otherwise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import log
from typing import NamedTuple

from domain.elasticity import Elasticity
from domain.resources import MILLI
from scheduler.core.policies.balanced import Balanced

#: Between two changes of one action that nobody waits for.
RESIZE_SECONDS = 0.25
#: Of an action that says nothing about how it gets faster.
ASSUMED = Elasticity(amdahl=0.9)
#: Speeds of real programs grow slower than their units; nearer to 1, weights are ranks anyway.
_STEEPEST = 0.95


@dataclass(frozen=True, slots=True)
class Malleable(Balanced):
    """`Balanced` for those that are not malleable; `widths` for those that are."""

    name: str = "malleable"


class Profile(NamedTuple):
    """What more units do for an action."""

    #: Rising milli-units, up to the count from which on more of them gain nothing.
    counts: tuple[int, ...]
    #: From each count on: the most speed per milli-unit that some larger count gains.
    gains: tuple[float, ...]
    #: From each count to the next: p, had speeds been a power k^p.
    powers: tuple[float, ...]

    def power(self, milli: float) -> float:
        """Return p at so many milli-units."""
        return self.powers[max(0, min(len(self.powers), bisect_right(self.counts, milli)) - 1)]


class Share(NamedTuple):
    """An action that units are shared out to."""

    profile: Profile
    #: T_ori that it has still to work off; None: nobody knows.
    left_seconds: float | None
    #: Whose allowance its units come from.
    purse: str = ""


@lru_cache(maxsize=4096)
def profile_of(counts: tuple[int, ...], elasticity: Elasticity | None) -> Profile:
    """Return the profile of an action with these counts; without an elasticity all of them count."""
    assumed = elasticity is None
    each = ASSUMED if elasticity is None else elasticity
    speeds = [each.efficiency(count) * count / MILLI for count in counts]
    useful = len(counts) if assumed else speeds.index(max(speeds)) + 1
    points = list(zip(counts[:useful], speeds, strict=False))
    gains = tuple(
        max((faster - speed) / (wider - count) for wider, faster in points[index + 1 :])
        for index, (count, speed) in enumerate(points[:-1])
    )
    powers = tuple(
        min(_STEEPEST, max(0.0, log(after / before) / log(wider / count)))
        for (count, before), (wider, after) in pairwise(points)
    )
    return Profile(counts[:useful], gains, powers)


def widths(
    shares: Sequence[Share], total: int, purses: Mapping[str, int] | None = None
) -> list[int]:
    """Return how wide each of them is when ``total`` milli-units are shared out.

    ``purses`` say how many milli-units those of one purse may have beyond their smallest counts
    together, where that is limited. Everybody has at least the smallest count, which together fit into ``total``. Of equal gains
    the narrowest one's comes first, then the earliest one's. O(s · log n) for s steps in all.
    """
    counts = [share.profile.counts for share in shares]
    left = total - sum(each[0] for each in counts)
    if left <= 0 or not shares:
        return [each[0] for each in counts]
    weights = _weights(shares, total / len(shares))
    at, rest = [0] * len(shares), dict(purses or {})
    heap = [
        (-weights[index] * share.profile.gains[0], counts[index][0], index)
        for index, share in enumerate(shares)
        if share.profile.gains
    ]
    heapify(heap)
    while heap and left > 0:
        index = heap[0][2]
        have, gains = at[index], shares[index].profile.gains
        following = counts[index][have + 1]
        step = following - counts[index][have]
        purse = shares[index].purse
        if step > left or step > rest.get(purse, left):  # it does not fit: it stays as it is
            heappop(heap)
            continue
        left -= step
        if purse in rest:
            rest[purse] -= step
        at[index] = have + 1
        if have + 1 < len(gains):
            heapreplace(heap, (-weights[index] * gains[have + 1], following, index))
        else:
            heappop(heap)
    return [each[k] for each, k in zip(counts, at, strict=True)]


def _weights(shares: Sequence[Share], equal: float) -> list[float]:
    """Return w of each, with p at an ``equal`` share of so many milli-units."""
    weights = [(len(shares) + 1) / 2] * len(shares)
    known = [
        (-share.left_seconds, -index)
        for index, share in enumerate(shares)
        if share.left_seconds is not None
    ]
    for rank, (_, index) in enumerate(sorted(known), start=1):
        profile = shares[-index].profile
        if profile.powers:
            rest = 1.0 - profile.power(equal)
            weights[-index] = rank * (1.0 - (1.0 - 1.0 / rank) ** (1.0 / rest)) ** rest
    return weights
