"""Calibration of predicted starts: how far predictions were off, as ranges that hold as often as they say. Pure.

Theory of operation. A prediction (`scheduler.core.advice.forecast`) is one number with a bias: it counts
slots, and ignores requeues, wider grants and environments that are made first. So it is never shown
alone. While actions wait, some are predicted, and compared with their grants:

- **Score** of a prediction: log((actual + `SOFTENING`) / (predicted + `SOFTENING`)). Scores are kept by
  class, which is the kind of the resource that an action waits for and whether it is first in its queue.
- **Range**: the prediction times the quantiles of the last `KEPT` scores of its class (split conformal
  prediction), so that a share of `HELD` of all ranges holds.
- **Hit rate**: each range that could be made for a predicted action is judged by its start: *held*, or
  *missed*, which counts as soon as the action waits for longer. The level of the quantiles follows the
  misses (adaptive conformal inference, Gibbs and Candès 2021), since loads change.

An action that waits for longer than its range counts with its wait so far, or the class would learn
from short waits alone. Without `FEWEST` scores and as many judged ranges, or where fewer than `TRUSTED`
of the ranges held, the start is unknown.

Cost: at most `SAMPLED` predictions in `EVERY_SECONDS` of journal time. Nothing is stored: a new leader
begins without scores.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log
from typing import Final

from domain.advice import StartRange
from domain.decisions import Decision, Finish, Grant
from domain.ids import ActionId
from scheduler.core.advice.facts import ActionStatus
from scheduler.core.advice.forecast import LONGEST
from scheduler.core.advice.status import explain
from scheduler.core.state.model import State

#: Share of the ranges that is to hold.
HELD: Final = 0.9
#: Scores and judged ranges that a class keeps; fewest for a range, and to show one.
KEPT: Final = 500
FEWEST: Final = 20
#: Share of judged ranges below which no range is shown.
TRUSTED: Final = 0.8
#: Seconds that are added to both waits: a millisecond's error of a short wait says nothing.
SOFTENING: Final = 0.5
#: Between two samples, actions of a sample, and predicted actions that still wait, at most.
EVERY_SECONDS: Final = 0.5
SAMPLED: Final = 2
MOST_OPEN: Final = 512
#: Change of the level for each judged range.
_STEP: Final = 0.01
_LEVELS: Final = (0.01, 0.3)
#: Irrational steps, whose multiples modulo 1 spread evenly: the core draws no random numbers.
_OF_QUEUES: Final = 0.6180339887498949
_OF_ACTIONS: Final = 0.41421356237309515


@dataclass(slots=True)
class _Prediction:
    """A waiting action that was predicted."""

    at: float
    seconds: float
    #: Its class.
    about: tuple[str, bool]
    #: Bounds that could have been shown; None before the class had scores.
    bounds: tuple[float, float] | None
    missed: bool = False

    def score(self, waited: float) -> float:
        return log((waited + SOFTENING) / (self.seconds + SOFTENING))


@dataclass(slots=True)
class _Class:
    """Scores of predictions about one kind of wait."""

    scores: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    #: Whether each judged range held.
    judged: deque[bool] = field(default_factory=lambda: deque(maxlen=KEPT))
    #: Share of the ranges that the quantiles leave outside.
    level: float = 1 - HELD

    def bounds(self, seconds: float, late: Iterable[float]) -> tuple[float, float] | None:
        """Return the bounds around a prediction; ``late``: scores so far of actions that wait too long."""
        scores = sorted((*self.scores, *late))
        count = len(scores)
        if len(self.scores) < FEWEST:
            return None
        tail = max(self.level / 2, 1 / (count + 1))
        low = scores[max(0, int((count + 1) * tail) - 1)]
        high = scores[min(count, ceil((count + 1) * (1 - tail))) - 1]
        base = seconds + SOFTENING
        return max(0.0, base * exp(low) - SOFTENING), max(0.0, base * exp(high) - SOFTENING)

    def judge(self, *, held: bool) -> None:
        """Count whether a range held."""
        self.judged.append(held)
        level = self.level + _STEP * (1 - HELD - (not held))
        self.level = min(max(level, _LEVELS[0]), _LEVELS[1])

    @property
    def hit_rate(self) -> float:
        return sum(self.judged) / len(self.judged) if self.judged else 0.0


class StartCalibration:
    """Compares predicted starts with grants, and turns predictions into ranges."""

    def __init__(self) -> None:
        self._classes: dict[tuple[str, bool], _Class] = {}
        self._open: dict[ActionId, _Prediction] = {}
        #: Number of samples so far: it places the next one.
        self._samples = 0
        self._next_at = float("-inf")

    def observe(self, state: State, decisions: Sequence[Decision]) -> None:
        """Judge the predictions of actions that were granted, and predict some of those that wait."""
        now = state.now
        if self._open:
            for decision in decisions:
                if type(decision) is Grant:
                    self._granted(decision.action_id, now)
                elif type(decision) is Finish:
                    self._open.pop(decision.action_id, None)
        if now < self._next_at:
            return
        self._next_at = now + EVERY_SECONDS
        self._count_late(now)
        if len(self._open) < MOST_OPEN:
            for action_id in self._waiting(state):
                self._predict(state, action_id)

    def range_of(self, status: ActionStatus, now: float) -> StartRange | None:
        """Return when a waiting action may start, in seconds from ``now``; None: unknown."""
        seconds, about = status.starts_in_seconds, _about(status)
        known = None if about is None else self._classes.get(about)
        if seconds is None or about is None or known is None or len(known.judged) < FEWEST:
            return None
        bounds = self._bounds(about, seconds, now)
        if bounds is None or known.hit_rate < TRUSTED:
            return None
        low, high = (round(each, 3) for each in bounds)
        return StartRange(low, high, HELD, round(known.hit_rate, 4), len(known.judged))

    def hit_rates(self) -> dict[str, tuple[float, int]]:
        """Return the hit rate and the number of judged ranges of each class, by name."""
        return {
            f"{kind}, {'first' if first else 'behind others'}": (each.hit_rate, len(each.judged))
            for (kind, first), each in sorted(self._classes.items())
        }

    def _granted(self, action_id: ActionId, now: float) -> None:
        found = self._open.pop(action_id, None)
        if found is None:
            return
        waited = now - found.at
        known = self._classes[found.about]
        known.scores.append(found.score(waited))
        if found.bounds is not None and not found.missed:
            low, high = found.bounds
            known.judge(held=low <= waited <= high)

    def _count_late(self, now: float) -> None:
        """Count ranges as missed whose actions wait for longer."""
        for found in self._open.values():
            if found.bounds is None or found.missed or now - found.at <= found.bounds[1]:
                continue
            found.missed = True
            self._classes[found.about].judge(held=False)

    def _waiting(self, state: State) -> list[ActionId]:
        """Return up to `SAMPLED` waiting actions that are not predicted yet, spread over the queues."""
        queues = [queue for queue in state.queues.active.values() if queue.size]
        chosen: list[ActionId] = []
        for _ in range(min(SAMPLED, len(queues))):
            self._samples += 1
            queue = queues[_place(self._samples, _OF_QUEUES, len(queues))]
            # Every second sample is of the action that is first in its queue.
            within = min(queue.size, LONGEST) if self._samples // SAMPLED % 2 else 1
            found = queue.in_order(_place(self._samples, _OF_ACTIONS, within), 1)
            chosen += [live.id for live in found if live.id not in self._open]
        return chosen

    def _predict(self, state: State, action_id: ActionId) -> None:
        status = explain(state, action_id)
        if status is None:
            return
        seconds, about = status.starts_in_seconds, _about(status)
        if seconds is None or about is None:
            return
        self._classes.setdefault(about, _Class())
        bounds = self._bounds(about, seconds, state.now)
        self._open[action_id] = _Prediction(state.now, seconds, about, bounds)

    def _bounds(
        self, about: tuple[str, bool], seconds: float, now: float
    ) -> tuple[float, float] | None:
        late = [
            each.score(now - each.at)
            for each in self._open.values()
            if each.missed and each.about == about
        ]
        return self._classes[about].bounds(seconds, late)


def _about(status: ActionStatus) -> tuple[str, bool] | None:
    """Return the class of a prediction; None where nothing is predicted."""
    waiting = status.waiting
    if waiting is None or waiting.resource is None:
        return None
    return waiting.resource.partition(":")[0], waiting.code != "behind"


def _place(number: int, step: float, size: int) -> int:
    """Return a place below ``size`` for sample ``number``."""
    return int(number * step % 1.0 * size)
