"""Features: the numbers of a trajectory after step k, from which predictors estimate what is left of it.

A *step* is a generation and the tools after it. Features are the same while a trajectory runs and when rows for training
are made of it later: both add its steps to a `Progress`.

Rules
1. Features after step k are a function of the first k steps and of the prompt; nothing later enters.
2. Numbers are finite and ≥ 0, in tokens and seconds. A step with another number is refused, and the error names its member.
3. A row pairs the features after step k with the tokens and tool seconds that were left then. A trajectory of n steps
   gives rows for k < n: one that has no step left is not asked about.
4. Rows are made at the steps of `GRID`, which is dense where trajectories are many. A long trajectory thus has few rows
   more than a short one, and training is not on the long ones alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from domain.errors import InvalidRequest

#: Steps after which rows are made: all at first, then √2 apart.
GRID: Final = (0, 1, 2, 3, 4, 5, 6, 8, 11, 16, 22, 32, 45, 64, 90, 128, 181, 256)
#: No number of a step is larger: what is, has another unit or is broken.
MOST: Final = 1e12
#: Kinds of tools that a trajectory's features distinguish; further ones count as ``other``.
MOST_KINDS: Final = 32
OTHER: Final = "other"
_FLOATS: Final = frozenset((float, int))
_SHORT: Final = 3
_LONG: Final = 8


class TrajectoryStep(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A generation and the tools after it."""

    #: Tokens that were sampled.
    tokens: float
    #: Seconds of tools until the next request.
    tool_seconds: float = 0.0
    #: Prompt and answer of the generation.
    context_tokens: float = 0.0
    #: Kind of the tools, as in ``bash:test``; empty: unknown.
    kind: str = ""


