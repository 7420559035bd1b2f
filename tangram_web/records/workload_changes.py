"""Changes of the rows of tasks and trajectories in one batch of the journal.

Counters are added to those of the row. Of other columns the first or the last value holds, alike
here and in the statements that write them, so that any split of the journal leads to the same rows.
The end of a trajectory without a row changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from domain.action import Action
from domain.decisions import ForkEnvironment
from domain.events import TaskOpened, TrajectoryOpened
from domain.ids import TrajectoryKey, task_key, trajectory_key
from tangram_web.records.spending import Spending


@dataclass(slots=True)
class TaskChange(Spending):
    """Additions to one task."""

    project: str
    name: str
    opened_at: Any
    pool: str = ""
    metadata: str = "{}"
    actions: int = 0
    finished: int = 0
    external_seconds: float = 0.0


@dataclass(slots=True)
class TrajectoryChange(Spending):
    """Additions to one trajectory."""

    project: str
    name: str
    task: str
    opened_at: Any
    pool: str = ""
    node: str | None = None
    environment: str | None = None
    metadata: str = "{}"
    finished_at: Any = None
    environment_removed_at: Any = None
    actions: int = 0
    finished: int = 0
    external_seconds: float = 0.0
    #: Wall clock of its opening and of its last action's end.
    begun_wall: float = 0.0
    ended_wall: float = 0.0


@dataclass(slots=True)
class TrajectoryEnd:
    """Times at which a trajectory and its environment end."""

    finished_at: Any = None
    environment_removed_at: Any = None


class WorkloadChanges:
    """Collects the changes of tasks and trajectories of one batch."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskChange] = {}
        self.trajectories: dict[str, TrajectoryChange] = {}
        #: Ends of trajectories without another change earlier in the batch.
        self.ends: dict[str, TrajectoryEnd] = {}
        #: Wall clock of the present entry.
        self.wall = 0.0

    def submitted(self, action: Action, now: Any) -> None:
        """Count a new action; the first one opens its task and its trajectory."""
        self._task(action.project, action.task, now).actions += 1
        if action.trajectory is None:
            return
        change = self._trajectory(action.project, action.trajectory, action.task, now)
        change.actions += 1
        change.pool = change.pool or action.pool
        if action.environment is not None and change.environment is None:
            change.environment = _json(action.environment)

    def finished(
        self,
        project: str,
        task: str,
        trajectory: str | None,
        act_seconds: float,
        spent: Spending | None,
        now: Any,
    ) -> None:
        """Count a finished action and its spending, if any."""
        change: TaskChange | TrajectoryChange = self._task(project, task, now)
        change.finished += 1
        change.external_seconds += act_seconds
        if spent is not None:
            change.add(spent)
        if trajectory is not None:
            change = self._trajectory(project, trajectory, task, now)
            change.finished += 1
            change.external_seconds += act_seconds
            if spent is not None:
                change.add(spent)
            change.ended_wall = self.wall

    def granted(self, project: str, task: str, trajectory: str, node: str, now: Any) -> None:
        """Record the node of a trajectory's newest grant or move."""
        self._trajectory(project, trajectory, task, now).node = node

    def task_opened(self, event: TaskOpened, now: Any) -> None:
        """Record a declared task; the last declared pool holds."""
        change = self._task(event.project, event.task, now)
        change.pool = event.pool or change.pool
        if event.metadata:
            change.metadata = _json(event.metadata)

    def trajectory_opened(self, event: TrajectoryOpened, now: Any) -> None:
        """Record a declared trajectory."""
        self._task(event.project, event.task, now)
        change = self._trajectory(event.project, event.trajectory, event.task, now)
        change.pool = change.pool or event.pool
        if event.environment is not None and change.environment is None:
            change.environment = _json(event.environment)
        if event.metadata:
            change.metadata = _json(event.metadata)

    def forked(self, decision: ForkEnvironment, now: Any) -> None:
        """Record the children of a fork as open on their node."""
        self._task(decision.project, decision.task, now)
        for key in decision.children:
            name = key.partition("/")[2]
            change = self._trajectory(decision.project, name, decision.task, now)
            change.pool, change.node = decision.pool, decision.node
            if decision.environment is not None:
                change.environment = _json(decision.environment)
            change.metadata = _json(
                {**decision.metadata, "forked_from": decision.source.partition("/")[2]}
            )

    def ended(
        self, key: TrajectoryKey, *, finished_at: Any = None, environment_removed_at: Any = None
    ) -> None:
        """Record the end of a trajectory, or of its environment."""
        change: TrajectoryChange | TrajectoryEnd | None = self.trajectories.get(key)
        if change is None:
            change = self.ends.setdefault(key, TrajectoryEnd())
        change.finished_at = change.finished_at or finished_at
        change.environment_removed_at = environment_removed_at or change.environment_removed_at

    def _task(self, project: str, name: str, now: Any) -> TaskChange:
        key = task_key(project, name)
        change = self.tasks.get(key)
        if change is None:
            change = self.tasks[key] = TaskChange(project, name, now)
        return change

    def _trajectory(self, project: str, name: str, task: str, now: Any) -> TrajectoryChange:
        key = trajectory_key(project, name)
        change = self.trajectories.get(key)
        if change is None:
            change = self.trajectories[key] = TrajectoryChange(project, name, task, now)
            change.begun_wall = self.wall
        return change


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
