"""Everything the scheduler knows, and how to find it. No rule of behaviour lives here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from domain.action import QUEUED, TRANSITIONS, Action, ActionState, EnvironmentSpec, Outcome
from domain.allocation import Allocation
from domain.errors import InvariantViolation
from domain.ids import (
    ActionId,
    ResourceId,
    TrajectoryKey,
    node_resource,
    task_key,
    trajectory_key,
)
from domain.inventory import Config, NodeInventory, ResourceInventory, default_config
from domain.ports import HostingLedger, Ledger, LocalLedger, PacedLedger
from scheduler.core.policies import Policy
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.group import Arrangement
from scheduler.core.sharing.cohorts import Cohort, CohortKey
from scheduler.core.state.coalescing import Merging
from scheduler.core.state.demand import Needs
from scheduler.core.state.queues import QueueKey, WaitQueue
from scheduler.core.state.timers import Timers

#: Decisions of policies that are remembered.
ARRANGED_KEPT = 256

#: Lines that are remembered although nobody stands in them.
DRAINED_KEPT = 1024

MakeLedger = Callable[[ResourceId, ResourceInventory], Ledger]
#: (-priority, arrival): smaller is served first.
Order = tuple[int, int]
#: (pool, node or any, needs, memory): what decides whether somebody can ever run.
Place = tuple[str, str | None, Needs, int]


class LiveAction(msgspec.Struct, eq=False, gc=False):
    """An accepted action that is not finished yet. (A struct: one is made for every action.)"""

    action: Action
    pool: str
    needs: Needs
    order: Order
    submitted_at: float
    state: ActionState = QUEUED
    #: The wait queue it stands in; None while granted, or behind another one of its trajectory.
    queue: QueueKey | None = None
    node: str | None = None
    allocations: tuple[Allocation, ...] = ()
    granted_at: float | None = None
    started_at: float | None = None
    lease_expires_at: float | None = None
    attempt: int = 0
    #: When it was last given other units while it held some, and how often.
    resized_at: float | None = None
    resizes: int = 0
    #: What it held of its key resource since when: (seconds since its grant, milli-units).
    widths: tuple[tuple[float, int], ...] = ()
    #: Until when the following were added up: T_ori seconds worked off, and milli-unit seconds of the key resource.
    accounted_at: float | None = None
    worked_seconds: float = 0.0
    key_milli_seconds: float = 0.0
    #: The node was told to end it, with this outcome and reason.
    aborting: tuple[Outcome, str] | None = None

    @property
    def id(self) -> ActionId:
        return self.action.id

    @property
    def holder(self) -> str:
        """Name under which the present attempt holds units."""
        return f"{self.action.id}#{self.attempt}"

    @property
    def key_resource(self) -> ResourceId | None:
        """Key resource in the place where it is now; None without one, or without a place."""
        needs, key = self.needs, self.needs.key
        if needs.in_cluster and needs.key_in_cluster:
            return ResourceId(key)
        return node_resource(key, self.node) if key and self.node else None

    def move(self, to: ActionState) -> None:
        """Change state along `TRANSITIONS`."""
        if to not in TRANSITIONS[self.state]:
            raise InvariantViolation(f"{self.id}: {self.state} cannot become {to}")
        self.state = to


@dataclass(slots=True)
class LiveTrajectory:
    """A trajectory, its place, and the order of its exec actions (one at a time, as they came)."""

    key: TrajectoryKey
    project: str
    task: str
    name: str
    pool: str
    opened_at: float
    expires_at: float
    environment: EnvironmentSpec | None = None
    #: Where its environment is; set by its first grant or file, and kept while it exists.
    node: str | None = None
    #: Cores that it was granted alone first, on that node: its memory lies beside them.
    home: tuple[int, ...] = ()
    busy: ActionId | None = None
    #: Exec actions not yet granted, first come first served; finished ones are dropped lazily.
    line: list[ActionId] = field(default_factory=list)
    live: set[ActionId] = field(default_factory=set)
    #: Why it is being closed; no new actions then.
    closing: str | None = None
    #: It is closed because its environment was lost, which is nobody's wish.
    lost: bool = False
    #: The node was told to remove the environment.
    removing: bool = False

    @property
    def memory_bytes(self) -> int:
        return self.environment.memory_bytes if self.environment else 0

    @property
    def holder(self) -> str:
        """Name under which it holds memory."""
        return f"env:{self.key}"


class NodeState(StrEnum):
    READY = "ready"
    LOST = "lost"


#: Asked for every line of every cycle; see `domain.action` on names of members.
READY: Final = NodeState.READY


@dataclass(slots=True)
class LiveNode:
    """A node that has joined at least once."""

    inventory: NodeInventory
    state: NodeState = READY
    lost_at: float | None = None
    #: Attempts it may still be running although they are finished for everybody else.
    orphans: dict[str, tuple[Allocation, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.inventory.name


class Deferral(NamedTuple):
    """Some were evicted from a group; until when that is not decided again by itself."""

    #: When the first action that holds the resource is predicted to end.
    until: float
    #: The first one that was evicted; the group from there on waits with it.
    first: Order


class ServicePace(NamedTuple):
    """How long a GPU service takes, in seconds; what stands here until it was measured."""

    restore_seconds: float = 1.0
    call_seconds: float = 1.0
    #: Restores by the milli-units that they went to, rising.
    by_count: tuple[tuple[int, float], ...] = ()


class Learned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of the durations of one (task, kind, family); see `durations`."""

    #: Sum of the decayed weights.
    weight: float
    mean_seconds: float
    observations: int


