"""Numbers of a comparison as text and as attributes of drawings. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tangram_web.compare.comparison import PHASES, SECONDS, SHARE, Comparison, Measure, Unit
from tangram_web.compare.sides import SideRows
from tangram_web.compare.statistics import Column, DifferenceFinding
from tangram_web.dashboard.templatetags.console import MISSING, duration

MINUS: Final = "−"
#: Half the width of the drawing of an interval.
_HALF: Final = 120
#: Ends of that axis, in shares of side A.
_ENDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_CLASSES: Final = {DifferenceFinding.BETTER: "better", DifferenceFinding.WORSE: "worse"}


@dataclass(frozen=True)
class MeasureRow:
    """One row of the table."""

    name: str
    beside: str
    a: str
    b: str
    difference: str
    interval: str
    relative: str
    finding: str
    #: ``better``, ``worse`` or empty.
    judged: str
    #: Path of its interval, of a view box 240 wide; empty: none.
    path: str


def written(value: float | None, unit: Unit) -> str:
    """Return a value as text."""
    if value is None or not math.isfinite(value):
        return MISSING
    scaled = value * unit.scale
    if unit == SECONDS:
        return duration(scaled) if scaled >= 1e-4 else "0 s"
    if unit == SHARE:
        return f"{100 * scaled:.3g} %"
    if abs(scaled) < 0.0005:
        return "0"
    return f"{scaled:,.3g}" if abs(scaled) < 1000 else f"{scaled:,.0f}"


def signed(value: float | None, unit: Unit) -> str:
    """Return a difference as text, with its sign."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = written(abs(value), unit)
    if text == written(0.0, unit):
        return text
    return f"{'+' if value > 0 else MINUS}{text}"


def axis_of(comparison: Comparison) -> float:
    """Return the end of the axis of intervals, as a share of side A."""
    ends = [
        abs(end / each.difference.a)
        for each in comparison.measures
        for end in (each.difference.low, each.difference.high)
        if end is not None and each.difference.a
    ]
    most = float(np.quantile(ends, 0.9)) if ends else 0.0
    return next((end for end in _ENDS if end >= most), _ENDS[-1])


def rows_of(comparison: Comparison) -> list[MeasureRow]:
    """Return the rows of the table."""
    end = axis_of(comparison)
    return [_row(each, end) for each in comparison.measures]


def _row(measure: Measure, end: float) -> MeasureRow:
    found, unit = measure.difference, measure.unit
    interval = MISSING
    if found.low is not None:
        interval = f"{signed(found.low, unit)} to {signed(found.high, unit)}"
    relative = found.relative
    return MeasureRow(
        name=measure.name,
        beside=written(measure.beside, unit),
        a=written(found.a, unit),
        b=written(found.b, unit),
        difference=signed(found.difference, unit),
        interval=interval,
        relative=MISSING if relative is None else signed(round(relative, 3), SHARE),
        finding=str(measure.finding),
        judged=_CLASSES.get(measure.finding, ""),
        path=_path(measure, end),
    )


def _path(measure: Measure, end: float) -> str:
    found = measure.difference
    if found.low is None or found.high is None or not found.a:
        return ""

    def x(value: float) -> float:
        share = value / abs(found.a) / end
        return round(_HALF * (1 + max(-1.0, min(1.0, share))), 1)

    low, middle, high = x(found.low), x(found.difference), x(found.high)
    return f"M{low} 11H{high}M{low} 7v8M{high} 7v8M{middle} 5v12"


def axis_labels(end: float) -> list[str]:
    """Return the labels of the axis of intervals, from left to right."""
    shares = (-end, -end / 2, 0.0, end / 2, end)
    return ["0" if not share else signed(share, SHARE) for share in shares]


@dataclass(frozen=True)
class PhaseBar:
    """The mean of an action by phase, as rectangles of a view box 100 wide."""

    name: str
    simulated: bool
    total: str
    #: Phase, its begin, its width, and its text.
    parts: tuple[tuple[str, float, float, str], ...]


