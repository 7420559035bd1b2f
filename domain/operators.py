"""How units of one resource combine: the operator that DPArrange is told (paper Appendix B).

Theory of operation. The dynamic program behind elastic grants knows no topology. It fills one row
per action over *states*: a state says what may still be handed out. An operator numbers the states
and says from which state one gets to which by handing out some units. Plain counts have one state
per count (`UnitsOperator`, the paper's Basic DP Operator); aligned blocks bring their own.

Departures from the paper's operator (Algorithm 3, lines 26 to 43)
1. A row holds the best over *at most* what a state offers, not over exactly that: with discrete
   unit sets no sum may hit the total. START and ISVALID, which prune states that cannot be hit
   exactly, are not needed then; a state that cannot be reached is infinite by itself.
2. PREV answers for all states at once, as an array, so that a row costs a few array operations.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from domain.resources import MILLI

Indices = NDArray[np.intp]
Amounts = NDArray[np.int64]


class Operator(Protocol):
    """States of one resource, and what handing out units does to them."""

    @property
    def total(self) -> int | None:
        """Milli-units free, where only the sum of what is handed out counts; None elsewhere."""

    @property
    def amounts(self) -> Amounts:
        """Milli-units that each state offers; the last state is all that is free."""

    def previous(self, units: tuple[int, ...]) -> Indices:
        """Return, for each count of ``units`` (milli) and each state, the state that is left.

        Shape (counts, states); -1 where the count cannot be had from that state.
        """


class UnitsOperator:
    """Units that are all alike: states are counts, PREV subtracts (Algorithm 3, lines 26 to 43).

    ``free`` milli-units in steps of ``step``; a count that is no multiple of the step takes the
    next larger one. A negative ``free`` offers nothing.
    """

    __slots__ = ("_states", "_step", "total")

    def __init__(self, free: int, step: int = MILLI) -> None:
        self.total = max(0, free)
        self._step = step
        self._states = max(0, free) // step + 1

    @property
    def amounts(self) -> Amounts:
        """Return 0, step, 2 · step, … up to what is free."""
        return np.arange(self._states, dtype=np.int64) * self._step

    def previous(self, units: tuple[int, ...]) -> Indices:
        """Return count minus units (PREV, line 34)."""
        return _subtracted(self._states, self._step, units)


@lru_cache(maxsize=64)
def _subtracted(states: int, step: int, units: tuple[int, ...]) -> Indices:
    taken = -(-np.array(units, dtype=np.intp) // step)
    left = np.arange(states, dtype=np.intp)[None, :] - taken[:, None]
    left[left < 0] = -1
    left.setflags(write=False)
    return left
