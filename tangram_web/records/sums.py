"""Sums over the actions of a task, by step and by outcome, for the pages of tasks.

Summing a million actions is slow, and pruned actions would be missing. So sums are rows, written in
the transaction that writes the actions. Means are computed when they are shown: sums add up over
any split of the journal, means do not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from domain.action import Action
from domain.decisions import Finish
from tangram_web.lib.endings import ending_of


class StepKey(NamedTuple):
    """A training step of a task."""

    project: str
    task: str
    step: int


class EndKey(NamedTuple):
    """An ending of actions of a task."""

    project: str
    task: str
    #: `tangram_web.lib.endings`: an outcome, or a completed command whose exit code is not 0.
    outcome: str


@dataclass(slots=True)
class StepChange:
    """Additions to one step; wall clocks are 0 until they are known."""

    actions: int = 0
    finished: int = 0
    #: Finished actions with a reward.
    rewarded: int = 0
    queue_seconds: float = 0.0
    act_seconds: float = 0.0
    reward: float = 0.0
    #: Of the first submission, and of the last finish.
    begun_wall: float = 0.0
    ended_wall: float = 0.0


@dataclass(slots=True)
class EndChange:
    """Additions to one outcome."""

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

    def submitted(self, action: Action, wall: float) -> None:
        """Count an action of a step that was submitted at ``wall``."""
        if action.step is None:
            return
        change = self.steps[StepKey(action.project, action.task, action.step)]
        change.actions += 1
        change.begun_wall = min(change.begun_wall or wall, wall)

    def finished(
        self, finish: Finish, step: int | None, reward: float | None, wall: float,
        exit_code: int | None,
    ) -> None:  # fmt: skip
        """Count an action of ``step`` that finished at ``wall``."""
        timing, ending = finish.timing, ending_of(finish.outcome, exit_code)
        end = self.ends[EndKey(finish.project, finish.task, ending)]
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
