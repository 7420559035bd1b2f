"""Heatmap of completion times: how many actions that were submitted then took so long. Pure.

Rows of the map are powers of two of a second, columns equal parts of the time that the query covers. A
cell is darker the more actions it has, in five steps. Up to 10,000 finished actions of the query are
those of the counts (`tangram_web.explorer.facets`). With more, all of them are drawn from rollups where
these can answer for the query (`tangram_web.explorer.act_sums`), else the latest 10,000.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor, log2
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tangram_web.explorer.impossible import instant
from tangram_web.explorer.language import Query
from tangram_web.explorer.values import time_text

COLUMNS: Final = 72
#: Columns of a map from rollups, at least: with fewer it shows less than a sample.
FEWEST_COLUMNS: Final = 12
MOST_ROWS: Final = 14
#: Fewest actions of each step of the scale.
STEPS: Final = (1, 3, 10, 25, 50)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class ActSums:
    """Numbers of actions by submission and completion time; one array element for each number."""

    #: Submissions that they cover.
    begins: float
    ends: float
    #: Seconds of the coarsest rollup.
    size: int
    #: Stretch of time in which the actions were submitted.
    since: Numbers
    until: Numbers
    seconds: Numbers
    counts: Numbers


@dataclass(frozen=True)
class ActMapCell:
    """One cell: place, step 1 to 5, and number of actions."""

    x: int
    y: int
    step: int
    count: int


@dataclass(frozen=True)
class ActMap:
    """The map, and what its axes mean."""

    begins: float
    ends: float
    #: Shortest duration of the lowest row: 2 to this power, in seconds.
    lowest: int
    rows: int
    cells: list[ActMapCell]
    actions: int
    columns: int = COLUMNS
    #: Seconds of the rollups that it was drawn from; 0: from rows, which are exact.
    size: int = 0

    @property
    def source(self) -> str:
        """What it was drawn from, where that is less exact than rows."""
        if not self.size:
            return ""
        unit = f"{self.size // 60}-minute" if self.size >= 60 else f"{self.size}-second"
        return f"about {self.actions:,} finished actions, from {unit} sums"

    @property
    def from_text(self) -> str:
        """The begin as a filter has it."""
        return time_text(self.begins)

    @property
    def title(self) -> str:
        """The time that it covers."""
        return f"{_clock(self.begins, self.ends)} to {_clock(self.ends, self.begins)}"

    @property
    def times(self) -> list[str]:
        """Labels below the map."""
        step = (self.ends - self.begins) / 4
        return [_clock(self.begins + number * step, self.ends) for number in range(5)]

    @property
    def durations(self) -> list[float]:
        """Labels beside the map, the longest first, in seconds."""
        every = max(1, self.rows // 3)
        powers = range(self.lowest + self.rows, self.lowest - 1, -every)
        return [2.0**power for power in powers]


def heatmap_of(query: Query, durations: list[tuple[float, float]], now: float) -> ActMap | None:
    """Return the map of actions, each with its submission and its completion time; None for none."""
    if not durations:
        return None
    begins, ends = _span(query, [at for at, _ in durations], now)
    powers = [_power(seconds) for _, seconds in durations]
    highest = max(powers)
    lowest = max(min(powers), highest - MOST_ROWS + 1)
    width = (ends - begins) / COLUMNS
    counts: Counter[tuple[int, int]] = Counter()
    for (at, _), power in zip(durations, powers, strict=True):
        column = min(COLUMNS - 1, max(0, int((at - begins) / width)))
        counts[column, highest - max(power, lowest)] += 1
    cells = [ActMapCell(x, y, _step(count), count) for (x, y), count in sorted(counts.items())]
    return ActMap(begins, ends, lowest, highest - lowest + 1, cells, len(durations))


def heatmap_of_sums(sums: ActSums) -> ActMap | None:
    """Return the map of actions from rollups; None for no actions, or for fewer columns than are of use."""
    columns = min(COLUMNS, int((sums.ends - sums.begins) / sums.size))
    powers = np.floor(np.log2(np.maximum(sums.seconds, 2.0**-10))).astype(np.int64)
    within = (sums.until > sums.begins) & (sums.since < sums.ends)
    if columns < FEWEST_COLUMNS or not within.any():
        return None
    highest = int(powers[within].max())
    lowest = max(int(powers[within].min()), highest - MOST_ROWS + 1)
    rows = highest - lowest + 1
    places = highest - np.clip(powers, lowest, highest)
    width = np.maximum(sums.until - sums.since, 1e-6)
    # Actions that were submitted before each edge: numbers between edges are whole, and none is lost.
    before = np.array(
        [
            np.bincount(
                places, sums.counts * np.clip((edge - sums.since) / width, 0.0, 1.0), minlength=rows
            )
            for edge in np.linspace(sums.begins, sums.ends, columns + 1)
        ]
    )
    counts = np.diff(np.rint(before), axis=0).astype(np.int64)
    cells = [ActMapCell(int(x), int(y), _step(counts[x, y]), int(counts[x, y]))
             for x, y in np.argwhere(counts)]  # fmt: skip
    if not cells:
        return None
    begins, ends, actions = sums.begins, sums.ends, int(counts.sum())
    return ActMap(begins, ends, lowest, rows, cells, actions, columns, sums.size)


def _span(query: Query, times: list[float], now: float) -> tuple[float, float]:
    """Return the time that a query covers, as far as there are rows."""
    begins, ends = min(times), max(times)
    for term in query.of("since"):
        begins = (
            max(begins, instant(term.values[0], now))
            if len(times) < 2
            else instant(term.values[0], now)
        )
    for term in query.of("until"):
        ends = max(ends, min(now, instant(term.values[0], now)))
    if query.of("since") and not query.of("until"):
        ends = max(ends, now)
    return begins, max(ends, begins + 1.0)


def _power(seconds: float) -> int:
    return floor(log2(max(seconds, 2.0**-10)))


def _step(count: int) -> int:
    return sum(bool(count >= least) for least in STEPS)


def _clock(at: float, other: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment:%H:%M}" if abs(at - other) < 86_400 else f"{moment:%-d %b %H:%M}"
