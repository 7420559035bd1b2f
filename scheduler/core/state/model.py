"""State: everything the scheduler knows, in groups. Rules of behaviour live in the modules that use it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from domain.action import Action
from domain.backends import LLM, UNLIMITED_SEATS, BackendPool, llm_resource
from domain.ids import ActionId, ResourceId, TrajectoryKey, task_key, trajectory_key
from domain.inventory import Config, ResourceInventory, default_config
from scheduler.core.policies.group import Arrangement
from scheduler.core.policies.protocol import Policy
from scheduler.core.residency.policy import ResidencyPolicy
from scheduler.core.sharing.cohorts import Sharing
from scheduler.core.state.coalescing import CallCoalescing
from scheduler.core.state.critical_paths import CriticalPaths
from scheduler.core.state.demand import Needs
from scheduler.core.state.generations import Generations
from scheduler.core.state.learned import Learned
from scheduler.core.state.live import LiveAction, LiveMove, LiveTrajectory, Order
from scheduler.core.state.queues import Queues
from scheduler.core.state.rollouts import Rollouts
from scheduler.core.state.supply import MakeLedger, Supply
from scheduler.core.state.timers import Timers

#: Decisions of policies that are remembered.
ARRANGED_KEPT = 256
#: Places in which an action is known to fit that are remembered.
_FEASIBLE_KEPT = 4096

#: (pool, node or any, needs, memory): what decides whether an action can ever run.
Place = tuple[str, str | None, Needs, int]


class Arranged(NamedTuple):
    """One group's decision, kept for a while to explain it."""

    at: float
    resource: ResourceId
    policy: str
    #: Candidates in the order in which they are served; the arrangement grants a prefix of them.
    candidates: tuple[ActionId, ...]
    #: All actions of the group that the decision considered.
    actions: int
    arrangement: Arrangement
    #: No candidate had several counts to compare, although its request lists several.
    no_choice: bool = False


class TaskSettings(NamedTuple):
    """Operator settings of one task."""

    paused: bool = False
    #: Replaces the priority of each of its actions.
    priority: int | None = None


class Tombstone(NamedTuple):
    """The name of something that is over, why, and until when it is remembered."""

    why: str
    until: float
    #: The system ended it, not the trainer.
    lost: bool = False


@dataclass(slots=True)
class TaskSteering:
    """Settings of tasks, by task key."""

    #: Pools that tasks are bound to.
    pools: dict[str, str] = field(default_factory=dict)
    #: Tasks that are paused or have another priority.
    tasks: dict[str, TaskSettings] = field(default_factory=dict)

    def of(self, project: str, task: str) -> TaskSettings:
        """Return the settings of a task."""
        return self.tasks.get(task_key(project, task), TaskSettings())

    def set(self, project: str, task: str, control: TaskSettings) -> None:
        """Change the settings of a task."""
        key = task_key(project, task)
        if control == TaskSettings():
            self.tasks.pop(key, None)
        else:
            self.tasks[key] = control

    def order(self, action: Action, arrival: int) -> Order:
        """Return the order of ``action``, the ``arrival``-th that was accepted."""
        if not self.tasks:
            return -action.priority, arrival
        priority = self.of(action.project, action.task).priority
        return -(action.priority if priority is None else priority), arrival


@dataclass(slots=True)
class PoolRules:
    """What follows from the configuration of pools, computed when it is first needed."""

    #: By pool.
    policies: dict[str, Policy] = field(default_factory=dict)
    #: Places in which an action is known to fit when they are idle.
    feasible: set[Place] = field(default_factory=set)

    def add_feasible(self, place: Place) -> None:
        """Remember that an action fits in ``place``."""
        if len(self.feasible) >= _FEASIBLE_KEPT:
            self.feasible.clear()
        self.feasible.add(place)


@dataclass(slots=True)
class Resizing:
    """Resources whose running malleable actions the next cycle may resize."""

    #: Pools whose policy resizes running actions; without any `changed` is not kept.
    pools: set[str] = field(default_factory=set)
    #: Resources of which units were released since the last cycle.
    changed: set[ResourceId] = field(default_factory=set)
    #: When resources are examined again: an action there was resized too recently.
    due: dict[ResourceId, float] = field(default_factory=dict)

    def forget(self, resource: ResourceId) -> None:
        """Forget a resource that is removed."""
        self.changed.discard(resource)
        self.due.pop(resource, None)


