"""Events: the only inputs of the core, in past tense (those of rollouts: `domain.rollout_events`, of fleets: `domain.fleet_events`,
of selectors: `domain.selector_events`).

Each event carries ``at``, its journal time (`domain.event_base`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain.action import Action, EnvironmentSpec, Outcome
from domain.allocation import Home, UsedResources
from domain.apis import Feedback
from domain.event_base import EventBase, RequestOrigin
from domain.fleet_events import FleetEvent, FleetsQueried
from domain.fleets import TokenUsage
from domain.ids import ActionId, TrajectoryKey
from domain.inventory import Config, NodeInventory
from domain.rollout_events import RolloutEvent, RolloutsQueried
from domain.selector_events import SelectorEvent, SelectorsQueried

#: No result; the decoder cannot distinguish an optional `msgspec.Raw` from other types.
NO_RESULT = msgspec.Raw(b"")
#: `TrajectoryFinished.reason` of a trainer that is done with a trajectory.
FINISHED_BY_REQUEST = "finished by request"
#: `FileRequested.verb` that makes the environment of a trajectory and moves no file.
OPEN_FILES = "open"


class ChunkReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report of a node to the ledger of its GPUs after an action."""

    #: Services that are no longer in memory.
    gone: tuple[Home, ...] = ()
    #: GPUs whose memory was not freed: they are not granted until the node rejoins.
    stuck: tuple[int, ...] = ()
    #: Duration of the restore for this action, evictions included.
    restore_seconds: float = 0.0
    #: Services that failed to start there: other chunks are tried first until a restore succeeds.
    failed: tuple[Home, ...] = ()


class ActionSubmitted(EventBase):
    """A trainer's action was accepted (its entry is on disk)."""

    action: Action
    #: Wall clock of the accepting gateway, seconds since the epoch.
    accepted_at: float = 0.0
    #: Seconds between acceptance and ``at``; counts as waiting.
    lag_seconds: float = 0.0
    #: Reason for which it ends at once: the loop sets aside actions that it cannot apply (decision 0048).
    set_aside: str = ""


class ActionCancelRequested(EventBase):
    """Cancellation of an action was requested. Idempotent."""

    action_id: ActionId
    project: str
    reason: str = "cancelled by request"
    #: None for requests of pages, which write the audit themselves.
    asked: RequestOrigin | None = None


class ActionSetAside(EventBase):
    """The loop ends an action, because the core raises or hangs when it decides about it (decision 0068)."""

    action_id: ActionId
    why: str


class ActionStarted(EventBase):
    """A node has spawned the action's work."""

    action_id: ActionId
    node: str
    attempt: int = 1


class ActionFinished(EventBase):
    """A node reports the end of an action. ``result`` is opaque to the core."""

    action_id: ActionId
    node: str
    outcome: Outcome
    attempt: int = 1
    execution_seconds: float = 0.0
    result: msgspec.Raw = NO_RESULT
    reward: float | None = None
    #: Cause of the outcome, where the outcome alone does not give it.
    detail: str | None = None
    #: It never started, so it may be granted again.
    never_started: bool = False
    #: A part of its answer reached its client, so it is not granted again.
    delivered: bool = False
    #: State of the API that was called.
    feedback: Feedback | None = None
    #: Measured usage of a command.
    used: UsedResources | None = None
    #: Changes in the memory of its GPUs.
    chunk: ChunkReport | None = None
    #: Tokens of a generation.
    usage: TokenUsage | None = None


class LeaseRenewed(EventBase):
    """The holder renewed its lease for ``ttl_seconds`` (default: as declared)."""

    action_id: ActionId
    project: str
    ttl_seconds: float | None = None


class LeasesRenewed(EventBase):
    """A rollout worker renewed its leases together, each for the time that it declares; or a web process the generations that it holds."""

    action_ids: tuple[ActionId, ...]


class LeaseReleased(EventBase):
    """The holder released its lease."""

    action_id: ActionId
    project: str
    #: State of the API as the holder saw it; without a resource for all that the lease holds.
    feedback: Feedback | None = None


