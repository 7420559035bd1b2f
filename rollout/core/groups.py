"""Groups: the samples of one instance, whose rewards are compared (GRPO, DAPO).

A group is *complete* when every sample has ended, and *informative* when its rewards differ: only then has it a gradient.
A sample without a reward, which includes every one that did not complete, never trains.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from domain.rollouts import RolloutOutcome, RolloutResult


class GroupSummary(msgspec.Struct, frozen=True):
    """What the ended samples of a group show."""

    samples: int
    ended: int
    rewards: tuple[float, ...]
    mean: float | None
    #: Of the population; None without rewards.
    deviation: float | None

    @property
    def complete(self) -> bool:
        """Whether every sample has ended."""
        return self.ended >= self.samples

    @property
    def informative(self) -> bool:
        """Whether its rewards differ."""
        return len(set(self.rewards)) > 1

    @property
    def wasted(self) -> bool:
        """Whether it is complete and trains nothing."""
        return self.complete and not self.informative


def summary_of(samples: int, results: Iterable[RolloutResult]) -> GroupSummary:
    """Return the summary of a group of so many samples, of which these have ended."""
    ended = list(results)
    rewards = tuple(
        result.reward
        for result in ended
        if result.outcome is RolloutOutcome.COMPLETED and result.reward is not None
    )
    mean = statistics.fmean(rewards) if rewards else None
    deviation = statistics.pstdev(rewards) if rewards else None
    return GroupSummary(samples, len(ended), rewards, mean, deviation)
