"""Rollups of 1 s, 15 s and 5 min, each merged from finer ones.

A rollup has counts, sums and histograms, never a percentile: rollups merge by addition, so the
percentiles of any range are exact to the bin (`histogram`). Histograms are sparse, since few of the
bins are filled in a second.

Rollups are keyed by wall clock and made from the journal alone: a fold that restarts makes those of
the retained journal again, and `RollupBuilder` leaves out those that are stored. A rollup of five
minutes is complete after a restart if the journal is retained for longer than that, as by default.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np

from tangram_web.live.rollups.histogram import BINS, PHASES, PhaseHistogram

#: Seconds of a rollup → rollups that are retained: 15 minutes, 6 hours, 14 days.
RETAINED: Final = {1: 900, 15: 1440, 300: 4032}
SIZES: Final = tuple(RETAINED)
LEVELS: Final = ("queued", "granted", "running", "cores")


class Rollup(msgspec.Struct, array_like=True):
    """Activity in one stretch of time."""

    #: Wall clock at its beginning, whole seconds.
    at: int
    #: Closed seconds in it; fewer than its size where no fold ran for a part of it.
    seconds: int
    submitted: int
    finished: int
    #: Sums over its seconds of the `LEVELS`.
    levels: list[float]
    outcomes: dict[str, int]
    #: Seconds spent by phase.
    sums: list[float]
    #: Filled bins (phase * BINS + bin) as uint16, and their counts as uint32.
    bins: bytes = b""
    counts: bytes = b""

    def durations(self) -> PhaseHistogram:
        """Return the histogram of durations by phase."""
        return merged_durations([self])


def rollup_of_second(
    at: int,
    submitted: int,
    outcomes: Mapping[str, int],
    levels: Mapping[str, float],
    durations: PhaseHistogram,
) -> Rollup:
    """Return the rollup of the second that begins at wall clock ``at``."""
    rollup = Rollup(
        at,
        1,
        submitted,
        sum(outcomes.values()),
        [levels.get(name, 0.0) for name in LEVELS],
        dict(outcomes),
        [0.0] * len(PHASES),
    )
    return _with_durations(rollup, durations) if rollup.finished else rollup


def merge(rollups: Iterable[Rollup], at: int) -> Rollup:
    """Return ``rollups`` as one that begins at ``at``."""
    parts = list(rollups)
    merged = Rollup(at, 0, 0, 0, [0.0] * len(LEVELS), {}, [0.0] * len(PHASES))
    outcomes: Counter[str] = Counter()
    for one in parts:
        merged.seconds += one.seconds
        merged.submitted += one.submitted
        merged.finished += one.finished
        merged.levels = [a + b for a, b in zip(merged.levels, one.levels, strict=True)]
        outcomes.update(one.outcomes)
    merged.outcomes = dict(outcomes)
    return _with_durations(merged, merged_durations(parts)) if merged.finished else merged


def merged_durations(rollups: Iterable[Rollup]) -> PhaseHistogram:
    """Return the histogram of all ``rollups`` together."""
    durations = PhaseHistogram()
    flat = durations.counts.reshape(-1)
    for one in rollups:
        if one.finished:
            flat[np.frombuffer(one.bins, "<u2")] += np.frombuffer(one.counts, "<u4")
            durations.sums += one.sums
    return durations


def _with_durations(rollup: Rollup, durations: PhaseHistogram) -> Rollup:
    durations.flush()
    flat = durations.counts.reshape(len(PHASES) * BINS)
    bins = np.flatnonzero(flat)
    rollup.sums = durations.sums.tolist()
    rollup.bins = bins.astype("<u2").tobytes()
    rollup.counts = flat[bins].astype("<u4").tobytes()
    return rollup


class RollupBuilder:
    """Merges seconds into complete rollups of all sizes, and holds them until they are stored."""

    def __init__(self, stored: Mapping[int, int] | None = None) -> None:
        #: Size → beginning of the newest rollup that is stored.
        self._stored = dict(stored or {})
        self._open: dict[int, list[Rollup]] = {size: [] for size in SIZES[1:]}
        self._complete: dict[int, deque[Rollup]] = {
            size: deque(maxlen=length) for size, length in RETAINED.items()
        }

    def add(self, second: Rollup) -> None:
        """Add the next second."""
        self._add(0, second)

    @property
    def due(self) -> bool:
        """Whether a rollup of 15 s is complete: storing is worth a round trip."""
        return bool(self._complete[SIZES[1]])

    def take_complete(self) -> dict[int, list[Rollup]]:
        """Return and remove the complete rollups, by size."""
        taken = {size: list(rollups) for size, rollups in self._complete.items()}
        for rollups in self._complete.values():
            rollups.clear()
        return taken

    def _add(self, level: int, done: Rollup) -> None:
        size = SIZES[level]
        if done.at > self._stored.get(size, -1):
            self._stored[size] = done.at
            self._complete[size].append(done)
        if level + 1 == len(SIZES):
            return
        coarser = SIZES[level + 1]
        parts = self._open[coarser]
        if parts:
            begin = parts[0].at - parts[0].at % coarser
            if begin != done.at - done.at % coarser:
                self._open[coarser] = []
                self._add(level + 1, merge(parts, begin))
        self._open[coarser].append(done)