class TaskOpened(EventBase):
    """A task was declared, perhaps bound to a pool."""

    project: str
    task: str
    pool: str = ""
    metadata: dict[str, Any] = {}


class TaskPaused(EventBase):
    """A task was paused (no more grants) or resumed. Running actions continue."""

    project: str
    task: str
    paused: bool = True
    asked: RequestOrigin | None = None


class ServiceEvictionAsked(EventBase):
    """Eviction of a GPU service from the chunks where it is idle was requested."""

    service: str
    asked: RequestOrigin | None = None


class ServicePrepared(EventBase):
    """A node loaded a GPU service ahead of a grant, or failed to."""

    node: str
    home: Home
    #: Duration of the load.
    seconds: float = 0.0
    #: It is in GPU memory; else in host memory only.
    awake: bool = True
    #: Reason of the failure; empty for a success.
    failed: str = ""
    #: Changes in the memory of the GPUs.
    chunk: ChunkReport | None = None


class TaskPrioritised(EventBase):
    """The priority of a task's actions was changed; None: each action has its own."""

    project: str
    task: str
    priority: int | None = None
    asked: RequestOrigin | None = None


class TaskCancelRequested(EventBase):
    """Cancellation of all present actions of a task was requested."""

    project: str
    task: str
    reason: str = "cancelled with its task"
    asked: RequestOrigin | None = None


class TrajectoryOpened(EventBase):
    """A trajectory was declared before its first action."""

    project: str
    task: str
    trajectory: str
    pool: str = ""
    environment: EnvironmentSpec | None = None
    metadata: dict[str, Any] = {}
    #: Facade that it was opened through; empty: the native API.
    door: str = ""
    #: At its end it is paused for so long; 0: it ends.
    pause_seconds: float = 0.0


class TrajectoryRenewed(EventBase):
    """The end of an open trajectory was moved, or it was paused or resumed."""

    project: str
    trajectory: str
    #: From now on; None: its end stays.
    ttl_seconds: float | None = None
    #: Its end is never moved nearer.
    only_later: bool = False
    #: None: as it is. A mark that facades heed; actions run in a paused trajectory, too.
    paused: bool | None = None


class TrajectoryFinished(EventBase):
    """A trajectory was finished: its waiting actions are cancelled, its environment is removed."""

    project: str
    trajectory: str
    reason: str = FINISHED_BY_REQUEST


class EnvironmentRemoved(EventBase):
    """A node has removed a trajectory's environment; its memory is free."""

    trajectory: TrajectoryKey
    node: str
    #: It was that of a move, and the trajectory lives elsewhere.
    copied: bool = False


class FileRequested(EventBase):
    """A file transfer was requested; its bytes bypass the journal."""

    project: str
    trajectory: str
    request_id: str
    #: `OPEN_FILES`; of earlier versions ``put`` or ``get``.
    verb: str
    path: str
    reply_to: str


class TrajectoriesForked(EventBase):
    """Forks of a trajectory were requested: each begins with the files of its environment."""

    project: str
    #: The trajectory that is forked.
    source: str
    #: Names of the new trajectories.
    children: tuple[str, ...]
    request_id: str
    reply_to: str
    #: ``refuse``, ``wait`` or ``copy``: see `domain.forks`.
    on_busy: str = "refuse"
    metadata: dict[str, Any] = {}
    #: Name of a snapshot that is taken instead; then there are no children.
    snapshot: str = ""
    #: Facade that the children are opened through; empty: the native API.
    door: str = ""


class EnvironmentsForked(EventBase):
    """A node has forked an environment, or failed to; then nothing of the children is left."""

    source: TrajectoryKey
    node: str
    request_id: str
    children: tuple[TrajectoryKey, ...] = ()
    #: Reason of the failure; empty for a success.
    failed: str = ""


