"""Histograms of action durations, one for each phase of ACT, with logarithmic bins.

256 bins: 254 of equal ratio between 0.1 ms and 100,000 s, one below, one above. A bin is 8.5 % wide,
so a percentile read from the counts is exact to 8.5 %. Histograms of different seconds or processes
merge by addition, which no stored percentile does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from domain.action import Timing

PHASES: Final = ("queue", "overhead", "execution", "act")
BINS: Final = 256
LOWEST_SECONDS: Final = 1e-4
HIGHEST_SECONDS: Final = 1e5
PERCENTS: Final = (50, 95, 99)

_SCALE: Final = (BINS - 2) / math.log(HIGHEST_SECONDS / LOWEST_SECONDS)
#: Bounds the memory of durations that are not binned yet.
_PENDING_LIMIT: Final = 4096

Counts = NDArray[np.int64]
Sums = NDArray[np.float64]


def bin_of(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each duration; the lowest bin for anything that is not a positive number."""
    ratio = np.fmax(seconds, LOWEST_SECONDS) / LOWEST_SECONDS
    inner = np.minimum(np.floor(np.log(ratio) * _SCALE) + 1, BINS - 1)
    return np.where(seconds >= LOWEST_SECONDS, inner, 0).astype(np.int64)


def seconds_of(index: int) -> float:
    """Return the duration that represents a bin: its geometric middle."""
    if index == 0:
        return 0.0
    if index == BINS - 1:
        return HIGHEST_SECONDS
    return LOWEST_SECONDS * math.exp((index - 0.5) / _SCALE)


def percentile(counts: Counts, share: float) -> float | None:
    """Return the ``share`` quantile of binned durations by nearest rank; None without durations."""
    cumulative = np.cumsum(counts)
    total = int(cumulative[-1])
    if total == 0:
        return None
    rank = max(1, math.ceil(share * total))
    return seconds_of(int(np.searchsorted(cumulative, rank)))


#: The values of `PHASES`.
_phases_of = attrgetter(*(f"{phase}_seconds" for phase in PHASES))


@dataclass(slots=True)
class PhaseHistogram:
    """Durations of finished actions by phase."""

    #: One row of `BINS` counts for each of `PHASES`.
    counts: Counts = field(default_factory=lambda: np.zeros((len(PHASES), BINS), np.int64))
    #: Seconds by phase.
    sums: Sums = field(default_factory=lambda: np.zeros(len(PHASES), np.float64))
    _pending: list[Timing] = field(default_factory=list)

    def add(self, timing: Timing) -> None:
        """Count one finished action; `flush` bins it."""
        # A list append costs a tenth of four scalar writes into an array.
        self._pending.append(timing)
        if len(self._pending) >= _PENDING_LIMIT:
            self.flush()

    def flush(self) -> None:
        """Bin the durations added since the last flush."""
        if not self._pending:
            return
        values = np.array([_phases_of(timing) for timing in self._pending], np.float64)
        self._pending.clear()
        flat = bin_of(values) + np.arange(len(PHASES)) * BINS
        counted = np.bincount(flat.ravel(), minlength=len(PHASES) * BINS)
        self.counts += counted.reshape(len(PHASES), BINS)
        self.sums += np.nan_to_num(values).sum(axis=0)

    @property
    def samples(self) -> int:
        """How many actions are binned."""
        return int(self.counts[-1].sum())

    def by_phase(self) -> dict[str, dict[str, float | None]]:
        """Return percentiles and mean of each phase; None without actions."""
        samples = self.samples
        return {
            name: {
                f"p{percent}": percentile(self.counts[row], percent / 100) for percent in PERCENTS
            }
            | {"mean": float(self.sums[row]) / samples if samples else None}
            for row, name in enumerate(PHASES)
        }

    def chart_columns(self) -> dict[str, float]:
        """Return the percentiles of ACT and the means of its parts; empty without actions."""
        samples = self.samples
        if not samples:
            return {}
        act = {
            f"act_p{percent}": percentile(self.counts[-1], percent / 100) or 0.0
            for percent in PERCENTS
        }
        means = self.sums / samples
        return act | {f"{name}_mean": float(means[row]) for row, name in enumerate(PHASES[:-1])}
