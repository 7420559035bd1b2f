"""What happened: the only inputs of the core, in past tense.

Each event carries ``at``, its journal time in seconds. Producers outside the loop leave it 0; the
loop stamps it when it takes the event in, so the core sees one clock that never runs backward.
"""

from __future__ import annotations

from typing import Any

import msgspec

from domain.action import Action, EnvironmentSpec, Outcome
from domain.allocation import Home, UsedResources
from domain.apis import Feedback
from domain.ids import ActionId, TrajectoryKey
from domain.inventory import Config, NodeInventory

#: Nothing; an optional `msgspec.Raw` cannot be told from other types when it is decoded.
NO_RESULT = msgspec.Raw(b"")


class _Event(
    msgspec.Struct, kw_only=True, omit_defaults=True, tag=True, tag_field="event", gc=False
):
    at: float = 0.0


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asked for something through the gateway, for the audit."""

    #: The name of the token.
    by: str
    request_id: str = ""
    #: ``api`` or ``cli``.
    via: str = "api"


class ChunkNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node tells the books of its GPUs after an action."""

    #: Services that are no longer in memory, whatever the books say.
    gone: tuple[Home, ...] = ()
    #: GPUs whose memory did not become free: nothing is granted there until the node joins anew.
    stuck: tuple[int, ...] = ()
    #: How long the service was being restored for this action, evictions included.
    restore_seconds: float = 0.0
    #: Services that could not be brought there: they try other chunks first, until they are cured.
    failed: tuple[Home, ...] = ()


class ActionSubmitted(_Event):
    """A trainer's action was accepted (its entry is on disk)."""

    action: Action
    #: Wall clock of the accepting gateway, seconds since the epoch.
    accepted_at: float = 0.0
    #: Seconds between acceptance and ``at``; counts as waiting.
    lag_seconds: float = 0.0
    #: For people: why it ends at once; the loop says so of what it could not take in (decision 0048).
    set_aside: str = ""


class ActionCancelRequested(_Event):
    """Somebody wants the action ended. Repeats change nothing."""

    action_id: ActionId
    project: str
    reason: str = "cancelled by request"
    #: None when it did not come through the gateway: then whoever took it wrote the audit.
    asked: Asked | None = None


class ActionStarted(_Event):
    """A node has spawned the action's work."""

    action_id: ActionId
    node: str
    attempt: int = 1


class ActionFinished(_Event):
    """A node reports the end of an action. ``result`` is opaque to the core."""

    action_id: ActionId
    node: str
    outcome: Outcome
    attempt: int = 1
    execution_seconds: float = 0.0
    result: msgspec.Raw = NO_RESULT
    reward: float | None = None
    #: For people: why it ended so, when the outcome alone does not say.
    detail: str | None = None
    #: It certainly never started (it may be granted again).
    never_started: bool = False
    #: What a call says about the API that was called.
    feedback: Feedback | None = None
    #: What a command used, where something counts it.
    used: UsedResources | None = None
    #: What happened in the memory of its GPUs.
    chunk: ChunkNews | None = None


class LeaseRenewed(_Event):
    """The holder wants to keep its lease for another ``ttl_seconds`` (default: as declared)."""

    action_id: ActionId
    project: str
    ttl_seconds: float | None = None


class LeaseReleased(_Event):
    """The holder gives its lease back."""

    action_id: ActionId
    project: str
    #: What the holder heard from the API; without a resource it is about all that the lease holds.
    feedback: Feedback | None = None


class TaskOpened(_Event):
    """A task was declared, perhaps bound to a pool."""

    project: str
    task: str
    pool: str = ""
    metadata: dict[str, Any] = {}


class TaskPaused(_Event):
    """Somebody wants a task to be granted nothing (or to go on). What runs goes on."""

    project: str
    task: str
    paused: bool = True
    asked: Asked | None = None


class ServiceEvictionAsked(_Event):
    """Somebody wants a GPU service to leave the chunks where it does not work."""

    service: str
    asked: Asked | None = None


