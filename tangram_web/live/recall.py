"""A range of the past as the points of charts, merged from the rings at the width that suits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np

from tangram_web.live.histogram import PHASES, percentile
from tangram_web.live.rings import LEVELS, RINGS, STEPS, Moment, merge

#: Points of a chart, at most.
POINTS: Final = 240
SHARES: Final = (50, 95, 99)
#: ``read(step, first, last)``: the moments of a size that begin in a stretch of wall clock.
Reader = Callable[[int, float, float], list[Moment]]


class Recalled(msgspec.Struct):
    """What is known of a range. Columns have one value per point; None where nothing is known."""

    #: Seconds that one point stands for.
    width: int
    #: Wall clock at the beginning of each point.
    seconds: list[int]
    columns: dict[str, list[float | None]]
    #: Over the whole range: counts, percentiles and means by phase, outcomes.
    whole: dict[str, Any]


def recall(
    read: Reader, first: float, last: float, now: float, steps: tuple[int, ...] = STEPS
) -> Recalled:
    """Return the points of [first, last) and what the range was as a whole, from these sizes."""
    step = _step_for(first, now, steps)
    width = max(step, step * math.ceil((last - first) / POINTS / step))
    moments = _moments(read, [size for size in steps if size <= step], first, last)
    groups: dict[int, list[Moment]] = {}
    for one in moments:
        groups.setdefault(one.at - one.at % width, []).append(one)
    starts = range(int(first - first % width), int(last), width)
    points = [_point(merge(groups[at], at)) if at in groups else {} for at in starts]
    names = dict.fromkeys(name for point in points for name in point)
    columns = {name: [point.get(name) for point in points] for name in names}
    return Recalled(width, list(starts), columns, whole_of(merge(moments, int(first))))


def whole_of(merged: Moment) -> dict[str, Any]:
    """Return counts, durations by phase and outcomes of one moment."""
    counts = merged.durations()
    samples = merged.finished
    phases = {
        name: {f"p{share}": percentile(counts[row], share / 100) for share in SHARES}
        | {"mean": merged.sums[row] / samples if samples else None}
        for row, name in enumerate(PHASES)
    }
    return {
        "seconds": merged.seconds,
        "submitted": merged.submitted,
        "finished": samples,
        "phases": phases,
        "outcomes": merged.outcomes,
    }


def _step_for(first: float, now: float, steps: tuple[int, ...]) -> int:
    """Return the finest size whose ring still reaches back to ``first``."""
    return next((step for step in steps if now - first <= step * RINGS[step]), steps[-1])


def _moments(read: Reader, sizes: list[int], first: float, last: float) -> list[Moment]:
    """Return the moments of a range; its newest part, not merged yet, comes from finer rings."""
    found: list[Moment] = []
    at = first - first % sizes[-1]
    for size in reversed(sizes):
        fresh = read(size, at, last)
        found += fresh
        if fresh:
            at = fresh[-1].at + size
    return found


def _point(merged: Moment) -> dict[str, float | None]:
    seconds = max(1, merged.seconds)
    point: dict[str, float | None] = {
        "submitted": merged.submitted / seconds,
        "finished": merged.finished / seconds,
    }
    point |= {name: level / seconds for name, level in zip(LEVELS, merged.levels, strict=True)}
    if merged.finished:
        act = merged.durations()[PHASES.index("act")]
        point |= {f"act_p{share}": percentile(act, share / 100) for share in SHARES}
        means = np.array(merged.sums) / merged.finished
        point |= {f"{name}_mean": float(means[row]) for row, name in enumerate(PHASES[:-1])}
    return point


def rows_of(recalled: Recalled) -> Iterable[dict[str, Any]]:
    """Yield one row per point, as tables and files want them."""
    for at, second in enumerate(recalled.seconds):
        yield {"at": second} | {name: values[at] for name, values in recalled.columns.items()}
