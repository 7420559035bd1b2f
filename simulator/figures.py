"""Figures as values that become JSON, and their plots as inline SVG.

A figure has series of intervals over seeds. Its plot needs no script, no font and no file beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import msgspec

WIDTH, HEIGHT = 680, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 16, 44
#: Okabe and Ito: distinct for colour-blind readers.
COLOURS: Final = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#999999",
)  # fmt: skip
MARKS: Final = ("circle", "square", "diamond")
#: A system looks the same in every figure, ours in the strongest colours; others take what is left.
COLOUR_OF: Final = {
    "paper": "#0072b2", "balanced": "#009e73", "malleable": "#d55e00", "minimum": "#56b4e9",
    "fixed(4)": "#cc79a7", "fixed(16)": "#8c5a9e", "kubernetes": "#8a8a8a",
    "kubernetes(110)": "#b8860b", "kubernetes(timeouts)": "#7a5c00", "kubernetes(memory)": "#5c5c5c", "sglang(4)": "#8a8a8a", "sglang(8)": "#8a8a8a",
    "serverlessllm": "#b8860b", "unmanaged": "#8a8a8a",
}  # fmt: skip
#: Our policies; what is claimed of the first one is what the paper claims.
OURS: Final = ("paper", "balanced", "malleable")
#: Phases have one colour on every page, in both themes; other readers of a plot get the fallback.
PHASES: Final = {
    "queue": "var(--queue, #634cc4)", "overhead": "var(--over, #bd5a94)",
    "execution": "var(--exec, #0d8ba2)",
}  # fmt: skip
#: Percentiles are quantities: slate, the darker the higher.
QUANTITIES: Final = {
    "p50": "var(--q3, #7890a8)", "p95": "var(--q4, #46637f)", "p99": "var(--q5, #1a3147)",
}  # fmt: skip


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds, with the smallest and the largest."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


class Series(msgspec.Struct, frozen=True):
    """One line, or one colour of bars."""

    name: str
    points: tuple[tuple[float | str, Interval], ...]


class Claim(msgspec.Struct, frozen=True):
    """A statement of the paper beside the simulated result."""

    what: str
    #: As the paper prints it; None where it prints no number, or says nothing.
    paper: str | None
    ours: Interval
    note: str = ""
    #: ``higher`` or ``lower``: which way is better than the paper; empty where neither is.
    better: str = ""
    #: What was put in, so that it cannot be reached: it has no verdict.
    is_input: bool = False

    @property
    def verdict(self) -> str:
        """Say how ours stands to the number that the paper prints; empty where that says nothing."""
        return self.against(self.paper)

    def against(self, paper: str | None) -> str:
        """Say how ours stands to what the paper prints of its own policy. Reached or short is said where all seeds agree."""
        found = re.search(r"\d+(\.\d+)?", paper or "")
        if found is None or not self.better or self.is_input:
            return ""
        wanted, sign = float(found[0]), 1 if self.better == "higher" else -1
        over = [sign * (value - wanted) >= 0 for value in (self.ours.low, self.ours.high)]
        if all(over):
            return "reached"
        if any(over):
            return "undecided: the seeds are on both sides"
        return f"falls short: {self.ours.mean / wanted:.2f} times the paper's"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure or table of the paper, simulated again."""

    id: str
    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    claims: tuple[Claim, ...] = ()
    notes: str = ""
    kind: str = "lines"
    log_y: bool = False


def interval(values: Iterable[float]) -> Interval:
    """Return the mean of ``values`` and their bounds."""
    known = list(values)
    return Interval(sum(known) / len(known), min(known), max(known))


def plot(figure: Figure) -> str:
    """Return the plot of ``figure``."""
    body = _bars(figure) if figure.kind == "bars" else _lines(figure)
    label = escape(f"{figure.title}; {figure.y} by {figure.x}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'fill="currentColor" aria-label="{label}">'
        f"<title>{label}</title>{body}</svg>"
    )


