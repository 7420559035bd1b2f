"""Live objects of the scheduler: actions, trajectories and nodes, with what is known of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from domain.action import EXEC, QUEUED, TRANSITIONS, Action, ActionState, EnvironmentSpec, Outcome
from domain.allocation import Allocation
from domain.errors import InvariantViolation
from domain.events import FileRequested
from domain.ids import ActionId, ResourceId, TrajectoryKey, node_resource
from domain.inventory import NodeInventory
from domain.resources import UnitSet
from scheduler.core.state.demand import Needs, QueueKey

#: (-priority, arrival), of a generation (-priority, -rank, arrival), of an action that is served before its turn
#: (-priority, turn, arrival): smaller is served first.
Order = tuple[int | float, ...]


class LiveAction(msgspec.Struct, eq=False, gc=False):
    """An accepted action that is not finished yet. (A struct: one is made for every action.)"""

    action: Action
    pool: str
    needs: Needs
    order: Order
    submitted_at: float
    state: ActionState = QUEUED
    #: Its wait queue; None while granted, or while an earlier action of its trajectory waits or runs.
    queue: QueueKey | None = None
    node: str | None = None
    allocations: tuple[Allocation, ...] = ()
    granted_at: float | None = None
    started_at: float | None = None
    lease_expires_at: float | None = None
    attempt: int = 0
    #: When its units were last changed while it held some, and how often that happened.
    resized_at: float | None = None
    resizes: int = 0
    #: Amounts of its key resource over time: (seconds since its grant, milli-units).
    widths: tuple[tuple[float, int], ...] = ()
    #: Until when the following two are summed up: T_ori seconds of work done, and milli-unit seconds
    #: of the key resource.
    accounted_at: float | None = None
    worked_seconds: float = 0.0
    key_milli_seconds: float = 0.0
    #: Outcome and reason of the `Abort` that was sent to its node.
    aborting: tuple[Outcome, str] | None = None
    #: Counts that it asked for, where a selector narrowed them; empty: those of its cost.
    asked_units: UnitSet = ()
    #: When it came into its wait queue.
    queued_at: float = 0.0

    @property
    def id(self) -> ActionId:
        return self.action.id

    @property
    def served(self) -> Order:
        """Its turn among all actions of its priority; ranks of generations compare within a fleet alone."""
        return self.order[-1:] if self.action.generation is not None else self.order[1:]

    @property
    def holder(self) -> str:
        """Name under which the current attempt holds units in ledgers."""
        return f"{self.action.id}#{self.attempt}"

    @property
    def key_resource(self) -> ResourceId | None:
        """Key resource in the place where the action is now; None without one, or without a place."""
        needs, key = self.needs, self.needs.key
        if needs.in_cluster and needs.key_in_cluster:
            return ResourceId(key)
        return node_resource(key, self.node) if key and self.node else None

    @property
    def resizable(self) -> bool:
        """It may be resized while it runs, in a pool whose policy does that."""
        action = self.action
        return (
            action.malleable
            and action.kind is EXEC
            and len(action.cost.get(self.needs.key, ())) > 1
        )

    def move(self, to: ActionState) -> None:
        """Change state along `TRANSITIONS`."""
        if to not in TRANSITIONS[self.state]:
            raise InvariantViolation(f"{self.id}: {self.state} cannot become {to}")
        self.state = to


class ForkRequest(msgspec.Struct, frozen=True):
    """A fork of a trajectory that waits for the actions before it, or that its node makes now."""

    request_id: str
    reply_to: str
    #: Names of the new trajectories.
    children: tuple[str, ...]
    #: ``refuse``, ``wait`` or ``copy``: see `domain.forks`.
    on_busy: str
    #: Exec actions that were submitted before it.
    after: tuple[ActionId, ...] = ()
    metadata: dict[str, Any] = {}
    #: Name of a snapshot that is taken instead; then there are no children.
    snapshot: str = ""
    #: Facade that the children are opened through.
    door: str = ""


class LiveMove(msgspec.Struct, frozen=True):
    """A move of a trajectory's environment from its node to another one, on its way (`state.moves`)."""

    #: Counts the moves of the trajectory.
    number: int
    #: Empty once that node is gone.
    target: str
    #: When it is given up.
    until: float
    #: The node has packed the environment, and the target has its order.
    packed: bool = False
    #: Why it ends as soon as the node says that it has packed; empty: it goes on.
    given_up: str = ""
    #: Kind and amount of what it claims on the target for an action that waits (`state.rebalancing`); empty: it is for a drain.
    claims: tuple[tuple[str, int], ...] = ()


