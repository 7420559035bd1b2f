"""The seam between the scheduler and what it manages.

Theory of operation. A manager is cut in two. Its **ledger** is pure: it answers at once, inside a
cycle, what fits and which units an action gets; it lives in the loop and is rebuilt from the
journal. Its **driver** does the work on a node and may take as long as it likes. They never meet:
the loop turns a ledger's answer into a `RunOrder`, the node turns a driver's `RunReport` into an
event. Every implementation passes `tests/conformance/`.

Rules for ledgers
1. `fits`, `free` and `capacity` change nothing. An error changes nothing.
2. `allocate` succeeds when `fits((amount,))` said yes and nothing happened in between.
3. `release` restores exactly what was taken, and is idempotent.
4. The sum of what is held never passes the capacity by `allocate`; after `resize_capacity` it may,
   then `free` is negative and nothing fits.
5. `adopt` takes an allocation that an earlier life of the ledger handed out.

Rules for drivers
1. `run` returns exactly one report for an order and raises nothing but cancellation. When it
   returns, nothing of the action is left running, or the report's detail says what is.
2. `started` is called at most once, before the report, when the work has been spawned.
3. `stop` is idempotent, returns at once, and makes `run` return soon; an unknown id is ignored.
4. Waiting inside the driver (slow environment creation) counts as overhead, not as execution.
5. A driver ends only what it created, and can prove it did (I7).
6. `resize` is idempotent and returns at once; what runs goes on with the new units, and what is
   being prepared starts with them. An id or attempt that does not run is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from domain.action import Action, EnvironmentSpec, Kind, Outcome
from domain.allocation import Allocation, Home, UsedResources
from domain.apis import ApiConfig, CallResult, Feedback
from domain.events import ChunkNews
from domain.ids import ActionId, ResourceId, TrajectoryKey
from domain.inventory import ResourceInventory
from domain.limits import QuotaUse
from domain.operators import Operator
from domain.services import GpuService


class Ledger(Protocol):
    """Pure book-keeping of one resource."""

    resource: ResourceId

    @property
    def capacity(self) -> int:
        """Amount there is, in milli-units (bytes for memory)."""

    @property
    def free(self) -> int:
        """Amount not held. Negative after the capacity shrank below what is held."""

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once, to different holders."""

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Hand out units. Raises CapacityError when they do not fit or the holder has some."""

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked."""

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; None when it has nothing."""

    def holders(self) -> dict[str, Allocation]:
        """Return who has what."""

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have."""


@runtime_checkable
class ResizableLedger(Ledger, Protocol):
    """A ledger whose holders may be given more or less while they hold."""

    def resize(self, holder: str, amount: int, prefer: Sequence[int] = ()) -> Allocation:
        """Let ``holder`` go on with ``amount``; return what it has then.

        Units it had stay with it as far as they go; ``prefer`` names those to get first. Raises
        CapacityError, changing nothing, when that cannot be.
        """


@runtime_checkable
class LocalLedger(Ledger, Protocol):
    """A ledger whose units are nearer to some memory than others."""

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Hand out units, where it can beside ``near``, units that the holder's trajectory had.

        ``near`` changes which units, never whether there are enough.
        """

    @property
    def groups(self) -> int:
        """How many places there are to be near to; below 2 nobody needs to say."""


@runtime_checkable
class PacedLedger(Ledger, Protocol):
    """A ledger that also counts over time. It is told the time, and keeps none of its own.

    `release` restores what was taken only until `spend`: what was handed out counts on for as long
    as its quotas say.
    """

    def advance(self, now: float) -> None:
        """Let time pass (journal time); it never runs backward."""

    def spend(self, holder: str) -> None:
        """What ``holder`` was allocated is handed out for good, at this moment."""

    def ready_at(self, amount: int) -> float | None:
        """Return when time alone lets ``amount`` fit; None when it is not time that it lacks."""

    def uses(self, now: float) -> list[QuotaUse]:
        """Return how each quota stands at ``now``, which lies at or after the last `advance`."""

    def heed(self, feedback: Feedback, granted_at: float, now: float) -> None:
        """Take in what an attempt, granted at ``granted_at``, says of the resource."""

    def take_retry(self, attempts: int) -> str:
        """Allow one more attempt after so many, at once for all; else say why there is none."""

    def hindrance(self, now: float) -> str:
        """Say in words what else than quotas is in the way now; empty when nothing is."""

    @property
    def ceiling(self) -> int:
        """Most that may be held at once, as far as was learned; the capacity at most."""

    def remember(self) -> bytes:
        """Return what cannot be derived from who has what."""

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; called after holders were adopted."""