class ServicePrepared(_Event):
    """A node has got a GPU service ready for a chunk that nobody was granted for it, or could not."""

    node: str
    home: Home
    #: How long that took.
    seconds: float = 0.0
    #: It is in the memory of its GPUs; else in host memory alone.
    awake: bool = True
    #: For people: why it is not there; empty when it is.
    failed: str = ""
    #: What happened in the memory of the GPUs.
    chunk: ChunkNews | None = None


class TaskPrioritised(_Event):
    """Somebody wants a task's actions served at another priority; None: each at its own."""

    project: str
    task: str
    priority: int | None = None
    asked: Asked | None = None


class TaskCancelRequested(_Event):
    """Somebody wants everything ended that a task has now."""

    project: str
    task: str
    reason: str = "cancelled with its task"
    asked: Asked | None = None


class TrajectoryOpened(_Event):
    """A trajectory was declared before its first action."""

    project: str
    task: str
    trajectory: str
    pool: str = ""
    environment: EnvironmentSpec | None = None
    metadata: dict[str, Any] = {}


class TrajectoryFinished(_Event):
    """The trainer is done with a trajectory: its waiting actions are cancelled, its environment goes."""

    project: str
    trajectory: str
    reason: str = "finished by request"


class EnvironmentRemoved(_Event):
    """A node has removed a trajectory's environment; its memory is free."""

    trajectory: TrajectoryKey
    node: str


class FileRequested(_Event):
    """A file goes into or out of an environment; the bytes travel beside the journal."""

    project: str
    trajectory: str
    request_id: str
    #: ``put`` or ``get``.
    verb: str
    path: str
    reply_to: str


class NodeJoined(_Event):
    """A node worker is up, has dealt with what a dead predecessor left, and takes commands."""

    node: NodeInventory


class NodeLost(_Event):
    """A node has shown no life for its time-out."""

    node: str
    incarnation: int


class NodeReturned(_Event):
    """A silent node shows life again, in the same incarnation."""

    node: str
    incarnation: int


class NodeForgetAsked(_Event):
    """Somebody wants a node that does not come back to be forgotten; whoever asked is answered."""

    node: str
    request_id: str = ""
    reply_to: str = ""


class ConfigApplied(_Event):
    """A revision of the configuration is in force."""

    config: Config


class TimeAdvanced(_Event):
    """A moment asked for by `Wake` has come."""


class ActionQueried(_Event):
    """Somebody asks how an action stands. Answered by the loop, never journalled."""

    action_id: ActionId
    project: str
    request_id: str
    reply_to: str


class TrajectoryQueried(_Event):
    """Somebody asks how a trajectory stands. Answered by the loop, never journalled."""

    project: str
    trajectory: str
    request_id: str
    reply_to: str


class StatusQueried(_Event):
    """Somebody asks how the system stands. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str


class DecisionsQueried(_Event):
    """Somebody asks what policies decided lately. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str
    limit: int = 100


class QueuesQueried(_Event):
    """Somebody asks what waits, and for what. Answered by the loop, never journalled."""

    request_id: str
    reply_to: str
    limit: int = 100
    #: Of these projects alone; None: of all.
    projects: tuple[str, ...] | None = None


Event = (
    ActionSubmitted
    | ActionCancelRequested
    | ActionStarted
    | ActionFinished
    | LeaseRenewed
    | LeaseReleased
    | TaskOpened
    | TaskPaused
    | TaskPrioritised
    | TaskCancelRequested
    | ServiceEvictionAsked
    | ServicePrepared
    | TrajectoryOpened
    | TrajectoryFinished
    | EnvironmentRemoved
    | FileRequested
    | NodeJoined
    | NodeLost
    | NodeReturned
    | NodeForgetAsked
    | ConfigApplied
    | TimeAdvanced
)
Question = ActionQueried | TrajectoryQueried | StatusQueried | DecisionsQueried | QueuesQueried
#: What travels on the inbox: events of the outside world, and questions.
Command = Event | Question
