"""Drawings of a selector: relative speed of two degrees by context and responses, and contexts over time. Pure.

Pages have no inline style: the map is a table whose cells have a class, and contexts are SVG with attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from contract.selector_status import LoadView
from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    ProfileCell,
    SelectorStage,
    StageLoad,
)

#: Width and height of the plot of contexts over time.
PLOT: Final = (600, 180)
#: Speedups, as fractions, from which a cell has the next stronger colour.
_STRONGER: Final = (0.02, 0.1, 0.25)


class HeatCell(NamedTuple):
    """Relative speed at one context length and number of responses."""

    text: str
    #: ``worse-3`` … ``same`` … ``better-3``, ``oom`` or ``none``.
    level: str
    #: Measured rates and memory.
    title: str
    #: The load in force is here: the first cell that has at least as much.
    now: bool = False


class HeatRow(NamedTuple):
    """Cells of one number of responses, by context."""

    responses: int
    cells: list[HeatCell]


class HeatMap(NamedTuple):
    """Speed of degree ``other`` over ``base``, as Equation 1 of EARL."""

    base: Parallelism
    other: Parallelism
    contexts: list[int]
    #: Most responses first.
    rows: list[HeatRow]


class ContextPlot(NamedTuple):
    """Contexts of the loads that were decided about, the latest on the right."""

    mean: str
    longest: str
    #: Places of changes of the degree, with the new one.
    switches: list[tuple[float, str]]
    #: Place and tokens of each tick.
    ticks: list[tuple[float, int]]
    #: Place of the limit; None: there is none, or it is above the plot.
    limit: float | None


def heat_map(
    profile: ParallelismProfile | None,
    stage: SelectorStage,
    base: Parallelism,
    other: Parallelism,
    load: StageLoad | None,
) -> HeatMap | None:
    """Return the map of two degrees; None: neither was measured."""
    cells = {
        (cell.parallelism, cell.context, cell.responses): cell
        for cell in (() if profile is None else profile.cells)
        if cell.stage is stage and cell.parallelism in (base, other)
    }
    if not cells:
        return None
    contexts = sorted({context for _, context, _ in cells})
    counts = sorted({count for _, _, count in cells})
    here = (
        None if load is None else (_first(contexts, load.context), _first(counts, load.responses))
    )
    rows = [
        HeatRow(
            count,
            [
                _cell(cells.get((base, at, count)), cells.get((other, at, count)), (at, count) == here)
                for at in contexts
            ],
        )
        for count in reversed(counts)
    ]  # fmt: skip
    return HeatMap(base, other, contexts, rows)


def _first(measured: Sequence[int], value: float) -> int | None:
    return next((each for each in measured if each >= value), None)


def _cell(base: ProfileCell | None, other: ProfileCell | None, now: bool) -> HeatCell:
    title = "; ".join(_facts(each) for each in (base, other) if each is not None)
    failed = [str(each.parallelism) for each in (base, other) if each is not None and each.oom]
    if failed:
        return HeatCell(f"OOM {', '.join(failed)}", "oom", title, now)
    before = None if base is None else base.tokens_per_gpu_second
    after = None if other is None else other.tokens_per_gpu_second
    if before is None or after is None:
        return HeatCell("–", "none", title or "not measured", now)
    gain = after / before - 1.0
    strength = sum(abs(gain) >= least for least in _STRONGER)
    side = "better" if gain > 0 else "worse"
    return HeatCell(f"{gain:+.0%}", f"{side}-{strength}" if strength else "same", title, now)


def _facts(cell: ProfileCell) -> str:
    memory = "" if cell.peak_memory_bytes is None else f", {cell.peak_memory_bytes / 2**30:.1f} GiB"
    if cell.tokens_per_gpu_second is None:
        return f"{cell.parallelism}: out of memory{memory}"
    return (
        f"{cell.parallelism}: {cell.tokens_per_gpu_second:,.0f} tokens per GPU and second{memory}"
    )


def context_plot(loads: Sequence[LoadView], limit: int | None) -> ContextPlot | None:
    """Return the contexts of one stage; None without any."""
    if not loads:
        return None
    highest = max(each.load.longest for each in loads)
    top = _round_up(highest)
    width, height = PLOT

    def across(number: int) -> float:
        return round(width * (number + 0.5) / len(loads), 1)

    def down(tokens: float) -> float:
        return round(height * (1 - tokens / top), 1)

    def line(values: Sequence[float]) -> str:
        return " ".join(f"{across(at)},{down(value)}" for at, value in enumerate(values))

    changed = [
        (across(at), str(each.parallelism))
        for at, each in enumerate(loads)
        if each.parallelism is not None and at and loads[at - 1].parallelism != each.parallelism
    ]
    return ContextPlot(
        line([each.load.context for each in loads]),
        line([each.load.longest for each in loads]),
        changed,
        [(down(part * top / 4), round(part * top / 4)) for part in range(5)],
        down(limit) if limit is not None and limit <= top else None,
    )


def _round_up(tokens: float) -> int:
    """Return the next power of two, or that and a half, that is not below ``tokens``."""
    power = 4
    while power < tokens:
        power = power * 3 // 2 if power * 3 // 2 >= tokens and power % 2 == 0 else power * 2
    return power
