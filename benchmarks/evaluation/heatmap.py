"""Heatmaps of ratios as inline SVG, which need no script and no file beside them.

Orange cells reach the printed number with every seed, blue ones with none; the further away, the stronger, on a
logarithmic scale. In grey cells the seeds are on both sides. Cells that the print allows have a border. Dashed lines are values that the print names, and a ring
stands where two of them meet: the paper's point.
"""

from __future__ import annotations

import math
from html import escape
from itertools import pairwise
from typing import Final

from benchmarks.evaluation.maps import Axis, RatioMap, conclusion, number

CELL_WIDTH, CELL_HEIGHT = 92, 44
LEFT, TOP, RIGHT, BOTTOM = 84, 34, 24, 64
#: Okabe and Ito's vermilion and blue, as red, green, blue.
REACHED: Final = (213, 94, 0)
BELOW: Final = (0, 114, 178)
BOTH: Final = (128, 128, 128)
#: A ratio so many times the printed one, or so many times below it, has the strongest colour.
STRONGEST: Final = 10.0


def heatmap(drawn: RatioMap) -> str:
    """Return the map as one SVG element."""
    columns, rows = len(drawn.x.values), len(drawn.y.values)
    width = LEFT + columns * CELL_WIDTH + RIGHT
    height = TOP + rows * CELL_HEIGHT + BOTTOM
    label = escape(f"{drawn.title}; printed: {drawn.paper:g}. {conclusion(drawn)}")
    cells = "".join(_cell(drawn, column, row) for row in range(rows) for column in range(columns))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'fill="currentColor" font-family="sans-serif" font-size="12" aria-label="{label}">'
        f'<title>{label}</title><text x="{LEFT}" y="18">{escape(drawn.title)}</text>'
        f"{cells}{_axes(drawn)}{_printed(drawn)}</svg>"
    )


def _cell(drawn: RatioMap, column: int, row: int) -> str:
    x, y = drawn.x.values[column], drawn.y.values[row]
    ratio = drawn.cells.get((x, y))
    if ratio is None:
        return ""
    left, top = LEFT + column * CELL_WIDTH, _top(drawn, row)
    colour, strength = tint(ratio.mean, drawn.paper)
    if ratio.low < drawn.paper <= ratio.high:
        colour = BOTH
    border = ' stroke="currentColor"' if drawn.x.allows(x) and drawn.y.allows(y) else ""
    where = f"{drawn.x.title} {number(x)}, {drawn.y.title} {number(y)}: {ratio}"
    return (
        f'<rect x="{left + 2}" y="{top + 2}" width="{CELL_WIDTH - 4}" height="{CELL_HEIGHT - 4}" '
        f'fill="rgb{colour}" fill-opacity="{strength:.2f}"{border}><title>{escape(where)}</title></rect>'
        + _text(left + CELL_WIDTH / 2, top + CELL_HEIGHT / 2 + 4, f"{ratio.mean:.3g}")
    )


def tint(ratio: float, paper: float) -> tuple[tuple[int, int, int], float]:
    """Return the colour of a cell and its opacity, from 0.1 to 0.7."""
    apart = (math.log(ratio) - math.log(paper)) / math.log(STRONGEST) if ratio > 0 else -1.0
    return REACHED if ratio >= paper else BELOW, 0.1 + 0.6 * min(1.0, abs(apart))


def place(axis: Axis, value: float) -> float | None:
    """Return where ``value`` lies among the cells of an axis, in cells; None where it is outside.

    Between the centres of two cells it is interpolated on a logarithmic scale where both are above 0.
    """
    known = axis.values
    if not known[0] <= value <= known[-1]:
        return None
    for index, (low, high) in enumerate(pairwise(known)):
        if low <= value <= high:
            if low > 0:
                low, high, value = math.log(low), math.log(high), math.log(value)
            return index + 0.5 + (value - low) / (high - low)
    return 0.5


def _printed(drawn: RatioMap) -> str:
    columns, rows = len(drawn.x.values), len(drawn.y.values)
    across = None if drawn.x.printed is None else place(drawn.x, drawn.x.printed)
    up = None if drawn.y.printed is None else place(drawn.y, drawn.y.printed)
    right, bottom = LEFT + columns * CELL_WIDTH, TOP + rows * CELL_HEIGHT
    left = LEFT + (across or 0.0) * CELL_WIDTH
    top = bottom - (up or 0.0) * CELL_HEIGHT
    parts = []
    if across is not None:
        parts.append(_dashed(left, TOP, left, bottom))
    if up is not None:
        parts.append(_dashed(LEFT, top, right, top))
    if across is not None and up is not None:
        parts.append(
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="6" fill="none" stroke="currentColor" '
            f'stroke-width="2"><title>the paper: {drawn.paper:g}</title></circle>'
        )
    return "".join(parts)


def _dashed(left: float, top: float, right: float, bottom: float) -> str:
    return (
        f'<line x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}" '
        'stroke="currentColor" stroke-dasharray="4 4"/>'
    )


def _axes(drawn: RatioMap) -> str:
    columns, rows = len(drawn.x.values), len(drawn.y.values)
    bottom = TOP + rows * CELL_HEIGHT
    below = [
        _text(LEFT + (column + 0.5) * CELL_WIDTH, bottom + 18, number(value))
        for column, value in enumerate(drawn.x.values)
    ]
    beside = [
        f'<text x="{LEFT - 8}" y="{_top(drawn, row) + CELL_HEIGHT / 2 + 4}" text-anchor="end">'
        f"{escape(number(value))}</text>"
        for row, value in enumerate(drawn.y.values)
    ]
    middle = TOP + rows * CELL_HEIGHT / 2
    titles = (
        _text(LEFT + columns * CELL_WIDTH / 2, bottom + 42, drawn.x.title)
        + f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">'
        f"{escape(drawn.y.title)}</text>"
    )
    return "".join((*below, *beside, titles))


def _top(drawn: RatioMap, row: int) -> int:
    """Return the top of a row: the smallest value is the lowest row."""
    return TOP + (len(drawn.y.values) - 1 - row) * CELL_HEIGHT


def _text(left: float, top: float, text: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="middle">{escape(text)}</text>'
