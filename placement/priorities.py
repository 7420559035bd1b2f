"""Priorities: which generation of a worker is served first, as a rank and as the integer that an engine takes.

Rules
1. The longest remaining trajectory is first, in *seconds*: tokens · seconds per token + tool seconds (heddle, formula 1). The
   paper's Algorithm 1 ranks by tokens: `rank_by_tokens`.
2. A predictor is trusted as far as it was right: with the measured rank correlation ρ of predicted and true remaining
   seconds, the order fades from longest remaining first (ρ ≥ `Fade.sure`) to least attained service (ρ ≤ `Fade.unsure`),
   the order of Autellix. Both are logarithms of seconds, so a mixture of them is between both.
3. A rank is from 0 to `MOST_RANK` at every ρ, and greater is first. One without a prediction counts as typical.
4. On the wire, ranks are 32 buckets of equal width in log seconds, and the caller's priority ranks before them.
   vLLM serves the lower integer first. SGLang serves the greater one first, unless it was started with
   ``--schedule-low-priority-values-first``; an adapter states which one it has, and never guesses.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from domain.errors import InvalidRequest
from placement.facts import Prediction

#: Ranks do not distinguish what is longer; two days.
MOST_SECONDS: Final = 2e5
MOST_RANK: Final = math.log1p(MOST_SECONDS)
BUCKETS: Final = 32
#: Finished trajectories that the measured correlation is of.
WINDOW: Final = 256
#: Pairs of predicted and true seconds that count of one trajectory.
PAIRS: Final = 8
#: A correlation of so many trajectories weighs as much as what was assumed before any.
PRIOR_WEIGHT: Final = 4
#: Engines take 32-bit integers.
_MOST_INTEGER: Final = 2**31 - 1


class Fade(msgspec.Struct, frozen=True, gc=False):
    """From which rank correlations the predicted order has no weight, and all of it."""

    unsure: float = 0.5
    sure: float = 1.0

    def __post_init__(self) -> None:
        if not -1 <= self.unsure < self.sure <= 1:
            raise InvalidRequest(
                f"fade is from {self.unsure} to {self.sure}: give two growing numbers from -1 to 1"
            )

    def weight(self, correlation: float) -> float:
        """Return the weight of the predicted order, 0 to 1; 0 for NaN."""
        if math.isnan(correlation):
            return 0.0
        share = (correlation - self.unsure) / (self.sure - self.unsure)
        return min(1.0, max(0.0, share))


def remaining_seconds(prediction: Prediction, token_seconds: float) -> float:
    """Return the seconds that are left: tokens at ``token_seconds`` each, and tools."""
    return prediction.tokens * token_seconds + prediction.tool_seconds


def rank_by_tokens(prediction: Prediction | None) -> float:
    """Return the rank of the paper's Algorithm 1: the predicted tokens; 0 without a prediction."""
    return 0.0 if prediction is None else prediction.tokens


def rank_by_seconds(
    left_seconds: float | None, attained_seconds: float, weight: float, typical_seconds: float = 0.0
) -> float:
    """Return the rank of a trajectory, 0 to `MOST_RANK`.

    ``left_seconds``: predicted; None counts as ``typical_seconds``. ``attained_seconds``: generations so far.
    ``weight``: of the predicted order, by `Fade.weight`.
    """
    left = _log(typical_seconds if left_seconds is None else left_seconds)
    return weight * left + (1 - weight) * (MOST_RANK - _log(attained_seconds))


def _log(seconds: float) -> float:
    return math.log1p(min(max(seconds, 0.0), MOST_SECONDS))


def bucket(rank: float) -> int:
    """Return the bucket of a rank of `rank_by_seconds`: 0 for what is first, to 31."""
    share = min(max(rank / MOST_RANK, 0.0), 1.0)
    return BUCKETS - 1 - min(BUCKETS - 1, int(share * BUCKETS))


