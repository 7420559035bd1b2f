"""What a batch of entries adds to the sums of steps and of ends: what pages of tasks show.

A page that summed a million actions would be late, and what was pruned would be missing from it.
So sums are rows, written in the transaction that writes the actions. Means are made when they are
shown: sums add up over any split of the journal, means do not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from domain.action import Action
from domain.decisions import Finish


class StepKey(NamedTuple):
    """A training step of a task."""

    project: str
    task: str
    step: int


class EndKey(NamedTuple):
    """A way in which actions of a task end."""

    project: str
    task: str
    outcome: str


@dataclass(slots=True)
class StepChange:
    """Additions to one step; wall clocks are 0 while nothing is known."""

    actions: int = 0
    finished: int = 0
    #: Finished ones that have a reward.
    rewarded: int = 0
    queue_seconds: float = 0.0
    act_seconds: float = 0.0
    reward: float = 0.0
    #: Of the first submission, and of the latest end.
    begun_wall: float = 0.0
    ended_wall: float = 0.0


@dataclass(slots=True)
class EndChange:
    """Additions to one way to end."""

    actions: int = 0
    queue_seconds: float = 0.0
    overhead_seconds: float = 0.0
    execution_seconds: float = 0.0
    act_seconds: float = 0.0


class Sums:
    """Collects the additions of one batch."""

    def __init__(self) -> None:
        self.steps: defaultdict[StepKey, StepChange] = defaultdict(StepChange)
        self.ends: defaultdict[EndKey, EndChange] = defaultdict(EndChange)

    def accepted(self, action: Action, wall: float) -> None:
        """Count an action that was submitted at ``wall``."""
        if action.step is None:
            return
        change = self.steps[StepKey(action.project, action.task, action.step)]
        change.actions += 1
        change.begun_wall = min(change.begun_wall or wall, wall)

    def finished(self, finish: Finish, step: int | None, reward: float | None, wall: float) -> None:
        """Count the end of an action of ``step`` at ``wall``."""
        timing = finish.timing
        end = self.ends[EndKey(finish.project, finish.task, finish.outcome.value)]
        end.actions += 1
        end.queue_seconds += timing.queue_seconds
        end.overhead_seconds += timing.overhead_seconds
        end.execution_seconds += timing.execution_seconds
        end.act_seconds += timing.act_seconds
        if step is None:
            return
        change = self.steps[StepKey(finish.project, finish.task, step)]
        change.finished += 1
        change.queue_seconds += timing.queue_seconds
        change.act_seconds += timing.act_seconds
        change.ended_wall = max(change.ended_wall, wall)
        if reward is not None:
            change.rewarded += 1
            change.reward += reward
