"""Operators of DPArrange: the states of one resource and their transitions (paper Appendix B).

Theory of operation. The dynamic program behind elastic grants is independent of topology. It fills
one row per action over *states*: a state is what is still free. An operator numbers the states and
gives the transition for each grant. Plain counts have one state per count (`UnitsOperator`, the
paper's Basic DP Operator); chunks of GPUs have one state per reachable combination of free chunks
of 1, 2, 4 and 8 (`ChunksOperator`).

Departures from the paper's operator (Algorithm 3, lines 26 to 43)
1. A row holds the best over *at most* what a state offers, not over exactly that: with discrete
   unit sets no sum may equal the total. START and ISVALID, which prune states that cannot be hit
   exactly, are then unnecessary: an unreachable state is infinite by itself.
2. PREV covers all states at once, as an array, so that a row costs a few array operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from domain.chunks import SIZES, TOP, Counts, fit, level_of
from domain.resources import MILLI

Indices = NDArray[np.intp]
Amounts = NDArray[np.int64]


class Operator(Protocol):
    """States of one resource, and the transition that each grant causes."""

    @property
    def total(self) -> int | None:
        """Free milli-units, where only the sum of the grants matters; else None."""

    @property
    def states(self) -> int:
        """Upper bound on the number of states."""

    @property
    def amounts(self) -> Amounts:
        """Milli-units that each state offers; the last state offers all that is free."""

    def holds(self, units: Sequence[int]) -> bool:
        """Return whether all these counts (milli) can be granted together."""

    def previous(self, units: tuple[int, ...]) -> Indices:
        """Return, for each count of ``units`` (milli) and each state, the state that is left.

        Shape (counts, states); -1 where the state does not offer the count.
        """


class UnitsOperator:
    """Interchangeable units: states are counts, PREV subtracts (Algorithm 3, lines 26 to 43).

    ``free`` milli-units in steps of ``step``; counts are rounded up to a multiple of the step. A negative ``free`` offers nothing.
    """

    __slots__ = ("_step", "states", "total")

    def __init__(self, free: int, step: int = MILLI) -> None:
        self.total = max(0, free)
        self._step = step
        self.states = max(0, free) // step + 1

    @property
    def amounts(self) -> Amounts:
        """Return 0, step, 2 · step, … up to what is free."""
        return np.arange(self.states, dtype=np.int64) * self._step

    def holds(self, units: Sequence[int]) -> bool:
        """Return whether the counts, in whole steps, fit into what is free."""
        return sum(-(-count // self._step) for count in units) < self.states

    def previous(self, units: tuple[int, ...]) -> Indices:
        """Return count minus units (PREV, line 34)."""
        return _subtracted(self.states, self._step, units)


@lru_cache(maxsize=64)
def _subtracted(states: int, step: int, units: tuple[int, ...]) -> Indices:
    taken = -(-np.array(units, dtype=np.intp) // step)
    left = np.arange(states, dtype=np.intp)[None, :] - taken[:, None]
    left[left < 0] = -1
    left.setflags(write=False)
    return left


class ChunksOperator:
    """Chunks of 1, 2, 4 and 8 GPUs on any number of nodes (Algorithm 4).

    A state is (a, b, c, d), the free chunks of each size, numbered by the mixed-radix encoding of
    line 2. Departures from the paper's operator:

    1. PREV takes *one* chunk, the smallest that suffices, and halves it as often as needed, as the
       text of §5.3 describes. As printed (lines 22 to 39) it combines several chunks for one
       request, which may be on different nodes, and never splits one.
    2. Splitting creates chunks of new sizes, so each digit has a range of at least 0 to 1.
    3. States that offer more than is free (`_feasible`) are unreachable and left out.
    """

    __slots__ = ("_free", "states")

    total = None

    def __init__(self, free: Counts) -> None:
        """``free`` chunks of 1, 2, 4 and 8 GPUs, none of them negative."""
        self._free = free
        self.states = prod(_radices(free))

    @property
    def amounts(self) -> Amounts:
        """Return the GPUs of each state in milli-units."""
        return _chunk_states(self._free).amounts

    def holds(self, units: Sequence[int]) -> bool:
        """Return whether there are chunks for all counts at once."""
        levels = [level_of(count) for count in units]
        known = [level for level in levels if level is not None]
        return len(known) == len(levels) and fit(self._free, known)

    def previous(self, units: tuple[int, ...]) -> Indices:
        """Return the states after one chunk is taken (PREV, as above)."""
        return _chunk_taken(self._free, units)


class _ChunkStates(NamedTuple):
    """States by rising offer, shape (states, 4), and their numbers by code."""

    counts: NDArray[np.int64]
    amounts: Amounts
    numbers: Indices


def _radices(free: Counts) -> tuple[int, ...]:
    return tuple(max(count, int(any(free[level + 1 :]))) + 1 for level, count in enumerate(free))


def _feasible(counts: NDArray[np.int64], free: Counts) -> NDArray[np.bool_]:
    """Mark the states that offer nothing beyond ``free``."""
    kept = np.ones(len(counts), dtype=np.bool_)
    offered, have = np.zeros(len(counts), dtype=np.int64), 0
    for level in range(TOP, -1, -1):
        offered = offered + counts[:, level] * SIZES[level]
        have += free[level] * SIZES[level]
        kept &= offered <= have
    return kept


@lru_cache(maxsize=256)
def _chunk_states(free: Counts) -> _ChunkStates:
    """Number the states of ``free``: O(product of the digits), once."""
    radices = _radices(free)
    grid = np.indices(radices[::-1]).reshape(len(SIZES), -1)[::-1].T  # code = row (ENCODE)
    codes = np.flatnonzero(_feasible(grid, free))
    amounts = grid[codes] @ np.array(SIZES) * MILLI
    order = np.argsort(amounts, kind="stable")
    numbers = np.full(len(grid), -1, dtype=np.intp)
    numbers[codes[order]] = np.arange(len(codes))
    return _ChunkStates(grid[codes[order]], amounts[order], numbers)


@lru_cache(maxsize=1024)
def _chunk_taken(free: Counts, units: tuple[int, ...]) -> Indices:
    left = np.stack([_one_taken(free, level_of(count)) for count in units])
    left.setflags(write=False)
    return left


@lru_cache(maxsize=1024)
def _one_taken(free: Counts, level: int | None) -> Indices:
    """Return for each state the one after a chunk of ``level`` is taken; -1 without one."""
    counts, _, numbers = _chunk_states(free)
    taken = np.full(len(counts), -1, dtype=np.intp)
    if level is None:
        return taken
    weights = np.cumprod((1, *_radices(free)[:-1]))
    codes = counts @ weights
    short = np.ones(len(counts), dtype=np.bool_)
    for source in range(level, TOP + 1):
        # The source chunk is split: one more chunk of each size between.
        step = weights[level:source].sum() - weights[source]
        rows = np.flatnonzero(short & (counts[:, source] > 0))
        taken[rows] = numbers[codes[rows] + step]
        short[rows] = False
    return taken
