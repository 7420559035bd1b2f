"""History: what finished trajectories of a group and of a task had left after so many steps.

The estimator. Each finished trajectory gives, at each step of `GRID` that it reached, the logarithms of what it had left. A
*level* (all, a task, a group) has their means at each step of the grid. A level is shrunk to the one above it: its mean
weighs as its n trajectories, the mean above as `PULL` of them. Between steps of the grid the estimate is interpolated; beyond
the last step that any trajectory reached, the last estimate stays.

Rules
1. Only trajectories that reached a step count there, so a long trajectory is compared with long ones.
2. Estimates are medians: exp of a mean of logarithms. Their sigma is the spread of single trajectories around it.
3. Each further trajectory of a level weighs 1 / `DECAY` times the one before, since a model that is trained changes.
4. Memory is bounded: the least recently used groups and tasks beyond `MOST_GROUPS` and `MOST_TASKS` are forgotten.
5. History outlives weights: it is fed, never cleared, when a model gets new ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from domain.errors import Unreadable
from placement.facts import Prediction
from placement.features import GRID, Features, FinishedTrajectory, TrainingRow, rows, scale, unscale

#: Trajectories whose weight the mean of the level above has.
PULL: Final = 2.0
#: About the last 500 trajectories of a level matter.
DECAY: Final = 0.998
MOST_GROUPS: Final = 20_000
MOST_TASKS: Final = 1_000
#: Spread of log lengths before two trajectories have finished.
UNKNOWN_SIGMA: Final = 1.0
#: A level with less than half a trajectory at a step says nothing there.
_LEAST: Final = 0.5
_POSITIONS: Final = np.log1p(np.array(GRID, dtype=float))
_SHAPE: Final = (4, len(GRID))


class Estimate(NamedTuple):
    """What history says is left, on the scale of predictors."""

    tokens: float
    tool_seconds: float
    #: Standard deviation of single trajectories around ``tokens``.
    sigma: float
    #: Finished trajectories of the group that reached about this step, decayed.
    siblings: float


class LengthObservation(NamedTuple):
    """What one trajectory had left at the steps of the grid that it reached."""

    task: str
    group: str
    #: Rows: count, tokens, tokens squared, tool seconds, on the scale of predictors; columns: steps of the grid.
    sums: np.ndarray


def observation(task: str, group: str, seen: Sequence[TrainingRow]) -> LengthObservation:
    """Return what `History` keeps of a trajectory, of its rows at the grid."""
    sums = np.zeros(_SHAPE)
    for column, row in enumerate(seen):
        tokens, seconds = scale(row.tokens), scale(row.tool_seconds)
        sums[:, column] = 1.0, tokens, tokens * tokens, seconds
    return LengthObservation(task, group, sums)


class HistoryMemory(msgspec.Struct, frozen=True):
    """State of a `History`."""

    overall: bytes
    #: By task, and by task and group; the least recently used first.
    tasks: list[tuple[str, bytes]]
    groups: list[tuple[str, str, bytes]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HistoryMemory).decode


class History:
    """Means by group, by task and of all; the predictor ``history``."""

    name = "history"

    def __init__(self, decay: float = DECAY, pull: float = PULL) -> None:
        self._decay = decay
        self._pull = pull
        self._overall = np.zeros(_SHAPE)
        self._tasks: OrderedDict[str, np.ndarray] = OrderedDict()
        self._groups: OrderedDict[tuple[str, str], np.ndarray] = OrderedDict()

    def observe(self, finished: FinishedTrajectory, texts: Sequence[str] = ()) -> None:
        """Add a finished trajectory; texts teach it nothing. Raises InvalidRequest for a number that is not finite and ≥ 0."""
        self.add(observation(finished.task, finished.group, rows(finished)))

    def add(self, seen: LengthObservation) -> None:
        """Add what was observed of a trajectory."""
        self._overall = self._decay * self._overall + seen.sums
        _add(self._tasks, seen.task, seen.sums, self._decay, MOST_TASKS)
        if seen.group:
            _add(self._groups, (seen.task, seen.group), seen.sums, self._decay, MOST_GROUPS)

    def refit(self, seed: int) -> bytes:
        """Return nothing: means need no fit."""
        return b""

    def use(self, fitted: bytes) -> None:
        """Accept what `refit` returned."""

    def predict(self, features: Features, text: str | None = None) -> Prediction | None:
        """Return what is left by history alone; None before any trajectory has finished."""
        found = self.estimate(features.task, features.group, features.steps)
        if found is None:
            return None
        return Prediction(
            unscale(found.tokens), unscale(found.tool_seconds), found.sigma, source=self.name
        )

    def estimate(self, task: str, group: str, steps: int) -> Estimate | None:
        """Return what is left after ``steps``; None before any trajectory has finished."""
        found = self.profile(task, group)
        if found is None:
            return None
        column = bisect_right(GRID, steps) - 1
        values = found[:, column]
        if column + 1 < len(GRID):
            width = _POSITIONS[column + 1] - _POSITIONS[column]
            share = (math.log1p(steps) - _POSITIONS[column]) / width
            values = (1 - share) * values + share * found[:, column + 1]
        return Estimate(*values.tolist())

    def profile(
        self, task: str, group: str, without: LengthObservation | None = None
    ) -> np.ndarray | None:
        """Return the members of `Estimate` at each step of the grid, a row each; None without trajectories.

        ``without``: a trajectory to leave out, which was added to a history that does not decay.
        """
        levels = [self._overall, self._tasks.get(task), self._groups.get((task, group))]
        if without is not None:
            inside = (True, without.task == task, (without.task, without.group) == (task, group))
            levels = [
                level - without.sums if level is not None and within else level
                for level, within in zip(levels, inside, strict=True)
            ]
        present = [level for level in levels if level is not None]
        # Counts do not grow along the grid: what reached a step reached all before it.
        last = int(np.count_nonzero(present[0][0] > _LEAST)) - 1
        if last < 0:
            return None
        siblings = np.zeros(len(GRID)) if levels[2] is None else levels[2][0]
        found = np.vstack([*_shrunk(present, self._pull), siblings])
        found[:3, last + 1 :] = found[:3, last : last + 1]
        return found

    def remember(self) -> bytes:
        """Return the state as bytes; equal states give equal ones."""
        return _encode(
            HistoryMemory(
                self._overall.tobytes(),
                [(task, sums.tobytes()) for task, sums in self._tasks.items()],
                [(*key, sums.tobytes()) for key, sums in self._groups.items()],
            )
        )

    def recall(self, memory: bytes) -> None:
        """Restore what `remember` returned. Raises Unreadable."""
        try:
            found = _decode(memory)
            overall = _array(found.overall)
            tasks = OrderedDict((task, _array(sums)) for task, sums in found.tasks)
            groups = OrderedDict(((task, name), _array(sums)) for task, name, sums in found.groups)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(
                f"the history of trajectories cannot be read ({error}): delete it, and it is learnt again"
            ) from error
        self._overall, self._tasks, self._groups = overall, tasks, groups


def _add(
    levels: OrderedDict[Any, np.ndarray], key: Any, sums: np.ndarray, decay: float, most: int
) -> None:
    """Add to one level; the least recently used beyond ``most`` is forgotten."""
    before = levels.pop(key, None)
    levels[key] = sums.copy() if before is None else decay * before + sums
    if len(levels) > most:
        levels.popitem(last=False)


def _shrunk(levels: list[np.ndarray], pull: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return tokens, tool seconds and sigma at each step, of the sums of nested levels, the widest first."""
    tokens, seconds = np.zeros(len(GRID)), np.zeros(len(GRID))
    spread = np.full(len(GRID), UNKNOWN_SIGMA * UNKNOWN_SIGMA)
    above = np.zeros(len(GRID))
    for count, total, squares, tools in levels:
        says = count > _LEAST
        number = np.where(says, count, 1.0)
        own = np.maximum(0.0, squares / number - (total / number) ** 2)
        tokens = np.where(says, (total + above * tokens) / (number + above), tokens)
        seconds = np.where(says, (tools + above * seconds) / (number + above), seconds)
        # One trajectory shows no spread: a variance weighs as the trajectories beyond the first.
        beyond = np.maximum(number - 1, 0.0) + pull
        spread = np.where(says, (number * own + pull * spread) / beyond, spread)
        above = np.where(says, pull, above)
    return tokens, seconds, np.sqrt(spread)


def _array(stored: bytes) -> np.ndarray:
    return np.frombuffer(stored, dtype=float).reshape(_SHAPE).copy()
