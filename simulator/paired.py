"""Comparison of policies over seeds: ratios of equal seeds with an interval, and the share of what is possible.

Each policy meets the same draws with a seed, so policies are compared seed by seed. All of it is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from statistics import mean, stdev
from typing import Final, Generic, TypeVar

from domain.errors import InvalidRequest
from simulator.figures import Interval

#: A mean ACT at most this many times the best rival's is not worse.
NOT_WORSE: Final = 1.02
#: Seeds of a cell.
SEEDS: Final = 3
#: The policy from which the share of the possible is counted.
BASE: Final = "minimum"
#: 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; the last one serves for more.
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

CellT = TypeVar("CellT")


@dataclass(frozen=True)
class PairedRow(Generic[CellT]):
    """A cell, and each policy's mean ACT in simulated seconds, by seed."""

    cell: CellT
    act_seconds: dict[str, list[float]]
    #: Bounds and references, likewise (`simulator.bounds`).
    bounds: dict[str, list[float]] = field(default_factory=dict)

    def best(self, rivals: Iterable[str]) -> str:
        """Return the rival with the least mean over seeds; raise InvalidRequest without rivals."""
        some = list(rivals)
        if not some:
            raise InvalidRequest("there is no rival to compare with")
        return min(some, key=lambda each: mean(self.act_seconds[each]))

    def ratio(self, policy: str, rivals: Iterable[str]) -> Interval:
        """Return the ACT of ``policy`` over that of the best rival: geometric mean over pairs of equal seeds, and its 95 % interval."""
        best = self.best(each for each in rivals if each != policy)
        pairs = zip(self.act_seconds[policy], self.act_seconds[best], strict=True)
        return geometric([ours / theirs for ours, theirs in pairs])

    def share(self, policy: str, bound: str) -> float | None:
        """Return which part ``policy`` saves of what ``bound`` saves over `BASE`; None where that is nothing."""
        most, ours, least = (
            mean(each)
            for each in (self.act_seconds[BASE], self.act_seconds[policy], self.bounds[bound])
        )
        return (most - ours) / (most - least) if most > least else None


def geometric(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of paired ``ratios`` with its 95 % interval by Student's t; of one ratio, all numbers."""
    logs = [log(each) for each in ratios]
    middle = mean(logs)
    if len(logs) < 2:
        return Interval(exp(middle), 0.0, inf)
    degrees = min(len(logs) - 1, len(_STUDENT))
    half = _STUDENT[degrees - 1] * stdev(logs) / sqrt(len(logs))
    return Interval(exp(middle), exp(middle - half), exp(middle + half))


def worse(
    rows: Iterable[PairedRow[CellT]], policy: str, rivals: Sequence[str]
) -> list[tuple[PairedRow[CellT], Interval]]:
    """Return the rows in which ``policy`` is worse than its best rival, with the ratio.

    Worse: by more than `NOT_WORSE`, with an interval that excludes 1.
    """
    found = [(row, row.ratio(policy, rivals)) for row in rows]
    return [(row, ratio) for row, ratio in found if ratio.mean > NOT_WORSE and ratio.low > 1.0]


def above(
    rows: Iterable[PairedRow[CellT]], policy: str, rivals: Sequence[str]
) -> list[tuple[PairedRow[CellT], Interval]]:
    """Return the rows in which the ratio is above `NOT_WORSE`, whether or not seeds agree."""
    found = [(row, row.ratio(policy, rivals)) for row in rows]
    return [(row, ratio) for row, ratio in found if ratio.mean > NOT_WORSE]
