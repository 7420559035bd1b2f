"""Shrinking: how far a trained model may correct history, by the step and by what the group shows.

History is the base, and a model says by how much to correct it, in logarithms. The correction is multiplied by a *weight*
from 0 (history alone) to 1. Weights and sigma come from out-of-fold corrections: those of trajectories whose group
the model was not trained on.

The weight of a step is that of least squares between the corrections and what was missing from history, over the rows about
this step, times n / (n + `PRIOR`) for n rows. So a model that helps only from the tenth step on is
used only from there, and one that was trained on little changes little.

Trajectories whose group has finished ones, and those without, have tables of their own: where siblings are known, history
knows more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from placement.features import GRID

#: Rows about a step at which half of the weight of least squares is given.
PRIOR: Final = 20.0
#: Width of the neighbourhood of a step, in log(1 + steps).
_WIDTH: Final = 0.5
#: Finished siblings from which on a group counts as known.
_KNOWN: Final = 1.0
#: Rows that the spread of the step before counts as.
_SPREAD_ROWS: Final = 2.0
_POSITIONS: Final = np.log1p(np.array(GRID, dtype=float))


class StepTable(msgspec.Struct, frozen=True):
    """Numbers by step of the grid: without finished siblings, and with them."""

    alone: list[float]
    siblings: list[float]

    def at(self, steps: int, siblings: float) -> float:
        """Return the number after ``steps``, interpolated."""
        values = self.siblings if siblings >= _KNOWN else self.alone
        return float(np.interp(math.log1p(steps), _POSITIONS, values))


class FoldErrors(msgspec.Struct, frozen=True):
    """Out-of-fold errors; one number each row."""

    #: Steps after which the row is.
    steps: np.ndarray
    #: Finished siblings that history knew of.
    siblings: np.ndarray
    #: Truth less history.
    missing: np.ndarray
    #: Correction that the model would make.
    correction: np.ndarray


#: Numbers by step of the grid, from errors.
_Measure = Callable[[FoldErrors], list[float]]


def weights(errors: FoldErrors) -> StepTable:
    """Return the weights of the corrections; 0 where no row is."""
    return _table(errors, _weights)


def sigmas(errors: FoldErrors, weight: StepTable) -> StepTable:
    """Return the standard deviation of what is missing after the weighted corrections."""
    used = [
        weight.at(int(steps), siblings)
        for steps, siblings in zip(errors.steps, errors.siblings, strict=True)
    ]
    rest = errors.missing - np.array(used) * errors.correction
    left = FoldErrors(errors.steps, errors.siblings, rest, errors.correction)
    return _table(left, _spreads)


def _table(errors: FoldErrors, measure: _Measure) -> StepTable:
    known = errors.siblings >= _KNOWN
    alone = measure(_part(errors, ~known))
    # Before any group was seen twice, groups count as those that are new.
    return StepTable(alone, measure(_part(errors, known)) if known.any() else alone)


def _part(errors: FoldErrors, chosen: np.ndarray) -> FoldErrors:
    return FoldErrors(
        errors.steps[chosen], errors.siblings[chosen],
        errors.missing[chosen], errors.correction[chosen],
    )  # fmt: skip


def _weights(errors: FoldErrors) -> list[float]:
    found = []
    for near in _neighbourhoods(errors.steps):
        size = float(near @ errors.correction**2)
        best = float(near @ (errors.correction * errors.missing)) / size if size else 0.0
        count = float(near.sum())
        found.append(min(1.0, max(0.0, best)) * count / (count + PRIOR))
    return found


def _spreads(errors: FoldErrors) -> list[float]:
    """Return the spread at each step; where rows are few it is near that of the step before."""
    squares = errors.missing**2
    before, found = float(squares.mean()) if len(squares) else 0.0, []
    for near in _neighbourhoods(errors.steps):
        before = (float(near @ squares) + _SPREAD_ROWS * before) / (
            float(near.sum()) + _SPREAD_ROWS
        )
        found.append(math.sqrt(before))
    return found


def _neighbourhoods(steps: np.ndarray) -> Sequence[np.ndarray]:
    """Return, for each step of the grid, the weights of rows: 1 at that step, falling to 0 at `_WIDTH`."""
    positions = np.log1p(steps.astype(float))
    return [np.clip(1 - np.abs(positions - each) / _WIDTH, 0.0, None) for each in _POSITIONS]
