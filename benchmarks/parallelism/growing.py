"""Growing contexts, replayed on a profile: the selector beside each fixed degree and the oracle. Pure.

A step has a mean context and a longest one, and so many tokens that are decoded. Its seconds at a degree are those tokens by the profile's rate;
a degree that lacks memory for the longest context of a step cannot run it. The oracle knows all steps before the first one, and takes the degrees
with the least seconds, changes included. The selector knows the steps before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from domain.selectors import (
    Parallelism,
    ParallelismProfile,
    SelectorSpec,
    SelectorStage,
    StageLoad,
)
from scheduler.core.residency.parallelism import ParallelismStanding, ProfileTable, choose


class Step(NamedTuple):
    """A step of a training run."""

    context: float
    longest: float
    responses: int
    #: Decoded by all responses.
    tokens: float

    @property
    def load(self) -> StageLoad:
        """What is observed of it."""
        return StageLoad(
            self.context, context_longest=self.longest, responses=self.responses, tokens=self.tokens
        )


class Replayed(NamedTuple):
    """A run of all steps."""

    seconds: float
    degrees: tuple[Parallelism | None, ...]
    #: The first step for which there was no memory; None: there was for all.
    lacked_memory_at: int | None = None

    @property
    def switches(self) -> int:
        """How often the degree changed."""
        pairs = zip(self.degrees, self.degrees[1:], strict=False)
        return sum(a != b for a, b in pairs)


def growing(
    low: float, high: float, count: int, responses: int, seed: int, *, share: float = 0.5,
    noise: float = 0.1, spread: float = 1.25,
) -> list[Step]:  # fmt: skip
    """Return steps whose contexts grow from ``low`` to ``high`` by equal factors.

    share: of a context that a step decodes; noise: standard deviation of a step's mean, as a share; spread: longest over mean.
    """
    chance, steps = Random(seed), []
    for n in range(count):
        mean = low * (high / spread / low) ** (n / max(1, count - 1))
        mean = min(high / spread, max(1.0, mean * chance.gauss(1.0, noise)))
        steps.append(Step(mean, min(high, mean * spread), responses, share * mean * responses))
    return steps


class World:
    """A profile, and what steps take in it."""

    def __init__(self, spec: SelectorSpec, profile: ParallelismProfile) -> None:
        self.spec = spec
        self.table = ProfileTable(profile, SelectorStage.ROLLOUT)
        #: The GPUs of the largest degree: a smaller one has more copies on them.
        self._gpus = max(each.gpus for each in spec.degrees)

    def seconds(self, degree: Parallelism, step: Step) -> float:
        """Return what a step takes; infinite without memory."""
        rate = self.table.rate(degree, step.context, step.responses)
        if rate is None or not self.table.survives(degree, step.longest, step.responses):
            return math.inf
        return step.tokens / (rate * self._gpus)

    def switch_seconds(self, former: Parallelism | None, to: Parallelism) -> float:
        """Return what a change costs; the first degree is free, as it is for the selector."""
        if former is None or former == to:
            return 0.0
        found = self.table.switch_seconds(former, to)
        return self.spec.switch_seconds if found is None else found

    def fixed(self, degree: Parallelism, steps: Sequence[Step]) -> Replayed:
        """Return a run of one degree; it ends with the first step that it has no memory for."""
        total = 0.0
        for n, step in enumerate(steps):
            seconds = self.seconds(degree, step)
            if math.isinf(seconds):
                return Replayed(total, (degree,) * n, n)
            total += seconds
        return Replayed(total, (degree,) * len(steps))

    def oracle(self, steps: Sequence[Step]) -> Replayed:
        """Return the run of the least seconds."""
        degrees = self.spec.degrees
        best: dict[Parallelism, tuple[float, tuple[Parallelism, ...]]] = {
            each: (0.0, (each,)) for each in degrees
        }
        for n, step in enumerate(steps):
            following: dict[Parallelism, tuple[float, tuple[Parallelism, ...]]] = {}
            for to in degrees:
                seconds, way = min(
                    (total + (self.switch_seconds(former, to) if n else 0.0), way)
                    for former, (total, way) in best.items()
                    if n or former == to
                )
                following[to] = (seconds + self.seconds(to, step), (*way, to) if n else way)
            best = following
        seconds, way = min(best.values())
        if math.isinf(seconds):
            return Replayed(seconds, (), 0)
        return Replayed(seconds, way)

    def selected(self, steps: Sequence[Step]) -> Replayed:
        """Return the run of the selector, which knows each step after it; the first one is expected to be as it is."""
        standing, total = ParallelismStanding(), 0.0
        degrees: list[Parallelism | None] = []
        for n, step in enumerate(steps):
            choice = choose(self.spec, self.table, steps[max(0, n - 1)].load, standing)
            standing = choice.standing
            if choice.parallelism is None:
                return Replayed(total, tuple(degrees), n)
            total += self.switch_seconds(choice.former, choice.parallelism)
            seconds = self.seconds(choice.parallelism, step)
            degrees.append(choice.parallelism)
            if math.isinf(seconds):
                return Replayed(total, tuple(degrees), n)
            total += seconds
        return Replayed(total, tuple(degrees))


def noisy(context: float, responses: int, count: int, seed: int, noise: float = 0.1) -> list[Step]:
    """Return steps of one mean context with noise."""
    chance = Random(seed)
    steps = []
    for _ in range(count):
        mean = max(1.0, context * chance.gauss(1.0, noise))
        steps.append(Step(mean, mean * 1.25, responses, mean * responses / 2))
    return steps


def flapping(world: World, responses: int, low: float, high: float, seed: int) -> dict[float, int]:
    """Return how often the selector changes the degree in 1,000 steps with 10 % noise, about contexts from ``low`` to ``high``."""
    points = 24
    means = [low * (high / low) ** (n / (points - 1)) for n in range(points)]
    return {
        mean: world.selected(noisy(mean, responses, 1000, seed + n)).switches
        for n, mean in enumerate(means)
    }
