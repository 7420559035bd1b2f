"""Profile: the speedup of an action over its unit counts, as policies that resize running actions use it."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import NamedTuple

from domain.elasticity import Elasticity
from domain.resources import MILLI

#: Elasticity of an action that declares none.
ASSUMED = Elasticity(amdahl=0.9)
#: Largest p: speedup of real programs is below linear, and closer to 1 the weights are ranks anyway.
_STEEPEST = 0.95


class Profile(NamedTuple):
    """Speedup of an action."""

    #: Rising milli-units, up to the count from which more of them gain nothing.
    counts: tuple[int, ...]
    #: By count: the most speed per milli-unit that any larger count gains.
    gains: tuple[float, ...]
    #: By count, up to the next one: p, if speed were a power k^p.
    powers: tuple[float, ...]

    def power(self, milli: float) -> float:
        """Return p at ``milli`` milli-units."""
        return self.powers[max(0, min(len(self.powers), bisect_right(self.counts, milli)) - 1)]


@lru_cache(maxsize=4096)
def profile_of(counts: tuple[int, ...], elasticity: Elasticity | None) -> Profile:
    """Return the profile over ``counts``; without an elasticity all of them are useful."""
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