@runtime_checkable
class Shaped(Protocol):
    """A ledger of which more is to be said than a sum: its units combine in their own way."""

    def operator(self, claims: Sequence[int]) -> Operator:
        """Say what could be handed out beside ``claims``, which fit."""


@runtime_checkable
class HostingLedger(Ledger, Protocol):
    """A ledger of units in whose memory services stay between actions."""

    #: Services that are evicted last.
    wanted: frozenset[str]

    def allocate(
        self,
        holder: str,
        amount: int,
        service: str = "",
        memory_bytes: int = 0,
        *,
        at_home: bool = False,
    ) -> Allocation:
        """Hand out the units best for ``service``. Nobody is evicted, so it leaves no trace.

        ``at_home``: where it is cached, even when that splits a larger block than need be.
        """

    def homes(self, service: str, amount: int) -> list[Home]:
        """Return the free chunks of ``amount`` that cache ``service``."""

    def host(
        self, holder: str, amount: int, service: str = "", memory_bytes: int = 0, *, seats: int = 1
    ) -> Allocation:
        """Hand out units for good; the allocation says what happens in their memory.

        ``memory_bytes`` is what ``service`` needs of each; an empty name: the holder's own program.
        With several ``seats`` others may `join`, and the allocation is shared.
        """

    def seats(self, service: str, most: int) -> list[Home]:
        """Return the held chunks where ``service`` works for less than ``most`` who share it."""

    def join(self, holder: str, home: Home, most: int) -> Allocation:
        """Let ``holder`` share ``home`` with those that hold it. Raises CapacityError without a seat."""

    def evict(self, service: str) -> tuple[Home, ...]:
        """Let ``service`` leave every free chunk; return from where it left."""

    def spare(self, amount: int, memory_bytes: int) -> bool:
        """Say whether there is a free chunk of ``amount`` with room beside whoever is there."""

    def working(self, service: str) -> int:
        """Return on how many held chunks ``service`` works, or is meant to."""

    def drop(self, service: str, units: Sequence[int]) -> None:
        """``service`` is no longer in the memory of ``units``."""

    def found(self, homes: Sequence[Home]) -> None:
        """A node has begun anew with just these, besides those that work for holders."""

    def remember(self) -> bytes:
        """Return what cannot be derived from who has what."""

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; called after holders were adopted."""


LedgerFactory = Callable[[ResourceId, ResourceInventory], Ledger]


class RunOrder(msgspec.Struct, omit_defaults=True):
    """One action for one node to run, with everything the node needs to know."""

    action: Action
    allocations: tuple[Allocation, ...]
    attempt: int = 1
    #: The environment of the action's trajectory; None for an action that stands alone.
    environment: EnvironmentSpec | None = None
    #: Where a call goes.
    api: ApiConfig | None = None
    #: The GPU service that it calls.
    service: GpuService | None = None

    @property
    def id(self) -> ActionId:
        return self.action.id

    @property
    def mark(self) -> str:
        """Name of this attempt in durable starting marks: ``act_…#2``."""
        return f"{self.action.id}#{self.attempt}"

    def resized(self, allocation: Allocation) -> RunOrder:
        """Return the same order with another allocation of one resource."""
        others = (each for each in self.allocations if each.resource != allocation.resource)
        return replace(self, allocations=(*others, allocation))

    def allocation(self, kind: str) -> Allocation | None:
        """Return what was granted of ``kind`` (``cpu``), if anything."""
        for allocation in self.allocations:
            if allocation.resource.partition(":")[0] == kind:
                return allocation
        return None


