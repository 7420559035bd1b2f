"""Drivers, the halves of managers that run on nodes, and the registration of managers.

Rules
1. `run` returns exactly one report for an order and raises nothing but cancellation. When it
   returns, no process of the action is on granted cores: what a completed command left goes on in the
   background of a living environment, and else has ended, or the report's detail names it.
2. `started` is called at most once, before the report, when the process is spawned.
3. `stop` is idempotent, returns at once, and makes `run` return soon; an unknown id is ignored.
4. Waiting inside the driver (slow environment creation) counts as overhead, not as execution.
5. A driver ends only processes that it can prove to have created (I7).
6. `resize` is idempotent and returns at once; a running action continues with the new units, and
   one in preparation starts with them. An id or attempt that does not run is ignored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.decisions import ForkEnvironment
from domain.forks import ForkReport
from domain.ids import ActionId, TrajectoryKey
from domain.inventory import ResourceInventory
from domain.parking import ParkReport
from domain.ports.ledgers import LedgerFactory
from domain.ports.orders import Leftover, RunOrder, RunReport
from domain.protection import Protection
from domain.snapshots import SnapshotReport

#: Largest file that a driver accepts or returns.
MAX_FILE_BYTES = 16 * 1024 * 1024


class Driver(Protocol):
    """A manager on one node. All coroutines run in the node worker's event loop."""

    kinds: frozenset[Kind]

    @property
    def isolation(self) -> str:
        """Isolation of commands: ``bwrap``, ``process``; known once the driver is open."""

    async def open(self) -> list[Leftover]:
        """End what a crashed predecessor left running; return what it had started. Called once."""

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end."""

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; its report carries ``outcome`` unless it ended by itself before."""

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Change the allocation of one resource of a run."""

    def forget(self, marks: Sequence[str]) -> None:
        """Delete the start marks of attempts (`RunOrder.mark`) that will not be ordered again."""

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End all processes of an environment and delete it; an unknown one is not an error."""

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file below the workspace. Raises InvalidRequest for a path that leaves it."""

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file below the workspace. Raises InvalidRequest (leaves it, too large), NotFound."""

    async def close(self) -> None:
        """End everything this driver runs."""


class ResponseStream(Protocol):
    """Forwarding of one response while it arrives. Raises nothing but cancellation."""

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Forward status and headers; once."""

    async def write(self, data: bytes) -> None:
        """Forward a piece; waits while the reader is behind (backpressure)."""

    async def end(self) -> None:
        """Mark the response as complete."""


class ResponseStreams(Protocol):
    """Factory of response streams."""

    def open(self, action_id: ActionId) -> ResponseStream:
        """Open the stream of an action's response."""


@runtime_checkable
class Repairing(Protocol):
    """A driver that repairs changes that other programs made to its cgroups."""

    #: Number of repairs so far.
    repairs: int


@runtime_checkable
class Proxying(Protocol):
    """A driver with a proxy for environments whose network is ``egress``."""

    def egress_facts(self) -> dict[str, Any]:
        """Return counts (``connections``, ``bytes``, ``refused``) and the ``last_refusals``."""


@runtime_checkable
class Protecting(Protocol):
    """A driver that runs commands and reports how they are separated from the machine."""

    @property
    def protection(self) -> Protection:
        """What protects commands on this node; known once the driver is open."""


class EnvironmentDisk(NamedTuple):
    """Disk that one environment uses."""

    #: Name for the driver that reported it.
    name: str
    used_bytes: int
    #: Growth since the disks of the node were last free.
    grown_bytes: int
    #: An action runs in it, or ended a moment ago.
    recent: bool


@runtime_checkable
class DiskUsing(Protocol):
    """A driver whose environments use disk of the node."""

    def disk_folders(self) -> list[Path]:
        """Return folders on the file systems that its environments use."""

    async def disk_usage(self) -> list[EnvironmentDisk]:
        """Measure recent environments now; return the usage of all."""

    def disk_is_free(self) -> None:
        """Take present usages as the base of growth."""

    async def clear_environment(self, name: str, reason: str) -> None:
        """End the actions of an environment and delete its files, without Redis.

        They end as `infra_failed` with the reason, as do all later ones of its trajectory.
        """


@runtime_checkable
class Forking(Protocol):
    """A driver that forks environments."""

    async def fork_environment(self, order: ForkEnvironment) -> ForkReport:
        """Give each child of ``order`` the files of its source, in which no command runs meanwhile.

        A repeat completes an interrupted fork. Raises Conflict while programs keep the environment busy,
        StorageFull, CapacityError, Unavailable, OSError; then nothing of the children is left.
        """


@runtime_checkable
class Archiving(Protocol):
    """A driver that keeps the files of environments under names of their projects, for other nodes."""

    async def drop_snapshot(self, project: str, name: str) -> None:
        """Delete a snapshot; an unknown one is ignored. Environments that began from it go on."""

    async def snapshots(self) -> list[tuple[str, str]]:
        """Return project and name of the snapshots on this node."""

    def export_snapshot(self, project: str, name: str) -> AsyncIterator[bytes]:
        """Yield a snapshot as an archive for another node. Raises NotFound, Unavailable."""


@runtime_checkable
class Snapshotting(Archiving, Protocol):
    """A driver whose environments begin from such files."""

    async def take_snapshot(self, order: ForkEnvironment) -> SnapshotReport:
        """Store the files of ``order.source`` as ``order.snapshot``, on disk; a repeat does nothing.

        Raises what `Forking.fork_environment` does; then nothing of the snapshot is left.
        """


@runtime_checkable
class Parking(Protocol):
    """A driver that freezes idle environments and frees their memory."""

    async def park_environment(self, trajectory: TrajectoryKey) -> ParkReport:
        """Park an environment until its next action.

        Raises Conflict while an action runs in it, NotFound for one that does not run.
        """


#: Project and name → the archive of a snapshot that another node has. Raises NotFound, Unavailable.
FetchSnapshot = Callable[[str, str], AsyncGenerator[bytes, None]]
#: Name → the archive of an image that all nodes may have. Raises NotFound, Unavailable.
FetchImage = Callable[[str], AsyncGenerator[bytes, None]]


@dataclass(frozen=True)
class DriverContext:
    """Context that a node worker passes to its drivers."""

    node: str
    #: Private to the driver; survives restarts of the worker.
    state_directory: Path
    #: Declared resources of this node.
    resources: dict[str, ResourceInventory]
    #: ``backend = "process"`` and other settings of this node, as set by its operator.
    settings: dict[str, str]
    #: Streams for responses that are forwarded while they arrive; None: not supported.
    response_streams: ResponseStreams | None = None
    #: Returns a secret of the configuration as plain text. Raises TangramError without its key.
    open_secret: Callable[[str], str] = str
    #: Gets snapshots of other nodes; None: there are none.
    fetch_snapshot: FetchSnapshot | None = None
    #: Gets images from the object store; None: there are none.
    fetch_image: FetchImage | None = None


@dataclass(frozen=True)
class Manager:
    """Object behind an entry point of the group ``tangram.managers``."""

    #: Name of the resource in costs: ``cpu``. Cluster-wide resources use it as prefix: ``api``.
    resource: str
    make_ledger: LedgerFactory
    #: None: the resource is only counted.
    make_driver: Callable[[DriverContext], Driver] | None = None
    #: Detects the inventory of a node; None: it must be declared.
    probe: Callable[[DriverContext], ResourceInventory] | None = None
    description: str = ""
