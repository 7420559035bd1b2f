"""A comparison of two sides: each measure with its difference, interval and finding. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_web.compare.sides import SideRows
from tangram_web.compare.statistics import (
    Better,
    BinnedSample,
    Difference,
    DifferenceFinding,
    Resampling,
    Sample,
    difference_of_ratios,
    differences_of_quantiles,
)
from tangram_web.live.rollups.histogram import BINS, seconds_of

#: Intervals of one comparison are the same each time it is shown.
SEED: Final = 20_261_128
_SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Stretches that a side is cut into, to know how much its throughput varies.
_STRETCHES: Final = 20
PHASES: Final = ("queue", "overhead", "execution")
_MIDDLES: Final = np.array([seconds_of(index) for index in range(BINS)])


class Unit(NamedTuple):
    """How a measure is written."""

    name: str
    scale: float = 1.0


SECONDS: Final = Unit("seconds")
SHARE: Final = Unit("share")
PER_MINUTE: Final = Unit("per minute", 60.0)
#: Core-hours of 1,000 actions, of core-seconds of one.
CORE_HOURS: Final = Unit("core-hours", 1000.0 / 3600.0)


@dataclass(frozen=True)
class Measure:
    """One row of a comparison."""

    name: str
    unit: Unit
    difference: Difference
    better: Better = Better.LOWER
    #: Of a third side, for display beside the two: what was measured.
    beside: float | None = None

    @property
    def finding(self) -> DifferenceFinding:
        """What its difference says."""
        return self.difference.finding(self.better)


@dataclass(frozen=True)
class Comparison:
    """Two sides and the measures that both have."""

    a: SideRows
    b: SideRows
    measures: tuple[Measure, ...]
    #: Both sides have the same actions, which are compared one by one.
    paired: bool

    def measure(self, name: str) -> Measure | None:
        """Return a measure by its name."""
        return next((each for each in self.measures if each.name == name), None)


def compare(a: SideRows, b: SideRows, *, seed: int = SEED) -> Comparison:
    """Return the comparison of two sides."""
    resampling = Resampling(seed)
    paired = bool(a.window) and a.window == b.window and len(a) == len(b)
    if paired:
        both = ~(np.isnan(a.act) | np.isnan(b.act))
        a, b = _only(a, both), _only(b, both)
    else:
        a, b = (_only(each, ~np.isnan(each.act)) for each in (a, b))
    found = [
        Measure("ACT, mean", SECONDS, _means(a, b, "act", resampling, paired)),
        *_quantiles(a, b, resampling, paired),
        *(
            Measure(f"{phase.capitalize()}, mean", SECONDS, _means(a, b, phase, resampling, paired))
            for phase in PHASES
        ),
    ]
    if not (a.binned or b.binned):
        totals = [_trajectories(side) for side in (a, b)]
        each = difference_of_ratios(totals[0], totals[1], resampling, paired=paired)
        found += [Measure("Trajectory, mean", SECONDS, each), *_rest(a, b, resampling, paired)]
    return Comparison(a, b, tuple(found), paired)


def with_beside(comparison: Comparison, beside: SideRows) -> Comparison:
    """Return a comparison whose measures also show those of a third side."""
    third = compare(beside, beside)
    known = {each.name: each.difference.a for each in third.measures}
    measures = (replace(each, beside=known.get(each.name)) for each in comparison.measures)
    return replace(comparison, measures=tuple(measures))


def verdict(comparison: Comparison) -> str:
    """Return one sentence: how B differs from A, and by which phase."""
    said = _said(comparison)
    phrase = " " in comparison.b.name  # else the name of a policy or a task
    return said[:1].upper() + said[1:] if phrase else said


def _said(comparison: Comparison) -> str:
    whole = comparison.measure("ACT, mean")
    if whole is None or not (len(comparison.a) and len(comparison.b)):
        return "One side has no finished action: there is nothing to compare."
    name, relative = comparison.b.name, whole.difference.relative
    would = "would complete" if comparison.b.simulated else "completed"
    if whole.finding is DifferenceFinding.UNKNOWN or relative is None:
        return "There are too few trajectories to say how both sides differ."
    if whole.finding is DifferenceFinding.UNCLEAR:
        return f"{name} shows no clear difference in the time to complete an action."
    way = "sooner" if whole.finding is DifferenceFinding.BETTER else "later"
    low, high = whole.difference.low or 0.0, whole.difference.high or 0.0
    ends = sorted(100 * abs(end / whole.difference.a) for end in (low, high))
    said = f"{name} {would} actions {100 * abs(relative):.0f} % {way} ({ends[0]:.0f} to {ends[1]:.0f} %)"
    return f"{said}{_by_phase(comparison, whole)}."


def _by_phase(comparison: Comparison, whole: Measure) -> str:
    """Say which phase makes most of the difference."""
    parts = {
        phase: found.difference.difference
        for phase in PHASES
        if (found := comparison.measure(f"{phase.capitalize()}, mean")) is not None
    }
    sign = -1.0 if whole.difference.difference < 0 else 1.0
    most = max(parts, key=lambda phase: sign * parts[phase], default="")
    if not most or sign * parts[most] <= 0:
        return ""
    words = {"queue": "queues", "overhead": "overhead", "execution": "execution"}
    return f", mostly by {'shorter' if sign < 0 else 'longer'} {words[most]}"


def _only(side: SideRows, kept: NDArray[np.bool_]) -> SideRows:
    """Return the rows that are ``kept``, with their trajectories numbered again."""
    if side.binned:
        return side
    columns = ("queue", "overhead", "execution", "granted", "measured", "failed", "incomplete", "begun", "ended")  # fmt: skip
    chosen = {
        name: column[kept] for name in columns if len(column := getattr(side, name)) == len(kept)
    }
    _, groups = np.unique(side.trajectory[kept], return_inverse=True)
    return replace(side, trajectory=groups.astype(np.int64), **chosen)


def _sample(side: SideRows, column: str) -> Sample:
    """Return a column with the trajectory of each value, or its histogram."""
    if side.binned:
        return BinnedSample(_MIDDLES, side.binned[column])
    return Sample(getattr(side, column), side.trajectory)


def _means(
    a: SideRows, b: SideRows, column: str, resampling: Resampling, paired: bool
) -> Difference:
    return difference_of_ratios(_sample(a, column), _sample(b, column), resampling, paired=paired)


def _quantiles(a: SideRows, b: SideRows, resampling: Resampling, paired: bool) -> list[Measure]:
    found = differences_of_quantiles(
        _sample(a, "act"), _sample(b, "act"), list(_SHARES.values()), resampling, paired=paired
    )
    return [
        Measure(f"ACT, {name}", SECONDS, each) for name, each in zip(_SHARES, found, strict=True)
    ]


def _trajectories(side: SideRows) -> Sample:
    """Return the sum of ACTs of each trajectory."""
    if not len(side):
        return Sample(np.empty(0))
    return Sample(np.bincount(side.trajectory, side.act).astype(np.float64))


def _rest(a: SideRows, b: SideRows, resampling: Resampling, paired: bool) -> list[Measure]:
    """Return the measures that not every side has."""
    found = []
    if len(a.granted) and len(b.granted):
        each = _means(a, b, "granted", resampling, paired)
        found.append(Measure("Core-hours granted per 1,000 actions", CORE_HOURS, each))
    if all(len(side.measured) and not np.isnan(side.measured).all() for side in (a, b)):
        used = [_known(side) for side in (a, b)]
        each = difference_of_ratios(used[0], used[1], resampling)
        found.append(Measure("Core-hours measured per 1,000 actions", CORE_HOURS, each))
    if all(len(side.begun) and side.granted.any() for side in (a, b)):
        each = difference_of_ratios(_saved(a), _saved(b), resampling)
        found.append(Measure("Saved of a reservation", SHARE, each, Better.HIGHER))
    if len(a.failed) and len(b.failed):
        for name, part in (("Exit code not 0", "failed"), ("Not completed", "incomplete")):
            each = _means(a, b, part, resampling, paired)
            found.append(Measure(name, SHARE, each))
    if len(a.begun) and len(b.begun):
        each = difference_of_ratios(_throughput(a), _throughput(b), resampling)
        found.append(Measure("Actions completed per minute", PER_MINUTE, each, Better.HIGHER))
    return found


def _known(side: SideRows) -> Sample:
    kept = _only(side, ~np.isnan(side.measured))
    return Sample(kept.measured, kept.trajectory)


def _saved(side: SideRows) -> Sample:
    """Return the part of each trajectory's widest grant over its life that was not held."""
    count = int(side.trajectory.max()) + 1
    granted = np.bincount(side.trajectory, side.granted, count)
    held = np.maximum(side.act - side.queue, 1e-9)
    widest, begun, ended = np.zeros(count), np.full(count, np.inf), np.zeros(count)
    np.maximum.at(widest, side.trajectory, side.granted / held)
    np.minimum.at(begun, side.trajectory, side.begun)
    np.maximum.at(ended, side.trajectory, side.ended)
    reserved = np.maximum(widest * (ended - begun), granted)
    return Sample(reserved - granted, per=reserved)


def _throughput(side: SideRows) -> Sample:
    """Return the actions that ended in each of some equal stretches, per second."""
    first, last = float(side.begun.min()), float(side.ended.max())
    if not last > first:
        return Sample(np.empty(0))
    counts, _ = np.histogram(side.ended, bins=_STRETCHES, range=(first, last))
    return Sample(counts.astype(np.float64), per=np.full(_STRETCHES, (last - first) / _STRETCHES))
