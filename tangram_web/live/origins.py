"""Where actions come from: which pool serves a task, what a trajectory's environment reserves.

The journal says most of it once, at a task's or trajectory's opening or with its first action.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Final

from domain.action import Action, EnvironmentSpec
from domain.ids import TaskKey, TrajectoryKey
from domain.inventory import Config

#: Trajectories and tasks remembered; the oldest are forgotten first. The core forgets some of them
#: without a word in the journal (expired before anything ran), so memory needs this bound.
LIMIT: Final = 100_000


@dataclass
class _Trajectory:
    pool: str
    #: None until an environment was declared.
    memory_bytes: int | None = None
    placed: bool = False


class Origins:
    """Tasks and trajectories: which pool serves their actions, what their environments reserve."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[TaskKey, str] = OrderedDict()
        self._trajectories: OrderedDict[TrajectoryKey, _Trajectory] = OrderedDict()

    def part(self, project: str) -> Origins:
        """Return what is known of one project."""
        part, mine = Origins(), f"{project}/"
        tasks, trajectories = self._tasks.items(), self._trajectories.items()
        part._tasks.update((key, pool) for key, pool in tasks if key.startswith(mine))
        part._trajectories.update(
            (key, replace(known)) for key, known in trajectories if key.startswith(mine)
        )
        return part

    def bind_task(self, key: TaskKey, pool: str) -> None:
        """Bind a task's later trajectories to ``pool``."""
        self._tasks[key] = pool
        _forget_oldest(self._tasks)

    def pool_of_task(self, key: TaskKey, project: str, config: Config) -> str:
        """Return the pool of a task: its own, else its project's default."""
        declared = config.projects.get(project)
        return self._tasks.get(key) or (declared.default_pool if declared else "default")

    def pool_of(self, action: Action, config: Config) -> str:
        """Return the pool that serves an action; its trajectory is opened if it is new."""
        pool = action.pool or self.pool_of_task(action.task_key, action.project, config)
        key = action.trajectory_key
        return pool if key is None else self.open_trajectory(key, pool, action.environment)

    def open_trajectory(
        self, key: TrajectoryKey, pool: str, environment: EnvironmentSpec | None
    ) -> str:
        """Remember a trajectory and return its pool; what was said first stands."""
        trajectory = self._trajectories.get(key)
        if trajectory is None:
            trajectory = self._trajectories[key] = _Trajectory(pool)
            _forget_oldest(self._trajectories)
        if environment is not None and trajectory.memory_bytes is None and not trajectory.placed:
            trajectory.memory_bytes = environment.memory_bytes
        return trajectory.pool

    def place(self, key: TrajectoryKey) -> int | None:
        """Return the memory that a new environment takes; None when it has its place already."""
        trajectory = self._trajectories.get(key)
        if trajectory is None or trajectory.placed:
            return None
        trajectory.placed = True
        return trajectory.memory_bytes or 0

    def close(self, key: TrajectoryKey) -> None:
        """Forget a trajectory that is over, unless its environment is still to be removed."""
        trajectory = self._trajectories.get(key)
        if trajectory is not None and not trajectory.placed:
            del self._trajectories[key]

    def forget(self, key: TrajectoryKey) -> None:
        """Forget a trajectory whose environment is gone."""
        self._trajectories.pop(key, None)


def _forget_oldest(known: OrderedDict[Any, Any]) -> None:
    if len(known) > LIMIT:
        known.popitem(last=False)
