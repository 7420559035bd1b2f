"""Profiles: times of one engine and model, answered from what was measured by degree, batch and context.

`ProfiledTimes` implements `WorkerTimes` for the `EngineProfile` that a fleet declares.

Rules
1. Between points times are linear in batch and in context. Beyond the last point they rise with the steepest of the last slopes; below
   the first context they are those of the first.
2. Times do not fall when batch or context rises: placement needs it, and no engine gets faster by more work. Entries of a noisy
   measurement that do are raised to the greatest entry before them; `ProfiledTimes.raised` says which, for the caller to warn about.
3. A degree that is not measured is refused when it is asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from domain.engine_profiles import DegreeProfile, EngineProfile, check_profile, check_seconds
from domain.errors import InvalidRequest
from placement.policies.protocol import WorkerTimes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


class Raised(msgspec.Struct, frozen=True, gc=False):
    """Entries of a table that were raised, so that times do not fall."""

    pointer: str
    entries: int
    of: int
    #: Greatest factor.
    most: float

    @property
    def text(self) -> str:
        """Return a warning for an operator."""
        return (
            f"{self.entries} of {self.of} entries of {self.pointer} fall with batch or context; they were raised, "
            f"by up to {self.most - 1:.1%}. Measure them again if that is more than noise."
        )


class TimeGrid:
    """Seconds over (batch, context) on one degree: non-decreasing in both."""

    __slots__ = ("_batches", "_contexts", "_seconds", "_slopes", "_table")

    def __init__(
        self, batches: Sequence[float], contexts: Sequence[float], seconds: FloatArray
    ) -> None:
        """Take a table of shape (batches, contexts) that is non-decreasing along both axes."""
        self._batches = np.asarray(batches, dtype=float)
        self._contexts = np.asarray(contexts, dtype=float)
        self._seconds = np.asarray(seconds, dtype=float)
        self._slopes = (
            _steepest(self._batches, self._seconds),
            _steepest(self._contexts, self._seconds.T),
        )
        self._table = (self._batches.tolist(), self._contexts.tolist(), self._seconds.tolist())

    def at(self, batch: float, context: float) -> float:
        """Return the seconds at one point."""
        batches, contexts, table = self._table
        row, row_share, row_beyond = _place(batches, batch)
        column, column_share, column_beyond = _place(contexts, context)
        lower = table[row][column]
        upper = table[min(row + 1, len(batches) - 1)][column]
        if column_share:
            lower += column_share * (table[row][column + 1] - lower)
            after = table[min(row + 1, len(batches) - 1)][column + 1]
            upper += column_share * (after - upper)
        inside: float = lower + row_share * (upper - lower)
        return inside + row_beyond * self._slopes[0] + column_beyond * self._slopes[1]

    def over(self, batches: npt.ArrayLike, contexts: npt.ArrayLike) -> FloatArray:
        """Return the seconds at many points; the arguments are broadcast."""
        row, row_share, row_beyond = _places(self._batches, np.asarray(batches, dtype=float))
        column, column_share, column_beyond = _places(
            self._contexts, np.asarray(contexts, dtype=float)
        )
        next_row = np.minimum(row + 1, len(self._batches) - 1)
        next_column = np.minimum(column + 1, len(self._contexts) - 1)
        table = self._seconds
        lower = table[row, column] + column_share * (table[row, next_column] - table[row, column])
        upper = table[next_row, column] + column_share * (
            table[next_row, next_column] - table[next_row, column]
        )
        inside = lower + row_share * (upper - lower)
        return np.asarray(
            inside + row_beyond * self._slopes[0] + column_beyond * self._slopes[1], dtype=float
        )


def _steepest(points: FloatArray, table: FloatArray) -> float:
    """Return the steepest slope between the last two of ``points``, over all columns; 0 with one point.

    The steepest, not that of the column: two slopes that differ would let times fall beyond the corner.
    """
    if len(points) < 2:
        return 0.0
    return float(np.max(table[-1] - table[-2]) / (points[-1] - points[-2]))


def _place(points: list[float], value: float) -> tuple[int, float, float]:
    """Return index and share between two points, and how far ``value`` is beyond the last."""
    if value >= points[-1]:
        return len(points) - 1, 0.0, value - points[-1]
    if value <= points[0]:
        return 0, 0.0, 0.0
    index = bisect_right(points, value) - 1
    return index, (value - points[index]) / (points[index + 1] - points[index]), 0.0


def _places(points: FloatArray, values: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return what `_place` does, of many values."""
    inside = np.clip(values, points[0], points[-1])
    index = np.searchsorted(points, inside, side="right") - 1
    after = np.minimum(index + 1, len(points) - 1)
    widths = np.where(after > index, points[after] - points[index], 1.0)
    return index, (inside - points[index]) / widths, np.maximum(values - points[-1], 0.0)


