"""DPArrange: the allocation with the least sum of durations (paper Appendix B, Algorithm 3).

An arranger answers for every prefix of the candidates, because eviction leaves the first t candidates
of C (Algorithm 1, line 9). Prefixes share all computation.

* `Table` is Algorithm 3 for any operator: O(n · m · |S|) for n candidates, m states and unit sets
  of |S| counts, once for all evictions, where the paper reruns it per eviction, O(n² · m · |S|).
* `Extras` is the same for interchangeable units: each candidate has its smallest count, and the table
  distributes the rest. Its columns are the remaining units, not all free ones.
* `Upgrades` is for operators with too many states for a table: from the smallest counts it takes the
  step that saves most per unit while one fits. Not exact.
* `Marginal` assigns units one by one where they save most. Exact for interchangeable units with
  contiguous counts and convex durations; O(n · |S|) per prefix.

Departures from Algorithm 3
1. The best over all totals up to what is free, not exactly all of it (lines 21 to 25); ties: fewest
   units, then more for earlier arrivals.
2. No choice table is stored (line 5): choices are recomputed on the way back, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import gcd
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from domain.operators import Indices, Operator, UnitsOperator
from scheduler.core.policies.choices import Choices, Seconds

Marks = NDArray[np.bool_]


#: Largest table, 32 MiB; 256 candidates with 256 counts each are far below.
_MOST_CELLS = 4_000_000
#: Most states of a table, which bound the time per row; 40 GPUs in any pieces have below 1,000.
_MOST_STATES = 10_000


class Arranger(Protocol):
    """Best allocation of each prefix of the candidates."""

    def best(self, prefix: int) -> float:
        """Return the least sum of durations of the first ``prefix`` candidates; inf if none fits."""

    def chosen(self, prefix: int) -> list[int]:
        """Return the index of the choice of each of the first ``prefix`` candidates in the best case."""


def arranger(candidates: Sequence[Choices], operator: Operator) -> Arranger:
    """Return the cheapest exact arranger for ``candidates``, or `Upgrades` if none is cheap enough."""
    free = operator.total
    if free is None:
        few = operator.states <= _MOST_STATES
        return Table(candidates, operator) if few else Upgrades(candidates, operator)
    steps = {each.step for each in candidates if len(each) > 1}
    if len(steps) <= 1 and all(each.convex for each in candidates):
        return Marginal(candidates, free, steps.pop() if steps else 1)
    return Extras(candidates, free)


class Table:
    """Algorithm 3: one row per candidate, one column per state of the operator."""

    def __init__(self, candidates: Sequence[Choices], operator: Operator) -> None:
        self._amounts = operator.amounts
        self._tables = [each.table for each in candidates]
        self._previous = [operator.previous(each.units) for each in candidates]
        self._dp = _rows(self._tables, self._previous, len(self._amounts))

    def best(self, prefix: int) -> float:
        """Return the least sum over all states."""
        return float(self._dp[prefix, :-1].min())

    def chosen(self, prefix: int) -> list[int]:
        """Walk back from the state with the best sum and the fewest units (lines 21 to 24)."""
        row = self._dp[prefix, :-1]
        ends = np.flatnonzero(row == row.min())
        state = int(ends[self._amounts[ends].argmin()])
        return _walk_back(self._dp, self._tables, self._previous, prefix, state)


class Extras:
    """Algorithm 3 for interchangeable units: columns count units beyond the smallest counts.

    An evicted candidate releases its smallest count, so shorter prefixes need more columns. Evictions
    are few as a rule: the table starts with room for some, and is rebuilt wider when more occur.
    """

    def __init__(self, candidates: Sequence[Choices], free: int, evictions: int = 8) -> None:
        """Distribute ``free`` milli-units; the first table has room for ``evictions``."""
        self._tables = [each.table for each in candidates]
        self._extra = [each.extra for each in candidates]
        self._grain = gcd(*_amounts(candidates))
        least = accumulate((each.smallest for each in candidates), initial=0)
        most = min(
            _most_columns(candidates), sum(each.extra[-1] for each in candidates) // self._grain
        )
        #: Columns that each prefix may use, beside the first.
        self._room = [min(most, (free - taken) // self._grain) for taken in least]
        self._widen(max(1, len(candidates) - evictions))

    def _widen(self, prefix: int) -> None:
        self._width = max(0, self._room[prefix])
        operator = UnitsOperator(self._width, 1)
        self._previous = [
            operator.previous(tuple(amount // self._grain for amount in extra))
            for extra in self._extra
        ]
        self._dp = _rows(self._tables, self._previous, self._width + 1)

    def best(self, prefix: int) -> float:
        """Return the least sum over all totals that fit; inf if smallest counts do not."""
        row = self._row(prefix)
        return float(row.min()) if len(row) else float("inf")

    def chosen(self, prefix: int) -> list[int]:
        """Walk back from the smallest of the best totals."""
        state = int(self._row(prefix).argmin())
        return _walk_back(self._dp, self._tables, self._previous, prefix, state)

    def _row(self, prefix: int) -> Seconds:
        room = self._room[prefix]
        if room > self._width:
            self._widen(max(1, prefix // 2))
        return self._dp[prefix, : max(0, room + 1)]


def _most_columns(candidates: Sequence[Choices]) -> int:
    """Return the most columns of a table; free units beyond them are not distributed."""
    return _MOST_CELLS // (len(candidates) + max(len(each) for each in candidates))


def _amounts(candidates: Sequence[Choices]) -> set[int]:
    """Return every count that any candidate may get."""
    return {count for units in {each.units for each in candidates} for count in units}


def _rows(tables: Sequence[Seconds], previous: Sequence[Indices], states: int) -> Seconds:
    """Fill dp[i][s]: the least sum of the first i candidates within state s (lines 9 to 20).

    A last column, never feasible, is what the index -1 of `Operator.previous` reads.
    """
    dp = np.full((len(tables) + 1, states + 1), np.inf)
    dp[0, :states] = 0.0
    last: Indices | None = None
    for row, (table, left) in enumerate(zip(tables, previous, strict=True)):
        if left is not last:  # consecutive candidates often share a unit set
            last, sources = left, np.where(left < 0, states, left)
            sums = np.empty(left.shape)
        # With "clip" numpy writes straight to ``out``; all indices are in range.
        dp[row].take(sources, out=sums, mode="clip")
        sums += table[:, None]
        np.minimum.reduce(sums, axis=0, out=dp[row + 1, :states])
    return dp


def _walk_back(
    dp: Seconds,
    tables: Sequence[Seconds],
    previous: Sequence[Indices],
    prefix: int,
    state: int,
) -> list[int]:
    """Return the choice of each of the first ``prefix`` candidates that leads to ``state``.

    Ties: the smallest choice, which leaves more to earlier arrivals.
    """
    chosen = [0] * prefix
    for index in range(prefix - 1, -1, -1):
        left = previous[index][:, state]
        choice = int((dp[index][left] + tables[index]).argmin())
        chosen[index] = choice
        state = int(left[choice])
    return chosen


class Marginal:
    """Greedy by marginal gain: take the ``m`` largest savings.

    With convex durations the savings of one candidate fall, so the largest ones over all candidates
    are always the first steps of each: they form an allocation, and the best one.
    """

    def __init__(self, candidates: Sequence[Choices], free: int, step: int) -> None:
        lengths = [len(each.units) for each in candidates]
        self._free = free
        self._step = step
        self._ends: Indices = np.cumsum(lengths, dtype=np.intp)
        self._starts: Indices = self._ends - np.array(lengths, dtype=np.intp)
        seconds = np.concatenate([each.table for each in candidates])
        #: saved[f]: savings of the step from flat choice f to f + 1; -inf for last choices.
        self._saved = np.empty_like(seconds)
        self._saved[:-1] = seconds[:-1] - seconds[1:]
        self._saved[self._ends - 1] = -np.inf
        self._least = np.cumsum([each.smallest for each in candidates])
        self._slowest = np.cumsum([each.smallest_seconds for each in candidates])

    def best(self, prefix: int) -> float:
        """Return the sum at smallest counts minus all savings taken."""
        steps = self._steps(prefix)
        if steps < 0:
            return float("inf")
        saved = self._saved[: self._ends[prefix - 1]]
        return float(self._slowest[prefix - 1] - saved[self._taken(saved, steps)].sum())

    def chosen(self, prefix: int) -> list[int]:
        """Count the savings taken of each candidate."""
        saved = self._saved[: self._ends[prefix - 1]]
        taken = self._taken(saved, self._steps(prefix))
        counts: list[int] = np.add.reduceat(taken, self._starts[:prefix], dtype=np.intp).tolist()
        return counts

    def _steps(self, prefix: int) -> int:
        """Return how many steps are free beyond the smallest counts."""
        return int(self._free - self._least[prefix - 1]) // self._step

    @staticmethod
    def _taken(saved: Seconds, steps: int) -> Marks:
        """Mark the ``steps`` largest savings above 0; ties: the earliest arrivals."""
        taken: Marks = saved > 0.0
        if np.count_nonzero(taken) <= steps:
            return taken
        if steps == 0:
            return np.zeros_like(taken)
        least = np.partition(saved, len(saved) - steps)[len(saved) - steps]
        taken = saved > least
        ties = np.flatnonzero(saved == least)[: steps - np.count_nonzero(taken)]
        taken[ties] = True
        return taken


class Upgrades:
    """Greedy by saving per unit, for very many chunks. Not exact.

    From the smallest counts, the step that saves most per additional unit is taken, among those that
    fit, until none is left. O(n · |S|² · log n) per prefix.
    """

    def __init__(self, candidates: Sequence[Choices], operator: Operator) -> None:
        self._candidates = candidates
        self._operator = operator

    def best(self, prefix: int) -> float:
        """Return the sum of the allocation found; inf if smallest counts do not fit."""
        if not self._operator.holds([each.smallest for each in self._candidates[:prefix]]):
            return float("inf")
        return sum(seconds_of(self._candidates, self.chosen(prefix)))

    def chosen(self, prefix: int) -> list[int]:
        """Return the choices of the first ``prefix`` candidates."""
        units = [each.smallest for each in self._candidates[:prefix]]
        chosen = [0] * prefix
        steps = [step for index in range(prefix) for step in self._steps(index, 0)]
        heapify(steps)
        while steps:
            _, index, before, choice = heappop(steps)
            if chosen[index] != before:
                continue
            had, units[index] = units[index], self._candidates[index].units[choice]
            if self._operator.holds(units):
                chosen[index] = choice
                for step in self._steps(index, choice):
                    heappush(steps, step)
            else:
                units[index] = had
        return chosen

    def _steps(self, index: int, before: int) -> list[tuple[float, int, int, int]]:
        """Return the steps from one choice that save time, with the savings per unit negated."""
        each = self._candidates[index]
        saved = [(each.table.item(before) - seconds) for seconds in each.seconds]
        return [
            (-saved[choice] / (each.units[choice] - each.units[before]), index, before, choice)
            for choice in range(before + 1, len(each))
            if saved[choice] > 0.0
        ]


def seconds_of(candidates: Sequence[Choices], chosen: Sequence[int]) -> list[float]:
    """Return the duration of each candidate at its chosen count."""
    return [each.table.item(choice) for each, choice in zip(candidates, chosen, strict=False)]