class _Scale:
    """From values to pixels, with the ticks between them."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool) -> None:
        self._log = log and low > 0
        self._start, self._end = start, end
        if self._log:
            low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        if high <= low:
            high = low + 1.0
        self._low, self._high = self._of(low), self._of(high)
        self.ticks = self._decades() if self._log else _steps(low, high)

    def _of(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def _decades(self) -> list[float]:
        return [10.0**n for n in range(round(self._low), round(self._high) + 1)]


def _steps(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= rough)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _lines(figure: Figure) -> str:
    numbers = all(isinstance(x, (int, float)) for each in figure.series for x, _ in each.points)
    places = _places(figure.series)
    position = {x: float(x) if numbers else float(index) for index, x in enumerate(places)}
    xs = list(position.values())
    x = _Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT, log=numbers and max(xs) > 20 * min(xs))
    y = _vertical(figure)
    parts = [_frame(figure, y), _x_labels([(x(position[each]), each) for each in places])]
    known = any(series.name in OURS for series in figure.series)
    for index, series in enumerate(figure.series):
        colour = _colour(index, series.name)
        dots = [(x(position[at]), value) for at, value in series.points]
        path = " ".join(f"{left:.1f},{y(value.mean):.1f}" for left, value in dots)
        dash = "" if series.name in OURS or not known else ' stroke-dasharray="6 3"'
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"{dash} '
                     'stroke-width="2"/>')  # fmt: skip
        parts += [_whisker(left, value, y, colour) for left, value in dots]
        parts += [_mark(index, left, y(value.mean), colour) for left, value in dots]
        parts.append(_legend(index, series.name, colour))
    return "".join(parts)


def _bars(figure: Figure) -> str:
    places = _places(figure.series)
    y = _vertical(figure)
    room = (WIDTH - LEFT - RIGHT) / max(1, len(places))
    width = 0.8 * room / len(figure.series)
    middles = [(LEFT + room * (index + 0.5), each) for index, each in enumerate(places)]
    parts = [_frame(figure, y), _x_labels(middles if len(places) > 1 else [])]
    for index, series in enumerate(figure.series):
        colour = _colour(index, series.name)
        for at, value in series.points:
            left = LEFT + room * (places.index(at) + 0.1) + index * width
            top = y(value.mean)
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{0.9 * width:.1f}" '
                f'height="{max(0.0, HEIGHT - BOTTOM - top):.1f}" fill="{colour}">'
                f"<title>{escape(series.name)}: {value}</title></rect>"
            )
            parts.append(_whisker(left + 0.45 * width, value, y, "currentColor"))
            if len(places) == 1:
                parts.append(_text(left + 0.45 * width, HEIGHT - BOTTOM + 16, f"{value.mean:.3g}"))
        parts.append(_legend(index, series.name, colour))
    return "".join(parts)


def _colour(index: int, name: str) -> str:
    named = COLOUR_OF | PHASES | QUANTITIES
    return named.get(name, COLOURS[index % len(COLOURS)])


def _text(left: float, top: float, text: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="middle">{escape(text)}</text>'


def _places(series: Sequence[Series]) -> list[float | str]:
    """Return every x there is, in the order in which they are named."""
    return list(dict.fromkeys(x for each in series for x, _ in each.points))


def _vertical(figure: Figure) -> _Scale:
    values = [value for each in figure.series for _, value in each.points]
    low = min(value.low for value in values) if figure.log_y else 0.0
    return _Scale(low, max(value.high for value in values), HEIGHT - BOTTOM, TOP,
                  log=figure.log_y)  # fmt: skip


def _frame(figure: Figure, y: _Scale) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = "".join(
        f'<line x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="currentColor" '
        'stroke-opacity=".15"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in y.ticks
    )
    middle = (TOP + bottom) / 2
    return (
        f'{lines}<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" '
        'stroke="currentColor"/>'
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(figure.x)}</text>"
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{escape(figure.y)}</text>"
    )


def _x_labels(places: Sequence[tuple[float, float | str]]) -> str:
    return "".join(
        _text(left, HEIGHT - BOTTOM + 16, f"{x:g}" if isinstance(x, (int, float)) else x)
        for left, x in places
    )


def _whisker(left: float, value: Interval, y: _Scale, colour: str) -> str:
    if value.low == value.high:
        return ""
    low, high = y(value.low), y(value.high)
    return (
        f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>'
    )


def _mark(index: int, left: float, top: float, colour: str) -> str:
    kind = MARKS[index % len(MARKS)]
    if kind == "circle":
        return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="3.5" fill="{colour}"/>'
    turn = f' transform="rotate(45 {left:.1f} {top:.1f})"' if kind == "diamond" else ""
    return (
        f'<rect x="{left - 3:.1f}" y="{top - 3:.1f}" width="6" height="6" fill="{colour}"{turn}/>'
    )


def _legend(index: int, name: str, colour: str) -> str:
    left, top = WIDTH - RIGHT + 14, TOP + 10 + 18 * index
    return (
        _mark(index, left, top - 4, colour)
        + f'<text x="{left + 10}" y="{top}">{escape(name)}</text>'
    )