class Appetite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many cores actions of one family use; see `appetite`."""

    #: Of the greediest one lately.
    most_cores: float
    observations: int


class Arranged(NamedTuple):
    """One group's decision, kept for a while for who asks why."""

    at: float
    resource: ResourceId
    policy: str
    #: Candidates in the order in which they are served; the first so many of them went.
    candidates: tuple[ActionId, ...]
    #: All actions of the group that the decision looked at.
    actions: int
    arrangement: Arrangement


class Steering(NamedTuple):
    """What somebody has said of a task as a whole."""

    paused: bool = False
    #: Stands for the priority of each of its actions.
    priority: int | None = None


class Tombstone(NamedTuple):
    """What is over, why, and until when that is remembered."""

    why: str
    until: float
    #: It ended by our fault.
    lost: bool = False


@dataclass(slots=True)
class State:
    """The whole state of the core."""

    make_ledger: MakeLedger
    config: Config = field(default_factory=default_config)
    now: float = 0.0
    arrivals: int = 0
    actions: dict[ActionId, LiveAction] = field(default_factory=dict)
    trajectories: dict[TrajectoryKey, LiveTrajectory] = field(default_factory=dict)
    nodes: dict[str, LiveNode] = field(default_factory=dict)
    ledgers: dict[ResourceId, Ledger] = field(default_factory=dict)
    queues: dict[QueueKey, WaitQueue] = field(default_factory=dict)
    #: Lines in which nobody stands, kept for what they know of their key; not part of a snapshot.
    drained: dict[QueueKey, WaitQueue] = field(default_factory=dict)
    task_pools: dict[str, str] = field(default_factory=dict)
    #: Tasks that are paused, or served at another priority than their actions came with.
    steering: dict[str, Steering] = field(default_factory=dict)
    #: Cancels that came before their action, and finished trajectories, until they are forgotten.
    tombstones: dict[str, Tombstone] = field(default_factory=dict)
    timers: Timers = field(default_factory=Timers)
    #: Actions on a node, by node: found at once when it is lost.
    on_node: dict[str, set[ActionId]] = field(default_factory=dict)
    #: Those of them that declare that they may be resized, by node.
    supple: dict[str, dict[ActionId, LiveAction]] = field(default_factory=dict)
    #: What nodes and configuration were found large enough for, until one of them changes.
    feasible: set[Place] = field(default_factory=set)
    #: Evicted candidates, by key resource.
    deferrals: dict[ResourceId, Deferral] = field(default_factory=dict)
    #: Learned durations, by family.
    durations: dict[str, Learned] = field(default_factory=dict)
    #: Learned uses of cores, by family.
    appetites: dict[str, Appetite] = field(default_factory=dict)
    #: Resources whose malleable actions are looked at again then.
    resizing: dict[ResourceId, float] = field(default_factory=dict)
    #: Resources of which units were given back since the last cycle.
    changed: set[ResourceId] = field(default_factory=set)
    #: The ledgers that count over time.
    paced: dict[ResourceId, PacedLedger] = field(default_factory=dict)
    #: The ledgers of units that lie in several places.
    local: dict[ResourceId, LocalLedger] = field(default_factory=dict)
    #: The ledgers of units in whose memory services stay.
    hosting: dict[ResourceId, HostingLedger] = field(default_factory=dict)
    #: How long GPU services take; see `affinity`.
    paces: dict[str, ServicePace] = field(default_factory=dict)
    #: Services that were brought to an idle chunk, and no call of them was granted one since; see `ahead`.
    ahead: set[str] = field(default_factory=set)
    #: When somebody who waits for nothing but time on such a resource is looked at again.
    pacing: dict[ResourceId, float] = field(default_factory=dict)
    #: Calls that share an answer.
    merging: Merging = field(default_factory=Merging)
    #: Decisions of policies, latest last. Not part of a snapshot, nor what follows.
    arranged: deque[Arranged] = field(default_factory=lambda: deque(maxlen=ARRANGED_KEPT))
    #: What waiting actions may get, as far as it follows from the action alone.
    choices: dict[ActionId, Choices] = field(default_factory=dict)
    #: What projects share, and who has what of it; follows from configuration and actions.
    cohorts: dict[CohortKey, Cohort] = field(default_factory=dict)
    #: Resources on which a share keeps malleable actions narrow: looked at when some of it is free.
    pinched: set[ResourceId] = field(default_factory=set)
    #: Policies of the pools, read from the configuration in force.
    policies: dict[str, Policy] = field(default_factory=dict)
    #: Some pool's policy resizes what runs; else nobody needs to know what has `changed`.
    resizes: bool = False
    #: A chunk was handed out beside whose holder others may work, since the last scan.
    seats_opened: bool = False
    #: Something was freed, queued or reconfigured since the last cycle.
    dirty: bool = False
    asked_wake: float | None = None

    def open_ledger(self, resource: ResourceId, have: ResourceInventory) -> None:
        """Begin to keep the books of ``resource``."""
        ledger = self.ledgers[resource] = self.make_ledger(resource, have)
        if isinstance(ledger, PacedLedger):
            self.paced[resource] = ledger
        if isinstance(ledger, HostingLedger):
            self.hosting[resource] = ledger
        self.look_where_units_lie(resource)

    def look_where_units_lie(self, resource: ResourceId) -> None:
        """Notice whether the units of ``resource``, which may have changed, lie in several places."""
        ledger = self.ledgers[resource]
        if isinstance(ledger, LocalLedger) and ledger.groups > 1:
            self.local[resource] = ledger
        else:
            self.local.pop(resource, None)

    def nodes_of(self, pool: str) -> Iterable[LiveNode]:
        """Return the nodes of ``pool``, whatever their state."""
        return [node for node in self.nodes.values() if node.inventory.pool == pool]

    def usable(self, node: LiveNode) -> bool:
        """Say whether ``node`` takes new actions.

        Not while it has orphans: they may still run in the environments of those that would follow.
        """
        return (
            node.state is READY
            and not node.orphans
            and node.inventory.name not in self.config.drained_nodes
        )

    def node_ledger(self, kind: str, node: str) -> Ledger | None:
        return self.ledgers.get(node_resource(kind, node))

    def place(self, live: LiveAction, node: str) -> None:
        """Enter ``live`` among those on ``node``."""
        live.node = node
        there = self.on_node.get(node)
        if there is None:
            there = self.on_node[node] = set()
        there.add(live.action.id)
        if live.action.malleable:
            self.supple.setdefault(node, {})[live.id] = live

    def displace(self, live: LiveAction) -> None:
        """Take ``live`` out from among those on its node; it still says where it was."""
        if live.node is not None:
            self.on_node[live.node].discard(live.action.id)
            if live.action.malleable:
                self.supple[live.node].pop(live.id, None)

    def retire(self, key: QueueKey) -> None:
        """Take away a line in which nobody stands any more."""
        queue = self.queues.pop(key)
        queue.reason = queue.sticky_node = None
        if len(self.drained) >= DRAINED_KEPT:
            self.drained.clear()
        self.drained[queue.key] = queue

    def trajectory_of(self, live: LiveAction) -> LiveTrajectory | None:
        action = live.action
        if action.trajectory is None:
            return None
        return self.trajectories.get(trajectory_key(action.project, action.trajectory))


def steering_of(state: State, project: str, task: str) -> Steering:
    """Return what somebody has said of a task."""
    return state.steering.get(task_key(project, task), Steering())


@lru_cache(maxsize=4096)
def _first_of(name: str) -> str:
    """Return the first one of equal strings."""
    return name


def share_names(action: Action) -> None:
    """Let ``action`` keep the names that others of its task came with: many may wait."""
    action.project, action.task = _first_of(action.project), _first_of(action.task)


def order_of(state: State, action: Action, arrival: int) -> Order:
    """Return when ``action`` is served, who came as the ``arrival``-th."""
    if not state.steering:
        return -action.priority, arrival
    said = steering_of(state, action.project, action.task).priority
    return -(action.priority if said is None else said), arrival


def holding(state: State, key: ResourceId) -> Iterator[LiveAction]:
    """Yield the live actions that hold units of ``key``."""
    for holder in state.ledgers[key].holders():
        live = state.actions.get(ActionId(holder.rpartition("#")[0]))
        if live is not None and live.holder == holder:
            yield live
