"""Cells of sweeps at the paper's size beside the same cells 16 times smaller: do small clusters stand for large ones?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from benchmarks.evaluation.cases import Case, Scale
from benchmarks.evaluation.headline_sweeps import chosen
from benchmarks.evaluation.knobs import Sweep
from benchmarks.evaluation.maps import number
from benchmarks.evaluation.plans import Context
from simulator.figures import Interval


class ScalePair(msgspec.Struct, frozen=True):
    """One ratio, on a small cluster and on one of the paper's size."""

    what: str
    small: Interval
    large: Interval
    #: By which share the large one's mean is above the small one's.
    difference: float

    @property
    def overlaps(self) -> bool:
        """Say whether the intervals over seeds have a number in common."""
        return self.small.low <= self.large.high and self.large.low <= self.small.high


class Check(NamedTuple):
    """One cell of a sweep that is simulated at both sizes."""

    sweep: str
    x: float
    y: float

    def of(self) -> Sweep:
        """Return its sweep."""
        return chosen([self.sweep], small=False)[0]

    def cases(self, scale: Scale) -> list[Case]:
        """Return what must be simulated at ``scale``."""
        return [case for side in self.of().cases(scale, self.x, self.y) for case in side]

    def pair(self, small: Context, large: Context) -> ScalePair:
        """Return both ratios."""
        sweep = self.of()
        first, second = (
            context.ratio(*sweep.cases(context.scale, self.x, self.y), sweep.measure)
            for context in (small, large)
        )
        place = f"{sweep.x.axis.title} {number(self.x)}, {sweep.y.axis.title} {number(self.y)}"
        return ScalePair(f"{sweep.title}; {place}", first, second, second.mean / first.mean - 1)


#: Of each workload whose clusters shrink: where the baseline waits for places, where it does not, and limits of APIs.
CHECKS: Final = (
    Check("coding-pods", 110, 0.2),
    Check("coding-rewards", 0.5, 4),
    Check("search-limits", 64, 0.02),
)


def pairs(
    small: Context, large: Context, checks: Sequence[Check] = CHECKS
) -> tuple[ScalePair, ...]:
    """Return the cells at both sizes."""
    return tuple(check.pair(small, large) for check in checks)
