"""Durations of finished actions in logarithmic bins, over a sliding window of seconds.

256 bins: 254 of equal ratio between 0.1 ms and 100,000 s, one below, one above. A bin is 8.5 % wide,
so a percentile read from the counts is exact to 8.5 %; counts of different seconds or processes
merge by addition, which no stored percentile does.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domain.action import Timing

PHASES: Final = ("queue", "overhead", "execution", "act")
BINS: Final = 256
LOWEST_SECONDS: Final = 1e-4
HIGHEST_SECONDS: Final = 1e5

_SCALE: Final = (BINS - 2) / math.log(HIGHEST_SECONDS / LOWEST_SECONDS)
#: Bounds the memory of a second in which nobody asked for counts.
_PENDING_LIMIT: Final = 4096

Counts = NDArray[np.int64]
Sums = NDArray[np.float64]


def bin_of(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each duration; what is no positive number goes into the lowest."""
    ratio = np.fmax(seconds, LOWEST_SECONDS) / LOWEST_SECONDS
    inner = np.minimum(np.floor(np.log(ratio) * _SCALE) + 1, BINS - 1)
    return np.where(seconds >= LOWEST_SECONDS, inner, 0).astype(np.int64)


def seconds_of(index: int) -> float:
    """Return the duration that stands for a bin: its geometric middle."""
    if index == 0:
        return 0.0
    if index == BINS - 1:
        return HIGHEST_SECONDS
    return LOWEST_SECONDS * math.exp((index - 0.5) / _SCALE)


def percentile(counts: Counts, share: float) -> float | None:
    """Return the duration that ``share`` of the counted ones do not exceed (nearest rank)."""
    cumulative = np.cumsum(counts)
    total = int(cumulative[-1])
    if total == 0:
        return None
    rank = max(1, math.ceil(share * total))
    return seconds_of(int(np.searchsorted(cumulative, rank)))


class PhaseWindow:
    """What the last ``width`` seconds' finished actions spent in each phase, second by second."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._counts = np.zeros((width, len(PHASES), BINS), np.int64)
        self._sums = np.zeros((width, len(PHASES)), np.float64)
        self._second = 0
        self._pending: list[tuple[float, float, float, float]] = []

    def add(self, timing: Timing) -> None:
        """Count one finished action in the present second."""
        # A list append costs a tenth of four scalar writes into an array.
        self._pending.append(
            (
                timing.queue_seconds,
                timing.overhead_seconds,
                timing.execution_seconds,
                timing.act_seconds,
            )
        )
        if len(self._pending) >= _PENDING_LIMIT:
            self._settle()

    def advance(self) -> None:
        """Begin the next second; the oldest one leaves the window."""
        self._settle()
        self._second += 1
        slot = self._second % self._width
        self._counts[slot] = 0
        self._sums[slot] = 0.0

    def counts(self, seconds: int) -> Counts:
        """Return counts by phase and bin over the last ``seconds``, the present one included."""
        self._settle()
        merged: Counts = self._counts[self._slots(seconds)].sum(axis=0)
        return merged

    def sums(self, seconds: int) -> Sums:
        """Return the seconds spent by phase over the last ``seconds``, the present one included."""
        self._settle()
        merged: Sums = self._sums[self._slots(seconds)].sum(axis=0)
        return merged

    def _slots(self, seconds: int) -> list[int]:
        return [(self._second - back) % self._width for back in range(min(seconds, self._width))]

    def _settle(self) -> None:
        if not self._pending:
            return
        values = np.array(self._pending, np.float64)
        self._pending.clear()
        flat = bin_of(values) + np.arange(len(PHASES)) * BINS
        counted = np.bincount(flat.ravel(), minlength=len(PHASES) * BINS)
        slot = self._second % self._width
        self._counts[slot] += counted.reshape(len(PHASES), BINS)
        self._sums[slot] += np.nan_to_num(values).sum(axis=0)
