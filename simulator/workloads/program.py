"""The words in which workloads are written.

A trajectory is a *program*: a generator that yields `Think` and `Act`. After an `Act` it is sent
the action's `Finish`, so it may decide by the outcome. A workload yields *steps*: the rollouts of
one RL step, all begun at once (GRPO: groups of trajectories for one prompt each). The next step
begins when the last rollout of a step has ended and the trainer has trained.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from domain.action import Action
from domain.decisions import Finish
from simulator.work import ActionWork


class Think(msgspec.Struct, frozen=True, gc=False):
    """The model generates, or whatever else the trainer does, before the next action."""

    seconds: float


class Act(msgspec.Struct, frozen=True, gc=False):
    """Submit an action and wait for its end.

    For a lease, ``work.base_seconds`` is how long the trainer keeps it.
    """

    action: Action
    work: ActionWork
    #: A lease is renewed in time for as long as it is kept.
    renews: bool = True


Program = Generator[Think | Act, Finish | None, None]


@dataclass(frozen=True, slots=True)
class SimulatedTrajectory:
    """One trajectory of a step."""

    trajectory: str
    program: Callable[[], Program]
    #: None: the workload's.
    project: str | None = None


class Workload(Protocol):
    """The programs of one task's trainer."""

    @property
    def project(self) -> str: ...

    @property
    def task(self) -> str: ...

    @property
    def actions(self) -> int:
        """Number of all actions, for progress bars."""

    @property
    def train_seconds(self) -> float:
        """Between the last rollout of a step and the first action of the next."""

    def steps(self) -> Iterator[Sequence[SimulatedTrajectory]]:
        """Yield the rollouts of each step; the same ones every time it is called."""
