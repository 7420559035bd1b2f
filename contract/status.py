"""Status of the system: the body of ``GET /api/v1/status``, which the leader fills in.

Amounts of resources are in units, memory is in bytes. ``cpu``, ``gpu`` and ``memory`` belong to
nodes; every other resource is counted for the whole cluster.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from domain.advice import ShareUsage

Amount = int | float
#: What one worker reports of itself; members beside these depend on its role.
WorkerFacts = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema={
            "properties": {
                "name": {"type": "string"},
                "role": {"type": "string"},
                "pid": {"type": "integer"},
                "at": {"type": "number", "description": "Wall clock of its last sign of life."},
            },
            "required": ["name", "role", "pid", "at"],
        }
    ),
]


class PassQuantiles(msgspec.Struct):
    """Durations of the last 1,024 passes, in seconds; null before the first one."""

    p50: float | None
    p99: float | None


class PoolStatus(msgspec.Struct):
    """Live actions of a pool by state, and its policy."""

    queued: int
    granted: int
    running: int
    policy: str
    paused: bool


class QuotaStatus(msgspec.Struct):
    """One limit of a resource that is counted over time; ``zone`` is null for a sliding window."""

    units: Amount
    window_seconds: float | None
    zone: str | None
    used: Amount
    left: Amount
    #: When some of what is used counts no more.
    eases_in_seconds: float | None


class ResourceStatus(msgspec.Struct):
    """A resource of the whole cluster. The last three: only where it is counted over time."""

    capacity: Amount
    free: Amount
    #: Most that may be in use at once, after what the API has answered.
    ceiling: Amount | UnsetType = UNSET
    #: Why nothing is granted for now.
    hindrance: str | UnsetType | None = UNSET
    quotas: list[QuotaStatus] | UnsetType = UNSET


class NodeResource(msgspec.Struct):
    """What a node has of one resource."""

    capacity: Amount
    free: Amount
    oversubscribed: bool
    #: Cores beside the capacity: for Tangram's own processes and light actions.
    kept: int | UnsetType = UNSET


class DrainProgress(msgspec.Struct):
    """What a drain has done that lets trajectories finish, and what it waits for."""

    #: That have their environment there.
    trajectories: int
    #: That were moved to other nodes since the drain began, and those on their way.
    moved: int
    moving: int
    #: Code of `domain.moves` → number of the others.
    stays: dict[str, int]
    #: All that in one sentence.
    text: str


class NodeStatus(msgspec.Struct):
    """A node as the scheduler sees it; ``state`` is ``drained`` for a node that takes no new work."""

    name: str
    pool: str
    state: str
    isolation: str
    resources: dict[str, NodeResource]
    #: Why it gets no actions although it is ready; null: nothing hinders it.
    hindrance: str | None = None
    #: What protects commands there, in one line; empty where the worker does not report it.
    protection: str = ""
    #: Of a node that lets its trajectories finish.
    drain: DrainProgress | None = None


class NodeLoad(msgspec.Struct):
    """What hangs on a node; the answer to `domain.events.NodeLoadsQueried` has one for each node."""

    incarnation: int
    #: It is silent.
    lost: bool
    #: It takes no new trajectories; it has none that this answer does not count.
    drained: bool
    #: That hold units there.
    actions: int
    #: That have their environment there.
    trajectories: int


class SteeredTask(msgspec.Struct):
    """A task that is paused, or whose actions have one priority."""

    paused: bool
    priority: int | None


class LearnedDuration(msgspec.Struct):
    """Mean duration with one unit, and the number of executions it rests on."""

    mean_seconds: float
    observations: int


class RedisStatus(msgspec.Struct):
    """The Redis or Valkey server, and whether known holes are fixed in it."""

    server: str
    #: ``current``, ``outdated``, or ``unknown`` (a package of a distribution).
    standing: str
    detail: str
    #: Empty when nothing is to be done.
    cure: str = ""


class SystemStatus(msgspec.Struct):
    """Pools, resources, nodes and the loop. A token of one project sees its own shares and tasks."""

    at: str
    version: str
    leader: str
    epoch: int
    #: Number of the newest journal entry.
    seq: int
    #: Revision of the configuration.
    revision: int
    pass_seconds: PassQuantiles
    cycle_seconds: PassQuantiles
    pools: dict[str, PoolStatus]
    resources: dict[str, ResourceStatus]
    shares: list[ShareUsage]
    nodes: list[NodeStatus]
    #: Open trajectories.
    trajectories: int
    #: By ``project/task``.
    steered_tasks: dict[str, SteeredTask]
    #: By ``project/task`` and kind or family; those observed most.
    durations: dict[str, LearnedDuration]
    workers: list[WorkerFacts] = []
    redis: RedisStatus | None = None
