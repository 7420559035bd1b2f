"""Open actions by pool, project and state, and the open trajectories that they belong to.

An open action is counted from its submission to its `Finish`. The journal states the pool of a task
and the environment of a trajectory once: when they are opened, or with their first action.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from domain.action import Action, ActionState, EnvironmentSpec, Kind
from domain.allocation import Allocation
from domain.fleets import TokenUsage, fleet_name
from domain.ids import ActionId, TaskKey, TrajectoryKey
from domain.inventory import Config
from domain.resources import Cost

#: Seconds behind the rates of a pool.
RATE_SECONDS: Final = 5
#: Tasks and open trajectories that are kept; the oldest are dropped first. The core forgets some
#: without a journal entry (expired before any action ran), so memory needs this bound.
MAX_OPEN: Final = 100_000


class OpenAction(msgspec.Struct):
    """An action between its submission and its `Finish`."""

    id: ActionId
    project: str
    task: str
    pool: str
    #: Number of its submission; older actions have smaller ones.
    arrival: int
    #: Journal time at which the action was accepted.
    submitted_at: float
    #: The group that counts it.
    group: ActionGroup
    kind: Kind | None = None
    trajectory: str | None = None
    #: None: its submission is not known.
    family: str | None = None
    cost: Cost = {}
    state: ActionState = ActionState.QUEUED
    attempt: int = 0
    node: str | None = None
    allocations: tuple[Allocation, ...] = ()
    #: Tokens of a generation, as its latest attempt reported them.
    usage: TokenUsage | None = None
    #: Of its command, as its latest attempt reported it.
    exit_code: int | None = None

    @property
    def fleet(self) -> str | None:
        """Name of the fleet of a generation; None for another action."""
        for resource in self.cost or (each.resource for each in self.allocations):
            name = fleet_name(resource)
            if name is not None:
                return name.partition("#")[0]
        return None


@dataclass
class ActionGroup:
    """The open actions of one project in one pool, by state."""

    queued: int = 0
    granted: int = 0
    running: int = 0
    #: In the open second.
    submitted: int = 0
    finished: int = 0
    #: Queued actions in order of arrival; requeued ones apart.
    waiting: dict[ActionId, OpenAction] = field(default_factory=dict)
    requeued: dict[ActionId, OpenAction] = field(default_factory=dict)
    #: Resource → the queued actions that need it, in order of arrival; requeued ones come last.
    wanting: dict[str, dict[ActionId, OpenAction]] = field(default_factory=dict)
    #: Resource → the least units that they need together.
    wanted: Counter[str] = field(default_factory=Counter)
    rates: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_SECONDS))

    def oldest(self) -> Iterator[OpenAction]:
        """Yield the queued actions in order of arrival."""
        requeued = sorted(self.requeued.values(), key=_arrival)
        return merge(self.waiting.values(), requeued, key=_arrival)

    def add(self, action: OpenAction) -> None:
        """Count an action in its state."""
        if action.state is ActionState.QUEUED:
            self.queue(action)
        elif action.state is ActionState.GRANTED:
            self.granted += 1
        else:
            self.running += 1

    def queue(self, action: OpenAction) -> None:
        """Count an action that waits, for each resource that it needs."""
        self.queued += 1
        for resource, counts in action.cost.items():
            self.wanting.setdefault(resource, {})[action.id] = action
            self.wanted[resource] += min(counts, default=0)

    def remove(self, action: OpenAction) -> None:
        """Stop counting an action in its state."""
        if action.state is ActionState.QUEUED:
            self.queued -= 1
            for resource, counts in action.cost.items():
                self.wanting[resource].pop(action.id, None)
                self.wanted[resource] -= min(counts, default=0)
            if self.waiting.pop(action.id, None) is None:
                del self.requeued[action.id]
        elif action.state is ActionState.GRANTED:
            self.granted -= 1
        else:
            self.running -= 1


class Wanted(NamedTuple):
    """What queued actions need of one resource."""

    waiting: int
    #: The least amount that they need together, in thousandths.
    amount: int
    #: Journal time at which the oldest of them was accepted.
    oldest_at: float


class ActionGroups:
    """Several groups as one: those of a pool, of a project, or all."""

    def __init__(self, groups: Collection[ActionGroup]) -> None:
        self._groups = groups

    def counts(self) -> dict[str, int]:
        """Return the number of actions in each state."""
        return {
            "queued": sum(each.queued for each in self._groups),
            "granted": sum(each.granted for each in self._groups),
            "running": sum(each.running for each in self._groups),
        }

    def rate(self, *, finished: bool) -> float:
        """Return submissions or finishes per second over the last closed seconds."""
        seconds = max((len(each.rates) for each in self._groups), default=0)
        total = sum(second[finished] for each in self._groups for second in each.rates)
        return total / max(1, seconds)

    def wanted(self) -> dict[str, Wanted]:
        """Return what the queued actions need, by resource; resources that none needs are left out."""
        found: dict[str, Wanted] = {}
        for group in self._groups:
            late = [each for each in group.requeued.values() if each.cost]
            for resource, waiting in group.wanting.items():
                if not waiting:
                    continue
                first = next(iter(waiting.values())).submitted_at
                again = (each.submitted_at for each in late if resource in each.cost)
                oldest = min((first, *again))
                before = found.get(resource, Wanted(0, 0, oldest))
                found[resource] = Wanted(
                    before.waiting + len(waiting),
                    before.amount + group.wanted[resource],
                    min(before.oldest_at, oldest),
                )
        return found

    def oldest(self, count: int) -> list[OpenAction]:
        """Return the ``count`` queued actions that arrived first."""
        queues = [islice(each.oldest(), count) for each in self._groups]
        return list(islice(merge(*queues, key=_arrival), count))


def _arrival(action: OpenAction) -> int:
    return action.arrival


class OpenActions:
    """All open actions by id, counted in one group for each pool and project."""

    def __init__(self) -> None:
        self.by_id: dict[ActionId, OpenAction] = {}
        self._groups: dict[tuple[str, str], ActionGroup] = {}
        #: Node → actions that are granted or running there, in the order of their grants.
        self._on_node: defaultdict[str, dict[ActionId, None]] = defaultdict(dict)
        self._arrivals = 0

    @property
    def pools(self) -> set[str]:
        """Pools that had an action."""
        return {pool for pool, _ in self._groups}

    def of_pool(self, name: str) -> ActionGroups:
        """Return the groups of a pool."""
        return ActionGroups([group for (pool, _), group in self._groups.items() if pool == name])

    def of_project(self, name: str) -> ActionGroups:
        """Return the groups of a project."""
        return ActionGroups(
            [group for (_, project), group in self._groups.items() if project == name]
        )

    @property
    def everything(self) -> ActionGroups:
        """All groups."""
        return ActionGroups(self._groups.values())

    def submit(self, action: Action, pool: str, submitted_at: float) -> None:
        """Add an action that waits in ``pool``."""
        added = self._make(action.id, action.project, action.task, pool, submitted_at)
        added.kind = action.kind
        added.trajectory = action.trajectory
        added.family = action.family or ""
        added.cost = action.cost
        added.group.submitted += 1
        added.group.queue(added)
        added.group.waiting[action.id] = added

    def adopt(self, action_id: ActionId, pool: str, at: float) -> OpenAction:
        """Add an action whose submission is no longer in the journal, at its grant."""
        added = self._make(action_id, "", "", pool, at)
        added.state = ActionState.GRANTED
        added.group.granted += 1
        return added

    def move(self, action: OpenAction, to: ActionState) -> None:
        """Count an action in another state."""
        action.group.remove(action)
        action.state = to
        action.group.add(action)
        if to is ActionState.QUEUED:
            action.group.requeued[action.id] = action
            self._leave_node(action)

    def place(self, action: OpenAction, node: str | None, attempt: int) -> None:
        """Note the node of a granted action; None where it runs on no node."""
        self._leave_node(action)
        action.node, action.attempt = node, attempt
        if node is not None:
            self._on_node[node][action.id] = None

    def on_node(self, node: str) -> list[ActionId]:
        """Return the actions that are granted or running on a node."""
        return list(self._on_node.get(node, ()))

    def _leave_node(self, action: OpenAction) -> None:
        node = action.node
        if node is not None and node in self._on_node:
            self._on_node[node].pop(action.id, None)
            if not self._on_node[node]:
                del self._on_node[node]

    def finish(self, action: OpenAction) -> None:
        """Remove a finished action."""
        del self.by_id[action.id]
        self._leave_node(action)
        action.group.finished += 1
        action.group.remove(action)

    def close_second(self) -> None:
        """Close the open second of all rates."""
        for each in self._groups.values():
            each.rates.append((each.submitted, each.finished))
            each.submitted = each.finished = 0

    def for_project(self, project: str) -> OpenActions:
        """Return copies of one project's open actions, in order of arrival."""
        own = OpenActions()
        for (pool, name), group in self._groups.items():
            if name == project:
                own._groups[pool, name] = ActionGroup(
                    submitted=group.submitted,
                    finished=group.finished,
                    rates=group.rates.copy(),
                )
        for action in self.by_id.values():
            if action.project == project:
                own._add_copy(action)
        own._arrivals = self._arrivals
        return own

    def _add_copy(self, action: OpenAction) -> None:
        group = self._groups[action.pool, action.project]
        copy = self.by_id[action.id] = msgspec.structs.replace(action, group=group)
        group.add(copy)
        if copy.state is ActionState.QUEUED:
            group.waiting[copy.id] = copy
        elif copy.node is not None:
            self._on_node[copy.node][copy.id] = None

    def _make(
        self, action_id: ActionId, project: str, task: str, pool: str, at: float
    ) -> OpenAction:
        self._arrivals += 1
        group = self._groups.get((pool, project))
        if group is None:
            group = self._groups[pool, project] = ActionGroup()
        added = OpenAction(action_id, project, task, pool, self._arrivals, at, group)
        self.by_id[action_id] = added
        return added


