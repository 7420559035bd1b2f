"""Range queries over stored rollups: the points of a chart and the summary of the range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from tangram_web.live.rollups.histogram import PhaseHistogram
from tangram_web.live.rollups.rollup import LEVELS, RETAINED, SIZES, Rollup, merge

#: Points of a chart, at most.
MAX_POINTS: Final = 240
#: ``read(size, first, last)``: the rollups of a size that begin in a stretch of wall clock.
Reader = Callable[[int, float, float], list[Rollup]]


class RangeResult(msgspec.Struct):
    """Points and summary of a range. Columns have one value per point; None where none is stored."""

    #: Seconds per point.
    width: int
    #: Wall clock at the beginning of each point.
    seconds: list[int]
    columns: dict[str, list[float | None]]
    #: Over the whole range: counts, percentiles and means by phase, outcomes.
    whole: dict[str, Any]


def query_range(
    read: Reader, first: float, last: float, now: float, sizes: tuple[int, ...] = SIZES
) -> RangeResult:
    """Return the points and the summary of wall clock [first, last), from rollups of ``sizes``."""
    size, rollups = read_range(read, first, last, now, sizes)
    width = max(size, size * math.ceil((last - first) / MAX_POINTS / size))
    groups: dict[int, list[Rollup]] = {}
    for one in rollups:
        groups.setdefault(one.at - one.at % width, []).append(one)
    starts = range(int(first - first % width), int(last), width)
    points = [_point(merge(groups[at], at)) if at in groups else {} for at in starts]
    names = dict.fromkeys(name for point in points for name in point)
    columns = {name: [point.get(name) for point in points] for name in names}
    return RangeResult(width, list(starts), columns, summarize(merge(rollups, int(first))))


def query_histogram(
    read: Reader, first: float, last: float, now: float, sizes: tuple[int, ...] = SIZES
) -> PhaseHistogram:
    """Return the durations of the actions that ended in wall clock [first, last)."""
    _, rollups = read_range(read, first, last, now, sizes)
    return merge(rollups, int(first)).durations()


def read_range(
    read: Reader, first: float, last: float, now: float, sizes: tuple[int, ...] = SIZES
) -> tuple[int, list[Rollup]]:
    """Return the coarsest size that a range is read in, and its rollups, oldest first; its newest part from finer sizes."""
    size = _finest_size(first, now, sizes)
    return size, _read_all(read, [each for each in sizes if each <= size], first, last)


def summarize(rollup: Rollup) -> dict[str, Any]:
    """Return counts, durations by phase and outcomes of one rollup."""
    return {
        "seconds": rollup.seconds,
        "submitted": rollup.submitted,
        "finished": rollup.finished,
        "phases": rollup.durations().by_phase(),
        "outcomes": rollup.outcomes,
    }


def point_rows(result: RangeResult) -> Iterable[dict[str, Any]]:
    """Yield one row per point, for tables and files."""
    for index, second in enumerate(result.seconds):
        yield {"at": second} | {name: values[index] for name, values in result.columns.items()}


def _finest_size(first: float, now: float, sizes: tuple[int, ...]) -> int:
    """Return the finest size whose retention reaches back to ``first``."""
    return next((size for size in sizes if now - first <= size * RETAINED[size]), sizes[-1])


def _read_all(read: Reader, sizes: list[int], first: float, last: float) -> list[Rollup]:
    """Return the rollups of a range; its newest part, not merged yet, from finer sizes."""
    found: list[Rollup] = []
    at = first - first % sizes[-1]
    for size in reversed(sizes):
        fresh = read(size, at, last)
        found += fresh
        if fresh:
            at = fresh[-1].at + size
    return found


def _point(rollup: Rollup) -> dict[str, float | None]:
    seconds = max(1, rollup.seconds)
    return {
        "submitted": rollup.submitted / seconds,
        "finished": rollup.finished / seconds,
        **{name: level / seconds for name, level in zip(LEVELS, rollup.levels, strict=True)},
        **rollup.durations().chart_columns(),
    }
