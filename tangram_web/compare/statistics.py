"""Differences between two samples, each with an interval by the bootstrap. Pure: the seed is an argument.

Actions of one trajectory depend on each other, so whole groups are drawn again (cluster bootstrap): a difference is
computed `RESAMPLES` times from groups drawn with replacement, and the interval holds the middle `LEVEL` of them. In
runs of the same actions both sides draw the same groups (``paired``), which leaves out what they have in common.

Rules
1. A difference is side B less side A. Swapping the sides turns the sign of the difference and of its interval: draws
   belong to a sample by its content, not by its side.
2. Quantiles are by nearest rank, as on all pages.
3. Samples of the same number of groups have the same draws, in whichever measure: a `Resampling` makes them once.
4. With fewer than `LEAST_GROUPS` groups on a side there is no interval, and no finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
Weights = NDArray[np.integer[Any]]

RESAMPLES: Final = 1_000
LEVEL: Final = 0.95
LEAST_GROUPS: Final = 5
#: Resamples whose weights are in memory at once.
_BLOCK: Final = 100


class DifferenceFinding(StrEnum):
    """What a difference says."""

    BETTER = "better"
    WORSE = "worse"
    UNCLEAR = "no clear difference"
    UNKNOWN = "too few to say"


class Better(StrEnum):
    """Which way is better."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True)
class Difference:
    """A statistic of both sides, side B less side A, and the interval of that."""

    a: float
    b: float
    #: None: too few groups.
    low: float | None
    high: float | None

    @property
    def difference(self) -> float:
        """Side B less side A."""
        return self.b - self.a

    @property
    def relative(self) -> float | None:
        """The difference as a share of side A; None where that is 0."""
        return self.difference / abs(self.a) if self.a else None

    def finding(self, better: Better) -> DifferenceFinding:
        """Say whether side B is better; an interval that contains 0 is no clear difference."""
        if self.low is None or self.high is None:
            return DifferenceFinding.UNKNOWN
        if self.low <= 0.0 <= self.high:
            return DifferenceFinding.UNCLEAR
        fell = self.high < 0.0
        return (
            DifferenceFinding.BETTER
            if fell is (better is Better.LOWER)
            else DifferenceFinding.WORSE
        )


class Sample:
    """Values in groups. ``per``: what each value is counted by, for ratios; 1 each for means."""

    def __init__(
        self, values: Column, groups: NDArray[np.int64] | None = None, per: Column | None = None
    ) -> None:
        """``groups``: number of the group of each value, from 0 on; None: each is one of its own."""
        self.values = np.asarray(values, dtype=np.float64)
        size = len(self.values)
        self.groups = np.arange(size) if groups is None else np.asarray(groups, dtype=np.int64)
        self.per = np.ones(size) if per is None else np.asarray(per, dtype=np.float64)
        self.size = int(self.groups.max()) + 1 if size else 0

    def digest(self) -> bytes:
        """Return a digest of the content."""
        parts = (self.values, self.groups, self.per)
        return sha256(b"".join(part.tobytes() for part in parts)).digest()

    @property
    def shape(self) -> bytes:
        """What its draws depend on, beside the random stream."""
        return str(self.size).encode()

    def draws(self, generator: np.random.Generator, count: int) -> Weights:
        """Return how often each group is drawn, for ``count`` resamples."""
        drawn = generator.integers(0, self.size, (count, self.size))
        drawn += np.arange(0, count * self.size, self.size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * self.size).reshape(count, self.size)
        return times.astype(np.uint8 if times.max(initial=0) < 256 else np.int64)

    def ratio(self) -> float:
        """Return the mean, or the ratio of the sums."""
        total = float(self.per.sum())
        return float(self.values.sum()) / total if total else 0.0

    def ratios(self, draws: Weights) -> Column:
        """Return the mean, or the ratio, of each resample."""
        sums = np.bincount(self.groups, self.values, self.size)
        pers = np.bincount(self.groups, self.per, self.size)
        both = draws.astype(np.float64) @ np.column_stack((sums, pers))
        total = both[:, 1]
        found: Column = np.divide(both[:, 0], total, out=np.zeros(len(draws)), where=total > 0)
        return found

    def sorted(self) -> tuple[Column, NDArray[np.int64]]:
        """Return the values in their order, and the group of each."""
        order = np.argsort(self.values, kind="stable")
        return self.values[order], self.groups[order]

    def quantiles(self, draws: Weights, shares: Sequence[float]) -> Column:
        """Return the quantiles of each resample, one row each."""
        values, groups = self.sorted()
        cumulative = np.cumsum(draws[:, groups], axis=1, dtype=np.int64)
        return _ranked(values, cumulative, shares)


