"""What a node is told to do, and what it tells of it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from domain.action import Action, EnvironmentSpec, Outcome
from domain.allocation import Allocation, Home, UsedResources
from domain.apis import ApiConfig, CallResult, Feedback
from domain.events import ChunkNews
from domain.ids import ActionId
from domain.services import GpuService


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


class PrepareOrder(msgspec.Struct, frozen=True):
    """A service that a node shall get ready before anybody is granted its chunk."""

    service: GpuService
    home: Home
    #: What it needs of each GPU.
    memory_bytes: int
    #: In the memory of its GPUs; else in host memory alone.
    awake: bool = True


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