@dataclass(slots=True)
class EnvironmentsOfNodes:
    """Trajectories by the node of their environment. It follows from the trajectories, so no snapshot has it."""

    _on: dict[str, dict[TrajectoryKey, LiveTrajectory]] = field(default_factory=dict)
    #: Numbers of the open trajectories, in the order in which they were opened.
    _numbers: dict[TrajectoryKey, int] = field(default_factory=dict)
    _opened: int = 0

    def put(self, trajectory: LiveTrajectory, node: str | None) -> None:
        """Record that the environment of ``trajectory`` is on ``node`` now, or nowhere."""
        before = trajectory.node
        if before is not None:
            del self._on[before][trajectory.key]
            if not self._on[before]:
                del self._on[before]
        trajectory.node = node
        if node is not None:
            self._on.setdefault(node, {})[trajectory.key] = trajectory

    def enter(self, trajectory: LiveTrajectory) -> None:
        """Record a trajectory that was opened or restored."""
        self._opened += 1
        self._numbers[trajectory.key] = self._opened
        if trajectory.node is not None:
            self._on.setdefault(trajectory.node, {})[trajectory.key] = trajectory

    def leave(self, key: TrajectoryKey) -> None:
        """Forget a trajectory without an environment."""
        del self._numbers[key]

    def in_order(self, trajectories: Iterable[LiveTrajectory]) -> list[LiveTrajectory]:
        """Return ``trajectories`` in the order of `State.trajectories`."""
        numbers = self._numbers
        return sorted(trajectories, key=lambda each: numbers[each.key])

    @property
    def nodes(self) -> Collection[str]:
        """Nodes with environments."""
        return self._on.keys()

    def on(self, *nodes: str) -> list[LiveTrajectory]:
        """Return the trajectories with their environment on one of ``nodes``, in the order of `State.trajectories`."""
        return self.in_order(each for node in nodes for each in self._on.get(node, {}).values())


@dataclass(slots=True)
class PendingMoves:
    """What the next pass looks at to move environments (`state.moves`), and the moves on their way."""

    #: Look at all trajectories of nodes that let them finish.
    all: bool = False
    #: Trajectories of such nodes that became idle, in order.
    idle: dict[TrajectoryKey, None] = field(default_factory=dict)
    #: When all are looked at again; None: no such node has any.
    due: float | None = None
    #: Trajectories that are being moved.
    active: set[TrajectoryKey] = field(default_factory=set)
    #: Trajectories of which nodes are to remove copies.
    copied: set[TrajectoryKey] = field(default_factory=set)

    @property
    def wanted(self) -> bool:
        """Whether the next pass has anything to look at."""
        return self.all or bool(self.idle)


#: Seconds that a move for a waiting action is expected to take before the first one, and at most.
FIRST_SECONDS: Final = 1.0
REBALANCE_SECONDS: Final = 20.0
#: Weight of the latest move in the mean.
_LATEST: Final = 0.2


@dataclass(slots=True)
class Rebalancing:
    """Actions that wait for their node, and what moves for them took (`state.rebalancing`)."""

    #: Pools whose environments move for actions that wait.
    pools: frozenset[str] = frozenset()
    #: The present cycle left the head of a node's queue waiting for resources of the node.
    waits: bool = False
    #: Look at such queues after this cycle.
    look: bool = False
    #: When they are looked at; None: none waited at the last look.
    due: float | None = None
    #: Mean seconds of recent moves.
    seconds: float = FIRST_SECONDS

    def note(self, now: float, move: LiveMove) -> None:
        """Count a move that has ended."""
        took = now - (move.until - REBALANCE_SECONDS)
        self.seconds += _LATEST * (took - self.seconds)