class FinishedTrajectory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trajectory with all its steps."""

    task: str
    steps: tuple[TrajectoryStep, ...]
    #: Trajectories of one prompt; empty: it has none.
    group: str = ""
    #: Tokens of the first prompt.
    prompt_tokens: float = 0.0


class KindUse(msgspec.Struct, frozen=True, gc=False):
    """How often a trajectory has used tools of a kind, and when last."""

    kind: str
    steps: int
    #: Steps since then; 0: the latest step.
    since: int


class Features(msgspec.Struct, frozen=True):
    """What is known of a trajectory after a step."""

    task: str
    group: str
    #: Steps that have ended.
    steps: int
    #: By `NAMES`, in that order.
    numbers: tuple[float, ...]
    #: In the order of their first use.
    kinds: tuple[KindUse, ...] = ()


class TrainingRow(msgspec.Struct, frozen=True):
    """Features after a step, and what was left then."""

    features: Features
    tokens: float
    tool_seconds: float


#: Names of `Features.numbers`.
NAMES: Final = (
    "steps",
    "prompt_tokens",
    "context_tokens",
    "context_growth",
    "sampled_tokens",
    "tokens_a_step",
    "tokens_last",
    "tokens_of_last_3",
    "tokens_of_last_8",
    "tokens_most",
    "tool_seconds",
    "tool_seconds_a_step",
    "tool_seconds_last",
    "tool_seconds_of_last_3",
    "tool_seconds_of_last_8",
    "tool_seconds_most",
)


def usable_number(value: object) -> bool:
    """Say whether ``value`` is a finite number from 0 to `MOST`."""
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST
    )  # NaN compares false


def check(finished: FinishedTrajectory) -> None:
    """Raise InvalidRequest that names a number of a trajectory which is not finite and ≥ 0."""
    _check(finished.prompt_tokens, "prompt_tokens")
    for index, step in enumerate(finished.steps):
        _check_step(step, index)


def _check_step(step: TrajectoryStep, index: int) -> None:
    numbers = (step.tokens, step.tool_seconds, step.context_tokens)
    if _FLOATS.issuperset(map(type, numbers)) and all(0 <= each <= MOST for each in numbers):
        return
    for name in ("tokens", "tool_seconds", "context_tokens"):
        _check(getattr(step, name), f"steps[{index}].{name}")


def _check(value: object, where: str) -> None:
    if not usable_number(value):
        raise InvalidRequest(f"{where} is {value!r}: give a number from 0 to {MOST:g}")


class Progress:
    """The steps of one trajectory so far; adding one takes the same time however many there are."""

    def __init__(self, task: str, group: str = "", prompt_tokens: float = 0.0) -> None:
        _check(prompt_tokens, "prompt_tokens")
        self.task = task
        self.group = group
        self._prompt_tokens = float(prompt_tokens)
        self._steps = 0
        self._context = self._growth = float(prompt_tokens)
        self._tokens = _Series()
        self._tool_seconds = _Series()
        #: Kind → steps with it, and the number of the last one.
        self._kinds: dict[str, tuple[int, int]] = {}

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._steps

    def add(self, step: TrajectoryStep) -> None:
        """Add the next step. Raises InvalidRequest for a number that is not finite and ≥ 0."""
        _check_step(step, self._steps)
        self._steps += 1
        self._tokens.add(step.tokens)
        self._tool_seconds.add(step.tool_seconds)
        # A context that was compacted shrinks; its growth is then 0.
        self._growth = max(0.0, step.context_tokens - self._context)
        self._context = float(step.context_tokens)
        if step.kind:
            known = step.kind in self._kinds or len(self._kinds) < MOST_KINDS
            kind = step.kind if known else OTHER
            self._kinds[kind] = (self._kinds.get(kind, (0, 0))[0] + 1, self._steps)

    def features_with(self, step: TrajectoryStep) -> Features:
        """Return the numbers after one more step, which is not added: its tools may still run."""
        after = Progress(self.task, self.group, self._prompt_tokens)
        after._steps, after._context = self._steps, self._context
        after._tokens, after._tool_seconds = self._tokens.copied(), self._tool_seconds.copied()
        after._kinds = dict(self._kinds)
        after.add(step)
        return after.features()

    def features(self) -> Features:
        """Return the numbers after the latest step."""
        numbers = (
            float(self._steps),
            self._prompt_tokens,
            self._context,
            self._growth,
            *self._tokens.numbers(),
            *self._tool_seconds.numbers(),
        )
        kinds = tuple(
            KindUse(kind, steps, self._steps - last) for kind, (steps, last) in self._kinds.items()
        )
        return Features(self.task, self.group, self._steps, numbers, kinds)


class _Series:
    """Sum, mean, latest, means of the latest few, and the most of one number of the steps."""

    def __init__(self) -> None:
        self._sum = self._most = 0.0
        self._count = 0
        self._latest: list[float] = []

    def add(self, value: float) -> None:
        self._sum += value
        self._most = max(self._most, value)
        self._count += 1
        self._latest = [*self._latest[1 - _LONG :], value]

    def copied(self) -> _Series:
        other = _Series()
        other._sum, other._most, other._count = self._sum, self._most, self._count
        other._latest = self._latest  # `add` replaces it
        return other

    def numbers(self) -> tuple[float, ...]:
        if not self._count:
            return (0.0,) * 6
        latest, short = self._latest, self._latest[-_SHORT:]
        return (
            self._sum,
            self._sum / self._count,
            latest[-1],
            sum(short) / len(short),
            sum(latest) / len(latest),
            self._most,
        )


def remaining(steps: Sequence[TrajectoryStep]) -> list[tuple[float, float]]:
    """Return the tokens and tool seconds that are left after step k, for k from 0 to the last."""
    left = [(0.0, 0.0)]
    for step in reversed(steps):
        tokens, seconds = left[-1]
        left.append((tokens + step.tokens, seconds + step.tool_seconds))
    left.reverse()
    return left


def rows(finished: FinishedTrajectory, at: Iterable[int] = GRID) -> list[TrainingRow]:
    """Return the rows of a finished trajectory after the steps ``at``. Raises InvalidRequest as `Progress.add` does."""
    progress = Progress(finished.task, finished.group, finished.prompt_tokens)
    left, wanted = remaining(finished.steps), frozenset(at)
    found = []
    for index, step in enumerate(finished.steps):
        if index in wanted:
            found.append(TrainingRow(progress.features(), *left[index]))
        progress.add(step)
    return found


def scale(value: float) -> float:
    """Return a length on the scale of predictors, log(1 + value)."""
    return math.log1p(value)


def unscale(value: float) -> float:
    """Return the length of a number on the scale of predictors, within what a length may be."""
    return math.expm1(min(max(value, 0.0), math.log1p(MOST)))