class PriorityWire(msgspec.Struct, frozen=True):
    """How an engine takes the priority of a request, as the member ``priority`` of its body."""

    engine: str
    #: False: the greater integer is served first.
    lower_first: bool
    #: What the engine is started with for it.
    flags: tuple[str, ...]

    def integer(self, rank: float, priority: int = 0) -> int:
        """Return the integer of a rank; the caller's ``priority``, greater first, ranks before it."""
        value = bucket(rank) - BUCKETS * priority
        value = value if self.lower_first else -value
        return min(max(value, -_MOST_INTEGER), _MOST_INTEGER)


VLLM: Final = PriorityWire("vllm", lower_first=True, flags=("--scheduling-policy", "priority"))
#: A request without a priority is served last. `--abort-on-priority-when-disabled` makes a server without
#: priorities refuse ours, instead of ignoring them.
SGLANG: Final = PriorityWire(
    "sglang",
    lower_first=True,
    flags=(
        "--enable-priority-scheduling",
        "--schedule-low-priority-values-first",
        "--priority-scheduling-preemption-threshold", "0",
        "--retraction-policy", "priority",
        "--default-priority-value", str(_MOST_INTEGER),
        "--abort-on-priority-when-disabled",
    ),
)  # fmt: skip
#: A server that was started without the flag for lower values.
SGLANG_GREATER_FIRST: Final = PriorityWire(
    "sglang",
    lower_first=False,
    flags=(
        "--enable-priority-scheduling",
        "--priority-scheduling-preemption-threshold", "0",
        "--retraction-policy", "priority",
        "--default-priority-value", str(-_MOST_INTEGER),
        "--abort-on-priority-when-disabled",
    ),
)  # fmt: skip


class RankCorrelation:
    """Spearman's correlation of predicted and true remaining seconds, over the last finished trajectories.

    Each trajectory counts with its predictions at `PAIRS` steps at most, evenly spaced. As long as few have finished,
    the value is near ``prior``.
    """

    def __init__(self, window: int = WINDOW, prior: float = 1.0) -> None:
        self._finished: deque[tuple[tuple[float, float], ...]] = deque(maxlen=window)
        self._prior = prior
        self._value: float | None = prior

    def __len__(self) -> int:
        return len(self._finished)

    def add(self, pairs: Sequence[tuple[float, float]]) -> None:
        """Add a finished trajectory: predicted and true remaining seconds, in the order of its steps.

        Pairs with a number that is not finite or negative are left out.
        """
        usable = [pair for pair in pairs if all(map(_countable, pair))]
        if usable:
            self._finished.append(_spread(usable))
            self._value = None

    @property
    def value(self) -> float:
        """The correlation, from -1 to 1."""
        if self._value is None:
            predicted, true = np.array([p for each in self._finished for p in each]).T
            count = len(self._finished)
            measured = spearman(predicted, true)
            self._value = (count * measured + PRIOR_WEIGHT * self._prior) / (count + PRIOR_WEIGHT)
        return self._value

    @property
    def typical_seconds(self) -> float:
        """Median of the true remaining seconds; 0 before any trajectory has finished."""
        true = [seconds for each in self._finished for _, seconds in each]
        return float(np.median(true)) if true else 0.0

    def remember(self) -> list[list[tuple[float, float]]]:
        """Return the pairs of each trajectory, oldest first."""
        return [list(each) for each in self._finished]

    def recall(self, memory: Iterable[Iterable[tuple[float, float]]]) -> None:
        """Replace what is stored by what `remember` returned."""
        self._finished.clear()
        self._finished.extend(tuple((p, t) for p, t in each) for each in memory)
        self._value = None if self._finished else self._prior


def _countable(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _spread(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return `PAIRS` of the pairs at most, the first and the last among them."""
    if len(pairs) <= PAIRS:
        return tuple(pairs)
    last = len(pairs) - 1
    return tuple(pairs[index * last // (PAIRS - 1)] for index in range(PAIRS))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the rank correlation of two rows of numbers; equal ones share their rank. 0 where one of them is constant."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each number, from 0; the mean rank for equal ones."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray = ends - (counts + 1) / 2
    return means[places]