@dataclass(slots=True)
class State:
    """The whole state of the core."""

    supply: Supply
    config: Config = field(default_factory=default_config)
    #: Configuration at the last look at the needs of all actions, unless projects shared anything or units kept residents
    #: (`lifecycle.refresh_needs`); not part of a snapshot.
    needs_under: Config | None = None
    now: float = 0.0
    arrivals: int = 0
    #: Something was released, queued or reconfigured since the last cycle.
    dirty: bool = False
    actions: dict[ActionId, LiveAction] = field(default_factory=dict)
    trajectories: dict[TrajectoryKey, LiveTrajectory] = field(default_factory=dict)
    environments: EnvironmentsOfNodes = field(default_factory=EnvironmentsOfNodes)
    #: Finished trajectories, and cancels without an action, by name.
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    queues: Queues = field(default_factory=Queues)
    learned: Learned = field(default_factory=Learned)
    critical_paths: CriticalPaths = field(default_factory=CriticalPaths)
    steering: TaskSteering = field(default_factory=TaskSteering)
    timers: Timers = field(default_factory=Timers)
    pools: PoolRules = field(default_factory=PoolRules)
    resizing: Resizing = field(default_factory=Resizing)
    sharing: Sharing = field(default_factory=Sharing)
    rollouts: Rollouts = field(default_factory=Rollouts)
    #: Fleets of language models, and generations that have no worker yet.
    generations: Generations = field(default_factory=Generations)
    #: Backends of language models, by pool.
    backends: dict[str, BackendPool] = field(default_factory=dict)
    #: Calls that share an answer.
    coalescing: CallCoalescing = field(default_factory=CallCoalescing)
    moves: PendingMoves = field(default_factory=PendingMoves)
    rebalancing: Rebalancing = field(default_factory=Rebalancing)
    #: Decisions of policies, latest last; not part of a snapshot.
    arranged: deque[Arranged] = field(default_factory=lambda: deque(maxlen=ARRANGED_KEPT))
    #: What stays on units between actions; replaced by the machine.
    residency: ResidencyPolicy = field(init=False)

    def __post_init__(self) -> None:
        self.residency = ResidencyPolicy(self.supply)

    def set_config(self, config: Config) -> None:
        """Put ``config`` in force, and drop what was decided under the former one."""
        self.config = config if not self.backends else _with_pools(config, self.backends)
        self.supply.drained, self.supply.pools = config.drained_nodes, config.pools
        self.supply.finishing = config.finishing_nodes
        self.rebalancing.pools = rebalanced_pools(config)
        self.capacity_changed()

    def inventory_of(self, resource: ResourceId) -> ResourceInventory:
        """Return the inventory of a cluster-wide resource; capacity 0 if it is not declared."""
        declared = self.config.inventory(resource)
        if not self.backends or not resource.startswith(LLM):
            return declared
        pool = self.backends.get(resource.removeprefix(LLM))
        return declared if pool is None else replace(declared, backends=pool)

    def capacity_changed(self) -> None:
        """Let the next cycle decide again: what can fit, now or ever, is different."""
        self.pools.feasible.clear()
        self.queues.deferrals.clear()
        self.dirty = True

    def released(self, resource: ResourceId) -> None:
        """Let the next cycle use units of ``resource`` that were released."""
        if self.queues.deferrals:
            self.queues.deferrals.pop(resource, None)
        if self.resizing.pools:
            self.resizing.changed.add(resource)
        self.dirty = True

    def trajectory_of(self, live: LiveAction) -> LiveTrajectory | None:
        action = live.action
        if action.trajectory is None:
            return None
        return self.trajectories.get(trajectory_key(action.project, action.trajectory))

    def add_trajectory(self, trajectory: LiveTrajectory) -> None:
        """Add a trajectory that was opened or restored."""
        self.trajectories[trajectory.key] = trajectory
        self.environments.enter(trajectory)

    def remove_trajectory(self, trajectory: LiveTrajectory) -> None:
        """Remove a trajectory whose environment is gone."""
        del self.trajectories[trajectory.key]
        self.environments.leave(trajectory.key)

    def holding(self, resource: ResourceId) -> Iterator[LiveAction]:
        """Yield the live actions that hold units of ``resource``."""
        for holder in self.supply.ledgers[resource].holders():
            live = self.actions.get(ActionId(holder.rpartition("#")[0]))
            if live is not None and live.holder == holder:
                yield live


def _with_pools(config: Config, pools: Iterable[str]) -> Config:
    """Return ``config`` with the known pools of backends as cluster-wide resources."""
    known = {str(llm_resource(pool)): UNLIMITED_SEATS for pool in pools}
    return replace(config, resources={**known, **config.resources})


def rebalanced_pools(config: Config) -> frozenset[str]:
    """Return the pools whose environments move for actions that wait."""
    pools = config.pools.items()
    return frozenset(
        name for name, each in pools if each.move_environments and each.rebalance_environments
    )


def new_state(make_ledger: MakeLedger, config: Config) -> State:
    """Return a state without nodes, with the ledgers of the cluster-wide resources of ``config``."""
    state = State(Supply(make_ledger), config)
    state.supply.drained, state.supply.pools = config.drained_nodes, config.pools
    state.supply.finishing = config.finishing_nodes
    state.rebalancing.pools = rebalanced_pools(config)
    for name in config.resources:
        state.supply.open_ledger(ResourceId(name), config.inventory(name))
    return state