class EnvironmentPacked(EventBase):
    """A node holds an environment and has packed it for its move, or does not: then it is used as before."""

    trajectory: TrajectoryKey
    node: str
    #: Number of the move.
    number: int
    #: Reason of the failure; empty for a success.
    failed: str = ""
    #: Why it stays, as `domain.moves` has it.
    stays: str = ""


class EnvironmentReceived(EventBase):
    """A node has the environment of a move on its disk and can run it, or failed to."""

    trajectory: TrajectoryKey
    node: str
    number: int
    failed: str = ""


class NodeJoined(EventBase):
    """A node worker is up, has cleaned up after its predecessor, and accepts commands."""

    node: NodeInventory


class NodeLost(EventBase):
    """A node missed its heartbeats for the timeout."""

    node: str
    incarnation: int


class NodeReturned(EventBase):
    """A lost node sends heartbeats again, in the same incarnation."""

    node: str
    incarnation: int


class NodeFenced(EventBase):
    """The engine that placed a lost node has ended all its processes, and starts them no more."""

    node: str
    incarnation: int


class NodeRevoked(EventBase):
    """A node may take part no more: its reports are read no more, and nothing is granted there."""

    node: str


class NodeRefuses(EventBase):
    """A node takes no new work, since it lacks something itself; or takes it again."""

    node: str
    incarnation: int
    #: Why; empty: it takes work again.
    reason: str = ""


class NodeForgetAsked(EventBase):
    """Removal of a lost node was requested; the requester gets an answer."""

    node: str
    request_id: str = ""
    reply_to: str = ""


class ConfigApplied(EventBase):
    """A revision of the configuration is in force."""

    config: Config


class TimeAdvanced(EventBase):
    """A time set by `Wake` was reached."""


class ActionQueried(EventBase):
    """Query of an action. Answered by the loop, never journalled."""

    action_id: ActionId
    project: str
    request_id: str
    reply_to: str


class TrajectoryQueried(EventBase):
    """Query of a trajectory. Answered by the loop, never journalled."""

    project: str
    trajectory: str
    request_id: str
    reply_to: str


class TrajectoriesQueried(EventBase):
    """Query of the open trajectories of a facade. Answered by the loop, never journalled."""

    #: Empty: of all projects.
    project: str
    door: str
    request_id: str
    reply_to: str


class StatusQueried(EventBase):
    """Query of the system's status. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str


class NodeLoadsQueried(EventBase):
    """Query of what hangs on each node. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str


class PoolDemandsQueried(EventBase):
    """Query of what waits and runs in pools. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str
    pools: tuple[str, ...]


class DecisionsQueried(EventBase):
    """Query of the latest policy decisions. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str
    limit: int = 100


class QueuesQueried(EventBase):
    """Query of the wait queues. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str
    limit: int = 100
    #: Only these projects; None: all.
    projects: tuple[str, ...] | None = None


Event = (
    ActionSubmitted | ActionCancelRequested | ActionSetAside | ActionStarted | ActionFinished
    | LeaseRenewed | LeasesRenewed | LeaseReleased | TaskOpened | TaskPaused | TaskPrioritised | TaskCancelRequested
    | ServiceEvictionAsked | ServicePrepared | TrajectoryOpened | TrajectoryRenewed
    | TrajectoryFinished | EnvironmentRemoved | FileRequested | TrajectoriesForked | EnvironmentsForked
    | EnvironmentPacked | EnvironmentReceived
    | NodeJoined | NodeLost | NodeReturned | NodeFenced | NodeRevoked | NodeRefuses
    | NodeForgetAsked | ConfigApplied | TimeAdvanced | RolloutEvent | FleetEvent | SelectorEvent
)  # fmt: skip
Question = (
    ActionQueried | TrajectoryQueried | TrajectoriesQueried | StatusQueried | DecisionsQueried
    | NodeLoadsQueried | PoolDemandsQueried | QueuesQueried | RolloutsQueried | FleetsQueried
    | SelectorsQueried
)  # fmt: skip
#: Messages of the inbox: events of trainers and nodes, and queries.
Command = Event | Question