class BinnedSample(Sample):
    """Values of which only a histogram is kept: the middle of each bin and its count; no groups are known."""

    def __init__(self, middles: Column, counts: NDArray[np.int64]) -> None:
        kept = np.asarray(counts) > 0
        self.counts = np.asarray(counts, dtype=np.int64)[kept]
        super().__init__(np.asarray(middles, dtype=np.float64)[kept])
        self.size = int(self.counts.sum())

    def digest(self) -> bytes:
        """Return a digest of the content."""
        return sha256(self.values.tobytes() + self.counts.tobytes()).digest()

    @property
    def shape(self) -> bytes:
        """What its draws depend on, beside the random stream."""
        return self.counts.tobytes()

    def draws(self, generator: np.random.Generator, count: int) -> Weights:
        """Return how often a value of each bin is drawn."""
        return generator.multinomial(self.size, self.counts / self.size, size=count)

    def ratio(self) -> float:
        """Return the mean of the middles."""
        return float(self.values @ self.counts) / self.size if self.size else 0.0

    def ratios(self, draws: Weights) -> Column:
        """Return the mean of each resample."""
        return (draws @ self.values) / self.size

    def quantiles(self, draws: Weights, shares: Sequence[float]) -> Column:
        """Return the quantiles of each resample; bins are in their order."""
        return _ranked(self.values, np.cumsum(draws, axis=1), shares)


def _ranked(values: Column, cumulative: Weights, shares: Sequence[float]) -> Column:
    """Return the value at each share of the weights, by nearest rank."""
    total = cumulative[:, -1]
    found = np.empty((len(cumulative), len(shares)))
    ranks = np.maximum(1, np.ceil(np.outer(total, shares)))
    for row, (sums, wanted) in enumerate(zip(cumulative, ranks, strict=True)):
        found[row] = values[np.searchsorted(sums, wanted)]
    return found


class Resampling:
    """The draws of one comparison (rules 1 and 3)."""

    def __init__(self, seed: int, resamples: int = RESAMPLES) -> None:
        self.seed, self.resamples = seed, resamples
        self._known: dict[tuple[int, bytes], list[Weights]] = {}

    def draws(self, sample: Sample, stream: int) -> list[Weights]:
        """Return the draws of a sample in blocks."""
        key = stream, sample.shape
        if key not in self._known:
            generator = np.random.default_rng([self.seed, stream])
            counts = (min(_BLOCK, self.resamples - at) for at in range(0, self.resamples, _BLOCK))
            self._known[key] = [sample.draws(generator, count) for count in counts]
        return self._known[key]


def difference_of_ratios(
    a: Sample, b: Sample, resampling: Resampling, *, paired: bool = False
) -> Difference:
    """Return the difference of the means, or of the ratios."""
    if not (len(a.values) and len(b.values)):
        return Difference(a.ratio(), b.ratio(), None, None)
    blocks = [b.ratios(of_b) - a.ratios(of_a) for of_a, of_b in _draws(a, b, resampling, paired)]
    return _difference(a, b, a.ratio(), b.ratio(), np.concatenate(blocks))


def differences_of_quantiles(
    a: Sample, b: Sample, shares: Sequence[float], resampling: Resampling, *, paired: bool = False
) -> list[Difference]:
    """Return the difference of each quantile."""
    known = [_quantiles_of(each, shares) for each in (a, b)]
    if not (len(a.values) and len(b.values)):
        return [Difference(x, y, None, None) for x, y in zip(*known, strict=True)]
    blocks = [
        b.quantiles(of_b, shares) - a.quantiles(of_a, shares)
        for of_a, of_b in _draws(a, b, resampling, paired)
    ]
    all_of_them = np.concatenate(blocks)
    return [
        _difference(a, b, x, y, all_of_them[:, column])
        for column, (x, y) in enumerate(zip(*known, strict=True))
    ]


def _quantiles_of(sample: Sample, shares: Sequence[float]) -> list[float]:
    if not len(sample.values):
        return [0.0] * len(shares)
    once = (
        sample.counts if isinstance(sample, BinnedSample) else np.ones(sample.size, dtype=np.int64)
    )
    return [float(each) for each in sample.quantiles(once[None, :], shares)[0]]


def _draws(
    a: Sample, b: Sample, resampling: Resampling, paired: bool
) -> list[tuple[Weights, Weights]]:
    """Return the draws of both sides in blocks (rule 1)."""
    if paired:
        if a.size != b.size:
            raise ValueError("paired samples have the same groups")
        drawn = resampling.draws(a, 0)
        return list(zip(drawn, drawn, strict=True))
    of_a, of_b = (0, 1) if a.digest() <= b.digest() else (1, 0)
    return list(zip(resampling.draws(a, of_a), resampling.draws(b, of_b), strict=True))


def _difference(a: Sample, b: Sample, of_a: float, of_b: float, drawn: Column) -> Difference:
    if min(a.size, b.size) < LEAST_GROUPS:
        return Difference(of_a, of_b, None, None)
    rest = (1.0 - LEVEL) / 2
    low, high = np.quantile(drawn, (rest, 1.0 - rest))
    return Difference(of_a, of_b, float(low), float(high))
