"""Heatmap of completion times: how many actions that were submitted then took so long. Pure.

Rows of the map are powers of two of a second, columns equal parts of the time that the query covers. A
cell is darker the more actions it has, in five steps. The sample is that of the counts
(`tangram_web.explorer.facets`): all finished actions of the query, or the latest 10,000.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor, log2
from typing import Final

from tangram_web.explorer.impossible import instant
from tangram_web.explorer.language import Query
from tangram_web.explorer.values import time_text

COLUMNS: Final = 72
MOST_ROWS: Final = 14
#: Fewest actions of each step of the scale.
STEPS: Final = (1, 3, 10, 25, 50)


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

    @property
    def columns(self) -> int:
        """Number of columns."""
        return COLUMNS

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
    return sum(count >= least for least in STEPS)


def _clock(at: float, other: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return f"{moment:%H:%M}" if abs(at - other) < 86_400 else f"{moment:%-d %b %H:%M}"
