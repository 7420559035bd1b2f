"""A replay in virtual time: what ``tangram replay`` submits with the same options.

Trajectories, think times, durations, cores, order and concurrency come from `tangram_client.traces.submissions`,
which the replay itself submits. Nothing is added: no jitter, no reward, no resampling but the one that was asked for.

Like the server, a simulated replay leaves out an action with more cores than any node has, and its trajectory goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from domain.action import Action, EnvironmentSpec, ExecSpec, Kind
from domain.errors import InvalidRequest
from domain.ids import ActionId
from domain.resources import MILLI
from simulator.cluster import PROJECT
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think
from tangram_client.traces.recording import Recording
from tangram_client.traces.submissions import ReplayPlan, Submission


@dataclass(frozen=True)
class Replayed:
    """The workload: one step with every trajectory of the replay."""

    recordings: Sequence[Recording]
    plan: ReplayPlan
    #: Cores of the largest node.
    most_cores: float
    project: str = PROJECT
    train_seconds: float = 0.0

    @property
    def task(self) -> str:
        """Return the task that the replay names."""
        return self.plan.task

    @property
    def actions(self) -> int:
        """Number of played actions."""
        return sum(1 for each in self._submissions() if each.cores <= self.most_cores)

    @property
    def refused(self) -> int:
        """Number of actions that fit no node."""
        return sum(1 for each in self._submissions() if each.cores > self.most_cores)

    def _submissions(self) -> Iterator[Submission]:
        for number, recording in enumerate(self.recordings):
            yield from self.plan.submissions(number, recording)

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        """Yield the one step."""
        yield [
            SimulatedTrajectory(
                self.plan.trajectory(number), partial(self._play, number, recording)
            )
            for number, recording in enumerate(self.recordings)
        ]

    def _play(self, number: int, recording: Recording) -> Program:
        for submission in self.plan.submissions(number, recording):
            yield Think(submission.think_seconds)
            if submission.cores <= self.most_cores:
                yield Act(action_of(submission, self.plan.task, self.project), work_of(submission))


def action_of(submission: Submission, task: str, project: str) -> Action:
    """Return a submission as the server takes it in. Raises InvalidRequest for a part of a core beside whole ones."""
    milli = round(submission.cores * MILLI)
    if milli < 1 or (milli > MILLI and milli % MILLI):
        raise InvalidRequest(
            f"{submission.cores:g} cores: an action gets whole cores, or less than one"
        )
    memory_bytes = submission.memory_bytes
    return Action(
        id=ActionId(f"{submission.trajectory}.{submission.number}"), project=project, task=task,
        kind=Kind.EXEC, cost={"cpu": (milli,)}, trajectory=submission.trajectory,
        step=submission.number, family=submission.family,
        environment=None if memory_bytes is None else EnvironmentSpec(memory_bytes=memory_bytes),
        exec=ExecSpec(tuple(submission.command)), timeout_seconds=submission.timeout_seconds,
    )  # fmt: skip


def work_of(submission: Submission) -> ActionWork:
    """Return what the command of a submission takes: it sleeps, or burns CPU on shared or whole cores."""
    seconds = submission.asked_seconds
    busy = submission.burnt_seconds / seconds if seconds > 0 else 0.0
    return ActionWork(seconds, busy_cores=busy)
