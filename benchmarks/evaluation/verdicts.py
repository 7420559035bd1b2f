"""Verdicts on printed numbers, computed from intervals over seeds.

An interval reaches a printed number only where all of it does, and misses it only where none of it does; else the
seeds do not decide. The order of the verdicts:

1. *not an outcome*: the simulator is given the number, so it cannot come out.
2. *reached*: at the declared values of the workload.
3. *reached at a stated load*: in a cell of a sweep whose values the paper's print allows.
4. *refuted*: missed at the declared values and in every such cell of the sweeps.
5. *undecided*: the seeds are on both sides, at the declared values or in a cell.
6. *missed at the declared values*: no sweep says more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.evaluation.maps import RatioMap, at
from simulator.figures import Interval


class Side(StrEnum):
    """On which side of a printed number an interval lies."""

    REACHES = "reaches"
    MISSES = "misses"
    BOTH = "both"


class Kind(StrEnum):
    """What is said of a printed number."""

    NOT_AN_OUTCOME = "not an outcome"
    REACHED = "reached"
    REACHED_AT = "reached at a stated load"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    MISSED = "missed at the declared values"
    NOT_SIMULATED = "not simulated"


@dataclass(frozen=True)
class Verdict:
    """What is said of one number, and the sentence that gives its reason."""

    kind: Kind
    reason: str


@dataclass(frozen=True)
class Cell:
    """One cell of a sweep, and on which side of the printed number it is."""

    drawn: RatioMap
    place: tuple[float, float]
    side: Side

    @property
    def ratio(self) -> Interval:
        """Return what came out there."""
        return self.drawn.cells[self.place]

    def __str__(self) -> str:
        return f"{self.ratio} at {at(self.drawn, self.place)}"


def side(found: Interval, wanted: float, *, lower: bool = False) -> Side:
    """Return where ``found`` lies; ``lower``: smaller numbers are better than ``wanted``."""
    low, high = (-found.high, -found.low) if lower else (found.low, found.high)
    goal = -wanted if lower else wanted
    if low >= goal:
        return Side.REACHES
    return Side.MISSES if high < goal else Side.BOTH


def verdict(
    declared: Interval | None, wanted: float, maps: Sequence[RatioMap], *,
    lower: bool = False, is_outcome: bool = True,
) -> Verdict:  # fmt: skip
    """Return the verdict on ``wanted``.

    ``declared`` is what came out at the declared values of the workload, None where it was not simulated. Cells of
    ``maps`` are compared with the number of their own map, since a map of a saving is one of ratios.
    """
    if not is_outcome:
        return Verdict(Kind.NOT_AN_OUTCOME, "The simulator is given this number.")
    where = None if declared is None else side(declared, wanted, lower=lower)
    if where is Side.REACHES:
        return Verdict(Kind.REACHED, f"All seeds reach it at the declared values: {declared}.")
    cells = list(_allowed(maps))
    reaching = [each for each in cells if each.side is Side.REACHES]
    if reaching:
        nearest = min(reaching, key=lambda each: each.ratio.mean)
        count = f"{len(reaching)} of the {len(cells)} cells that the print allows"
        return Verdict(Kind.REACHED_AT, f"{nearest}; all seeds reach it in {count}.")
    if where is None and not cells:
        return Verdict(Kind.NOT_SIMULATED, "")
    return _missed(declared, where, cells)


def _missed(declared: Interval | None, where: Side | None, cells: Sequence[Cell]) -> Verdict:
    """Return the verdict on a number that no interval reaches."""
    both = [each for each in cells if each.side is Side.BOTH]
    if where is Side.BOTH or both:
        nearest = max(both, key=lambda each: each.ratio.mean, default=None)
        shown = str(nearest) if nearest is not None else f"{declared} at the declared values"
        return Verdict(Kind.UNDECIDED, f"The seeds are on both sides: {shown}.")
    if not cells:
        return Verdict(Kind.MISSED, f"No seed reaches it: {declared}; no sweep is stored.")
    largest = max(cells, key=lambda each: each.ratio.mean)
    return Verdict(
        Kind.REFUTED,
        f"No seed reaches it in any of the {len(cells)} cells that the print allows; the largest is {largest}.",
    )


def measured_verdict(loads: Mapping[float, Interval], wanted: float) -> Verdict:
    """Return the verdict on a cost of at most ``wanted`` that was measured at several offered loads."""
    if not loads:
        return Verdict(Kind.NOT_SIMULATED, "No measurement is stored.")
    sides = {load: side(found, wanted, lower=True) for load, found in loads.items()}
    highest = max(loads.values(), key=lambda each: each.high)
    if all(each is Side.REACHES for each in sides.values()):
        named = ", ".join(f"{load:g}" for load in loads)
        return Verdict(
            Kind.REACHED, f"Measured at loads {named}: at most {highest.high:.2%} in any run."
        )
    reached = [load for load, each in sides.items() if each is Side.REACHES]
    if reached:
        named = ", ".join(f"{load:g}" for load in reached)
        return Verdict(
            Kind.REACHED_AT,
            f"Measured: all runs at loads {named}; up to {highest.high:.2%} at others.",
        )
    if all(each is Side.MISSES for each in sides.values()):
        return Verdict(
            Kind.REFUTED,
            f"Measured: at least {min(each.low for each in loads.values()):.2%} in every run.",
        )
    return Verdict(
        Kind.UNDECIDED, f"Measured: the runs are on both sides, up to {highest.high:.2%}."
    )


def _allowed(maps: Sequence[RatioMap]) -> Iterator[Cell]:
    for drawn in maps:
        for place, ratio in drawn.allowed().items():
            yield Cell(drawn, place, side(ratio, drawn.paper))