@dataclass
class _OpenTrajectory:
    pool: str
    #: None until an environment is declared.
    memory_bytes: int | None = None
    #: Whether its environment is on a node.
    placed: bool = False


class OpenTrajectories:
    """Pools of tasks and trajectories, and the memory that environments reserve."""

    def __init__(self) -> None:
        self._task_pools: OrderedDict[TaskKey, str] = OrderedDict()
        self._trajectories: OrderedDict[TrajectoryKey, _OpenTrajectory] = OrderedDict()

    def for_project(self, project: str) -> OpenTrajectories:
        """Return copies of one project's tasks and trajectories."""
        own, prefix = OpenTrajectories(), f"{project}/"
        tasks, trajectories = self._task_pools.items(), self._trajectories.items()
        own._task_pools.update((key, pool) for key, pool in tasks if key.startswith(prefix))
        own._trajectories.update(
            (key, replace(known)) for key, known in trajectories if key.startswith(prefix)
        )
        return own

    def bind_task(self, key: TaskKey, pool: str) -> None:
        """Bind later trajectories of a task to ``pool``."""
        self._task_pools[key] = pool
        _drop_oldest(self._task_pools)

    def pool_of_task(self, key: TaskKey, project: str, config: Config) -> str:
        """Return the pool of a task: its own, else its project's default."""
        declared = config.projects.get(project)
        return self._task_pools.get(key) or (declared.default_pool if declared else "default")

    def pool_of(self, action: Action, config: Config) -> str:
        """Return the pool that serves an action; a new trajectory is opened."""
        pool = action.pool or self.pool_of_task(action.task_key, action.project, config)
        key = action.trajectory_key
        return pool if key is None else self.open(key, pool, action.environment)

    def open(self, key: TrajectoryKey, pool: str, environment: EnvironmentSpec | None) -> str:
        """Open a trajectory and return its pool; the first declaration holds."""
        trajectory = self._trajectories.get(key)
        if trajectory is None:
            trajectory = self._trajectories[key] = _OpenTrajectory(pool)
            _drop_oldest(self._trajectories)
        if environment is not None and trajectory.memory_bytes is None and not trajectory.placed:
            trajectory.memory_bytes = environment.memory_bytes
        return trajectory.pool

    def place_environment(self, key: TrajectoryKey) -> int | None:
        """Return the bytes that a new environment reserves; None when it is placed already."""
        trajectory = self._trajectories.get(key)
        if trajectory is None or trajectory.placed:
            return None
        trajectory.placed = True
        return trajectory.memory_bytes or 0

    def finish(self, key: TrajectoryKey) -> None:
        """Forget a finished trajectory unless its environment is still on a node."""
        trajectory = self._trajectories.get(key)
        if trajectory is not None and not trajectory.placed:
            del self._trajectories[key]

    def remove_environment(self, key: TrajectoryKey) -> None:
        """Forget a trajectory whose environment is removed."""
        self._trajectories.pop(key, None)


def _drop_oldest(known: OrderedDict[Any, Any]) -> None:
    if len(known) > MAX_OPEN:
        known.popitem(last=False)