class LiveTrajectory(msgspec.Struct, eq=False, gc=False, omit_defaults=True):
    """A trajectory, its node, and the order of its exec actions (one at a time, by arrival).

    Most fields of most trajectories are as they were made: snapshots leave them out.
    """

    key: TrajectoryKey
    project: str
    task: str
    name: str
    pool: str
    opened_at: float
    expires_at: float
    environment: EnvironmentSpec | None = None
    #: Node of its environment; set by its first grant or file, and kept while the environment exists.
    node: str | None = None
    #: First cores on that node that it held exclusively: its memory is local to them.
    home: tuple[int, ...] = ()
    busy: ActionId | None = None
    #: Exec actions that are not granted yet, by arrival; finished ones are dropped lazily.
    line: list[ActionId] = []
    live: set[ActionId] = msgspec.field(default_factory=set)
    #: Why it is closed; it accepts no actions then.
    closing: str | None = None
    #: It is closed because its environment was lost, not by request.
    lost: bool = False
    #: `RemoveEnvironment` was sent to the node.
    removing: bool = False
    #: Forks of it, in the order of their requests; the node makes the first one while `forking` names it.
    forks: list[ForkRequest] = []
    #: Request of the fork that its node makes now, of it or into it: its exec actions wait.
    forking: str = ""
    #: Move of its environment that is on its way: its exec actions and forks wait.
    move: LiveMove | None = None
    #: Requests for files that arrived during it; they are answered when it ends.
    file_requests: list[FileRequested] = []
    #: Number of moves that were begun.
    moves: int = 0
    #: Nodes that are to remove a copy of its environment, and hold its memory until they have.
    copies: list[str] = []
    #: Code of `domain.moves` for which it was not moved, how often that failed in a row, and until when it is not tried again.
    stays: str = ""
    failed_moves: int = 0
    stays_until: float = 0.0
    #: The same of moves for actions that wait.
    refused_moves: int = 0
    waits_until: float = 0.0
    #: The most that an exec action of it needs at least, by kind of its node's resources; None: not noted, in pools without `move_to_smaller`.
    needed: dict[str, int] | None = None
    #: Facade that it was opened through; empty: the native API.
    door: str = ""
    #: Metadata of one that was opened through a facade; of others it is not kept here.
    metadata: dict[str, Any] = {}
    #: At its end it is paused for so long; 0: it ends.
    pause_seconds: float = 0.0
    paused_at: float | None = None
    #: Cluster-wide resource → units of its latest lease there, which the next one prefers.
    seats: dict[str, tuple[int, ...]] = {}
    #: Of pools whose policy orders by trajectories (`critical_paths`): actions submitted so far, and when it
    #: is predicted to end.
    submitted: int = 0
    predicted_end: float = 0.0
    #: Grant of its last finished action until the next one is submitted, and seconds from grant to end.
    last_granted_at: float | None = None
    last_seconds: float = 0.0

    def holds_back(self, action_id: ActionId) -> bool:
        """Return whether an exec action waits for a fork or a move."""
        if self.forking or self.move is not None:
            return True
        return bool(self.forks) and action_id not in self.forks[0].after

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


#: Read for every queue of every cycle; see `domain.action` on names of members.
READY: Final = NodeState.READY


@dataclass(slots=True)
class LiveNode:
    """A node that has joined at least once."""

    inventory: NodeInventory
    state: NodeState = READY
    lost_at: float | None = None
    #: Why it takes no new actions by its own report; empty while it does.
    refuses: str = ""
    #: Attempts that the node may still run although the scheduler has ended or requeued them.
    orphans: dict[str, tuple[Allocation, ...]] = field(default_factory=dict)
    #: Trajectories that were moved away since its drain began.
    moved: int = 0

    @property
    def name(self) -> str:
        return self.inventory.name


@lru_cache(maxsize=4096)
def _interned(name: str) -> str:
    """Return the first one of equal strings."""
    return name


def intern_names(action: Action) -> None:
    """Let all actions of a task use the same string objects for its names: many may wait."""
    action.project, action.task = _interned(action.project), _interned(action.task)
