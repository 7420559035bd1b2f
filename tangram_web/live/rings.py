"""What happened, for weeks: rings of moments of 1 s, 15 s and 5 min, each merged from the finer ones.

A moment carries counts, sums and histograms, never a percentile: moments merge by addition, so the
percentiles of any range are exact to the bin (`tangram_web.live.histogram`). Histograms are sparse,
since few of the bins are filled in a second.

Moments are keyed by wall clock. They are made from the journal alone: a fold that begins anew makes
those of the retained journal again, and `Rings` leaves out what was stored before. A moment of five
minutes is made anew as a whole when the journal is kept for longer than that, as it is by default.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np

from tangram_web.live.histogram import BINS, PHASES, Counts, Sums

#: Seconds of a moment → moments that are kept: 15 minutes, 6 hours, 14 days.
RINGS: Final = {1: 900, 15: 1440, 300: 4032}
STEPS: Final = tuple(RINGS)
LEVELS: Final = ("queued", "granted", "running", "cores")


class Moment(msgspec.Struct, array_like=True):
    """What happened in one stretch of time."""

    #: Wall clock at its beginning, whole seconds.
    at: int
    #: Sealed seconds in it; fewer than it is long when nobody looked for a part of it.
    seconds: int
    submitted: int
    finished: int
    #: Sums over its seconds of what `LEVELS` names.
    levels: list[float]
    outcomes: dict[str, int]
    #: Seconds spent by phase.
    sums: list[float]
    #: Filled bins (phase * BINS + bin) as uint16, and how full they are as uint32.
    bins: bytes = b""
    counts: bytes = b""

    def durations(self) -> Counts:
        """Return the histogram: one row of `BINS` counts for each of `PHASES`."""
        dense = np.zeros(len(PHASES) * BINS, np.int64)
        dense[np.frombuffer(self.bins, "<u2")] = np.frombuffer(self.counts, "<u4")
        return dense.reshape(len(PHASES), BINS)


def moment(
    at: int,
    submitted: int,
    levels: Mapping[str, float],
    outcomes: Mapping[str, int],
    durations: Counts,
    sums: Sums,
) -> Moment:
    """Return what happened in the second ``at``."""
    made = Moment(
        at,
        1,
        submitted,
        sum(outcomes.values()),
        [levels.get(name, 0.0) for name in LEVELS],
        dict(outcomes),
        sums.tolist(),
    )
    return _filled(made, durations)


def merge(moments: Iterable[Moment], at: int) -> Moment:
    """Return all ``moments`` as one that begins at ``at``."""
    merged = Moment(at, 0, 0, 0, [0.0] * len(LEVELS), {}, [0.0] * len(PHASES))
    outcomes: Counter[str] = Counter()
    durations = np.zeros((len(PHASES), BINS), np.int64)
    flat = durations.reshape(-1)
    for one in moments:
        merged.seconds += one.seconds
        merged.submitted += one.submitted
        merged.finished += one.finished
        merged.levels = [a + b for a, b in zip(merged.levels, one.levels, strict=True)]
        merged.sums = [a + b for a, b in zip(merged.sums, one.sums, strict=True)]
        outcomes.update(one.outcomes)
        flat[np.frombuffer(one.bins, "<u2")] += np.frombuffer(one.counts, "<u4")
    merged.outcomes = dict(outcomes)
    return _filled(merged, durations)


def _filled(made: Moment, durations: Counts) -> Moment:
    if made.finished:
        flat = durations.reshape(-1)
        bins = np.flatnonzero(flat)
        made.bins = bins.astype("<u2").tobytes()
        made.counts = flat[bins].astype("<u4").tobytes()
    return made


class Rings:
    """Takes seconds in, gives out moments of all sizes that are complete and not stored yet."""

    def __init__(self, stored: Mapping[int, int] | None = None) -> None:
        #: Size → beginning of the newest moment that is stored.
        self._stored = dict(stored or {})
        self._open: dict[int, list[Moment]] = {step: [] for step in STEPS[1:]}
        self._complete: dict[int, deque[Moment]] = {
            step: deque(maxlen=length) for step, length in RINGS.items()
        }

    def add(self, second: Moment) -> None:
        """Take the next second in."""
        self._pass_on(0, second)

    @property
    def due(self) -> bool:
        """Whether a moment of 15 s is complete: then storing is worth a visit."""
        return bool(self._complete[STEPS[1]])

    def take(self) -> dict[int, list[Moment]]:
        """Return the complete moments by size, and keep them no longer."""
        taken = {step: list(moments) for step, moments in self._complete.items()}
        for moments in self._complete.values():
            moments.clear()
        return taken

    def _pass_on(self, level: int, done: Moment) -> None:
        step = STEPS[level]
        if done.at > self._stored.get(step, -1):
            self._stored[step] = done.at
            self._complete[step].append(done)
        if level + 1 == len(STEPS):
            return
        above = STEPS[level + 1]
        start = done.at - done.at % above
        waiting = self._open[above]
        if waiting and waiting[0].at - waiting[0].at % above != start:
            begun = waiting[0].at - waiting[0].at % above
            self._open[above] = []
            self._pass_on(level + 1, merge(waiting, begun))
        self._open[above].append(done)
