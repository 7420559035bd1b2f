"""Receipts: bodies of the answers to changes that the scheduler has accepted.

The change itself follows: a receipt of 202 says that the request is stored, not that it is done.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from domain.action import ActionState, EnvironmentSpec


class AcceptedAction(msgspec.Struct):
    """An action that was submitted, or is about to be cancelled."""

    id: str
    state: ActionState
    #: Only in the answer to a cancellation.
    cancelling: bool | UnsetType = UNSET


class RenewedLease(msgspec.Struct):
    """A lease and its new end, as UTC RFC 3339."""

    id: str
    expires_at: str


class OpenedTask(msgspec.Struct):
    """A task and the pool that it is bound to; null: the default pool of its project."""

    id: str
    project: str
    pool: str | None


class ChangedTask(msgspec.Struct):
    """A task and what was asked for it."""

    id: str
    project: str
    paused: bool | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    cancelling: bool | UnsetType = UNSET


class EvictedService(msgspec.Struct):
    """A GPU service that leaves the chunks on which no action runs."""

    id: str
    evicting: bool


class TrajectoryDetails(msgspec.Struct):
    """State of a trajectory: ``open``, ``finishing`` or ``finished``; a finished one has ``detail``."""

    state: str
    task: str | UnsetType = UNSET
    pool: str | UnsetType = UNSET
    #: The node of its environment; null until its first action starts.
    node: str | UnsetType | None = UNSET
    live_actions: int | UnsetType = UNSET
    environment: EnvironmentSpec | UnsetType | None = UNSET
    detail: str | UnsetType = UNSET
    #: Its environment was lost with its node.
    lost: bool | UnsetType = UNSET
    #: Its node shows no sign of life, and is not counted as dead yet.
    silent: bool | UnsetType = UNSET
    #: When it was opened and when its time to live is over, as UTC RFC 3339.
    opened_at: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    #: It is paused since then, as UTC RFC 3339.
    paused_at: str | UnsetType = UNSET
    #: Facade that it was opened through; then its metadata follows.
    door: str | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class TrajectoryReceipt(TrajectoryDetails, kw_only=True):
    """A trajectory that was opened or finished."""

    id: str
    project: str


class ForkedTrajectories(msgspec.Struct, kw_only=True, rename={"source": "from"}):
    """Forks of a trajectory, all open on its node."""

    source: str
    project: str
    node: str
    trajectories: list[TrajectoryReceipt]
    #: ``sealed``: they share files and store what they change; ``copied``: each has its own.
    way: str
    #: Time that the node took, of which the environment was frozen for a copy.
    seconds: float
    frozen_seconds: float


class ParkedEnvironment(msgspec.Struct):
    """A trajectory whose environment is frozen until its next action."""

    id: str
    project: str
    #: Page cache that was given back; 0 where the node cannot tell.
    reclaimed_bytes: int
    seconds: float


class SnapshotDetails(msgspec.Struct, kw_only=True):
    """A snapshot, and how it was taken where it was just taken."""

    name: str
    project: str
    node: str
    trajectory: str
    #: Image below it; null: none.
    image: str | None
    #: Disk of its layers, which environments may share.
    size_bytes: int
    #: UTC RFC 3339.
    made_at: str
    way: str | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    frozen_seconds: float | UnsetType = UNSET


class SnapshotList(msgspec.Struct):
    """Snapshots by name."""

    items: list[SnapshotDetails]


class RemovedSnapshot(msgspec.Struct):
    """A snapshot that was removed; environments that began from it go on."""

    name: str
    project: str
    removed: bool


class WrittenFile(msgspec.Struct):
    """A file that was written into an environment, and its size."""

    path: str
    bytes: int


class SignedObject(msgspec.Struct):
    """A URL of the object store for one content; it needs no token, and is valid for a while."""

    #: For a PUT of the content, or a GET.
    url: str
    sha256: str
    size_bytes: int
    expires_in_seconds: float


class RemovedFile(msgspec.Struct):
    """A file or directory that was deleted."""

    path: str