class ExecResult(msgspec.Struct, frozen=True, omit_defaults=False):
    """What a command left behind. Output that is not UTF-8 is decoded with replacement."""

    exit_code: int | None
    stdout: str
    stderr: str
    #: Output was cut at the declared limit.
    truncated: bool = False
    #: None where nothing counts it.
    used: UsedResources | None = None


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a run ended, as the driver saw it."""

    outcome: Outcome
    execution_seconds: float
    result: ExecResult | None = None
    detail: str | None = None
    #: Nothing was spawned; the action may be granted again.
    never_started: bool = False
    #: What a call brought back, and what it says about the API that was called.
    answer: CallResult | None = None
    feedback: Feedback | None = None
    #: What happened in the memory of its GPUs.
    chunk: ChunkNews | None = None


class Leftover(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action that a dead predecessor of this driver had marked as started."""

    action_id: ActionId
    attempt: int
    #: Processes of it were found and ended; otherwise it may have run to its end.
    ended: bool
    detail: str = ""

    @property
    def mark(self) -> str:
        """The starting mark of the attempt (`RunOrder.mark`)."""
        return f"{self.action_id}#{self.attempt}"


class Driver(Protocol):
    """The hands of a manager on one node. All coroutines run in the node worker's event loop."""

    kinds: frozenset[Kind]

    @property
    def isolation(self) -> str:
        """How work is kept apart from the node: ``bwrap``, ``process``; known once it is open."""

    async def open(self) -> list[Leftover]:
        """End what a dead predecessor left running; return what it had started. Called once."""

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end."""

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; its report carries ``outcome`` unless it ended by itself before."""

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Let a run go on with another allocation of one of its resources."""

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts (`RunOrder.mark`) will not be ordered again: their marks may go."""

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End what runs in it and delete it. An unknown trajectory is not an error."""

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file below the workspace. Raises InvalidRequest for a path that leaves it."""

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file below the workspace. Raises InvalidRequest (leaves it, too large), NotFound."""

    async def close(self) -> None:
        """End everything this driver runs."""


@runtime_checkable
class Evicting(Protocol):
    """A driver that keeps services in memory between actions."""

    async def evict(self, home: Home) -> None:
        """Let a service leave the memory at ``home``, unless it works there again."""


class Passage(Protocol):
    """The way of one answer to whoever reads it while it comes. Raises nothing but cancellation."""

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Tell how the answer begins; once."""

    async def write(self, data: bytes) -> None:
        """Pass on what came. Waits while the reader is behind: so should whoever sends it."""

    async def end(self) -> None:
        """Tell that the answer is whole."""


class Passages(Protocol):
    """Opens passages."""

    def open(self, action_id: ActionId) -> Passage:
        """Return the way to whoever reads this action's answer."""


@runtime_checkable
class Repairing(Protocol):
    """A driver that restores what somebody else changed about its work."""

    #: How often it did since it was made.
    repairs: int


@runtime_checkable
class HostDriver(Driver, Protocol):
    """A driver that looks after the memory of GPUs, and forwards calls to the services there."""

    def residents(self) -> tuple[Home, ...]:
        """Return which services are in memory; known once it is open."""

    async def clear(self, order: RunOrder) -> RunReport | None:
        """Make room for an action that brings its own program; a report when that fails."""


@dataclass(frozen=True)
class DriverContext:
    """What a node worker gives to the drivers it makes."""

    node: str
    #: Private to this driver; survives restarts of the worker.
    state_directory: Path
    #: Declared resources of this node.
    resources: dict[str, ResourceInventory]
    #: ``backend = "process"`` and other settings of this node, as given by its operator.
    settings: dict[str, str]
    #: Where answers go that are read while they come; None where nobody can.
    passages: Passages | None = None


@dataclass(frozen=True)
class Manager:
    """What an entry point of the group ``tangram.managers`` must resolve to."""

    #: Name of the resource in costs: ``cpu``. Cluster-wide resources use it as prefix: ``api``.
    resource: str
    make_ledger: LedgerFactory
    #: None: the resource is only counted, no work is done around an action.
    make_driver: Callable[[DriverContext], Driver] | None = None
    #: Says what a node has of this resource; None: it must be declared.
    probe: Callable[[DriverContext], ResourceInventory] | None = None
    description: str = ""