class ProfiledTimes:
    """A checked profile, as `WorkerTimes`."""

    def __init__(self, profile: EngineProfile, pointer: str = "/profile") -> None:
        """Check and compile ``profile``; raise InvalidRequest that names the member and the cure."""
        self.profile = profile
        #: Tables that were raised to be non-decreasing, for a warning.
        self.raised: list[Raised] = []
        self._grids: dict[int, TimeGrid] = {}
        self._prefills: dict[int, TimeGrid] = {}
        self._measured: dict[int, DegreeProfile] = {}
        check_profile(profile, pointer)
        for number, measured in enumerate(profile.degrees):
            self._compile(measured, f"{pointer}/degrees/{number}")

    def _compile(self, measured: DegreeProfile, pointer: str) -> None:
        table = self._monotone(
            np.array(measured.token_seconds, dtype=float), pointer, "token_seconds"
        )
        self._grids[measured.degree] = TimeGrid(measured.batches, measured.contexts, table)
        tokens, seconds = zip(*measured.prefill, strict=True)
        column = self._monotone(
            np.array([(0.0,), *((each,) for each in seconds)]), pointer, "prefill"
        )
        self._prefills[measured.degree] = TimeGrid((0, *tokens), (0,), column)
        self._measured[measured.degree] = measured

    def _monotone(self, table: FloatArray, pointer: str, member: str) -> FloatArray:
        risen = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
        if count := int(np.count_nonzero(risen > table)):
            # A time of 0 is nowhere above another: `check_profile` has refused it.
            most = float(np.max(risen[table > 0] / table[table > 0]))
            self.raised.append(Raised(f"{pointer}/{member}", count, table.size, most))
        return risen

    @property
    def degrees(self) -> tuple[int, ...]:
        """Return the degrees that are measured, rising."""
        return tuple(sorted(self._measured))

    def of_degree(self, degree: int) -> DegreeProfile:
        """Return what was measured of a degree; raise InvalidRequest where nothing was."""
        try:
            return self._measured[degree]
        except KeyError:
            known = ", ".join(map(str, self.degrees))
            wrong = f"the profile has no degree {degree}, only {known}: measure it, or have no worker of it"
            raise InvalidRequest(wrong, pointer="/profile/degrees") from None

    def grid(self, degree: int) -> TimeGrid:
        """Return the seconds per token of a degree, over batch × context."""
        return self._grids[self.of_degree(degree).degree]

    def token_seconds(self, degree: int, batch: int, context_tokens: float) -> float:
        """Return seconds per token of each of ``batch`` sequences that have ``context_tokens`` each."""
        return self.grid(degree).at(batch, context_tokens)

    def prefill_seconds(self, degree: int, tokens: int) -> float:
        """Return the seconds that a prompt of so many uncached tokens takes."""
        return self._prefills[self.of_degree(degree).degree].at(tokens, 0)

    def transfer_seconds(self, tokens: int) -> float:
        """Return the seconds that a cache of so many tokens takes between two workers; inf: no transfer."""
        rate = self.profile.transfer_tokens_per_second
        return math.inf if rate is None else self.profile.transfer_latency_seconds + tokens / rate

    def kv_tokens(self, degree: int) -> float:
        """Return the tokens of cache that fit on a worker."""
        return self.of_degree(degree).kv_tokens


def grid_of(times: WorkerTimes, degree: int, most_batch: int, most_context: float) -> TimeGrid:
    """Return ``times`` of a degree as a grid: that of the profile, or of samples at powers of two."""
    if isinstance(times, ProfiledTimes):
        return times.grid(degree)
    batches = _powers(1, most_batch)
    contexts = [0, *_powers(1024, most_context)]
    table = np.array(
        [[times.token_seconds(degree, batch, context) for context in contexts] for batch in batches]
    )
    check_seconds(table.ravel().tolist(), "/profile", least=1e-12)
    risen = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    return TimeGrid(batches, contexts, risen)


def _powers(first: int, most: float) -> list[int]:
    points = [first]
    while points[-1] < most:
        points.append(2 * points[-1])
    return points
