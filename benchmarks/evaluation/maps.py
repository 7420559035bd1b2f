"""Maps of a headline: its ratio over two parameters, and the sentence that follows from them.

A cell lies in the print when both of its values are in the range that the paper's print allows. Only those
cells decide the sentence; the others show what the print rules out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.figures import Interval


@dataclass(frozen=True)
class Axis:
    """The values of one parameter, in rising order, and what the print says of it."""

    title: str
    values: tuple[float, ...]
    #: The print allows values from ``low`` to ``high``.
    low: float
    high: float
    #: The value that the print names or that follows from it; None where it names none.
    printed: float | None = None

    def allows(self, value: float) -> bool:
        """Say whether ``value`` is in the range that the print allows."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class RatioMap:
    """One headline over two axes."""

    title: str
    #: What the paper prints.
    paper: float
    x: Axis
    y: Axis
    #: (x, y) → how many times the rival's measure is Tangram's, over seeds.
    cells: Mapping[tuple[float, float], Interval]

    def allowed(self) -> dict[tuple[float, float], Interval]:
        """Return the cells that lie in the print."""
        return {
            (x, y): ratio
            for (x, y), ratio in self.cells.items()
            if self.x.allows(x) and self.y.allows(y)
        }


def conclusion(drawn: RatioMap) -> str:
    """Return one sentence: where the printed number holds, or how near the print comes to it.

    It holds in a cell where the ratio of every seed is at least the printed one. Of these the sentence names the
    cell with the smallest ratio.
    """
    allowed = drawn.allowed()
    if not allowed:
        return f"No simulated cell lies in the range that the print allows for {drawn.paper:g}."
    holding = {place: ratio for place, ratio in allowed.items() if ratio.low >= drawn.paper}
    if not holding:
        place = max(allowed, key=lambda each: allowed[each].mean)
        return (
            f"{drawn.paper:g} is not reached in the range that the print allows; the largest is "
            f"{allowed[place]} at {at(drawn, place)}."
        )
    place = min(holding, key=lambda each: holding[each].mean)
    return (
        f"{drawn.paper:g} holds at {at(drawn, place)}, where the ratio is {holding[place]}; it holds in "
        f"{len(holding)} of the {len(allowed)} cells that the print allows."
    )


def at(drawn: RatioMap, place: tuple[float, float]) -> str:
    """Return the values of a cell as words."""
    x, y = place
    return f"{drawn.x.title} {number(x)} and {drawn.y.title} {number(y)}"


def number(value: float) -> str:
    """Return a value with three digits, or all digits of a whole number."""
    return f"{value:,.0f}" if value == round(value) or value >= 1000 else f"{value:.3g}"