def bars_of(sides: Sequence[SideRows]) -> list[PhaseBar]:
    """Return a bar for each side; the longest fills the width."""
    means = [
        {phase: _mean(getattr(side, phase)) for phase in PHASES}
        for side in sides
        if not side.binned
    ]
    longest = max((sum(each.values()) for each in means), default=0.0)
    drawn = []
    for side, each in zip([side for side in sides if not side.binned], means, strict=True):
        at, parts = 0.0, []
        for phase, value in each.items():
            width = 100 * value / longest if longest else 0.0
            parts.append((phase, round(at, 2), round(width, 2), written(value, SECONDS)))
            at += width
        total = written(sum(each.values()), SECONDS)
        drawn.append(PhaseBar(side.name, side.simulated, total, tuple(parts)))
    return drawn


def _mean(column: Column) -> float:
    known = column[~np.isnan(column)]
    return float(known.mean()) if len(known) else 0.0


#: Size of the drawing of the distribution, its margins, and its lowest share.
WIDTH, HEIGHT, LEFT, BOTTOM = 420, 180, 44, 24
LEAST_SHARE: Final = 0.005
_POINTS: Final = 60
_SHARES: Final = ((1.0, "100 %"), (0.5, "50 %"), (0.1, "10 %"), (0.05, "5 %"), (0.01, "1 %"))
_MOMENTS: Final = (
    (0.001, "1 ms"), (0.01, "10 ms"), (0.1, "0.1 s"), (0.3, "0.3 s"), (1.0, "1 s"), (3.0, "3 s"), (10.0, "10 s"),
    (30.0, "30 s"), (60.0, "1 min"), (180.0, "3 min"), (600.0, "10 min"), (1800.0, "30 min"), (3600.0, "1 h"),
    (36_000.0, "10 h"),
)  # fmt: skip
#: Room that the label of a time needs.
_LABEL_WIDTH: Final = 42


@dataclass(frozen=True)
class Curve:
    """Share of actions that are not complete after a time."""

    name: str
    simulated: bool
    points: str


@dataclass(frozen=True)
class Distribution:
    """The curves of both sides with their axes; both axes are logarithmic."""

    curves: tuple[Curve, ...]
    #: Position and label of each line across, and of each time.
    shares: tuple[tuple[float, str], ...]
    moments: tuple[tuple[float, str], ...]


def distribution_of(sides: Sequence[SideRows]) -> Distribution | None:
    """Return the curves; None without rows."""
    acts = [(side, np.sort(side.act[~np.isnan(side.act)])) for side in sides if not side.binned]
    acts = [(side, act) for side, act in acts if len(act)]
    if not acts:
        return None
    low = max(1e-3, min(float(np.quantile(act, 0.02)) for _, act in acts))
    high = max(low * 10, *(float(act[-1]) for _, act in acts))

    def x(seconds: float) -> float:
        share = math.log(max(seconds, low) / low) / math.log(high / low)
        return round(LEFT + share * (WIDTH - LEFT - 8), 1)

    def y(share: float) -> float:
        part = math.log(max(share, LEAST_SHARE)) / math.log(LEAST_SHARE)
        return round(8 + part * (HEIGHT - BOTTOM - 8), 1)

    moments = np.geomspace(low, high, _POINTS)
    curves = []
    for side, act in acts:
        left = 1.0 - np.searchsorted(act, moments, side="right") / len(act)
        shown = [(x(float(at)), y(float(share))) for at, share in zip(moments, left, strict=True) if share >= LEAST_SHARE]  # fmt: skip
        curves.append(Curve(side.name, side.simulated, " ".join(f"{a},{b}" for a, b in shown)))
    return Distribution(
        tuple(curves),
        tuple((y(share), label) for share, label in _SHARES),
        tuple(_apart((x(at), label) for at, label in _MOMENTS if low <= at <= high)),
    )


def _apart(labels: Iterable[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Yield the labels that do not touch the one before, nor the edge."""
    last = 0.0
    for at, label in labels:
        if at - last >= _LABEL_WIDTH / 2 and at + _LABEL_WIDTH / 2 <= WIDTH:
            yield at, label
            last = at + _LABEL_WIDTH / 2
