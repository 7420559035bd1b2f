"""Orders to nodes, and their reports."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from domain.action import Action, EnvironmentSpec, Outcome
from domain.allocation import Allocation, Home, UsedResources
from domain.apis import ApiConfig, CallResult, Feedback
from domain.egress import EgressRules
from domain.events import ChunkReport
from domain.fleets import TokenUsage
from domain.ids import ActionId
from domain.services import GpuService


class RunOrder(msgspec.Struct, omit_defaults=True):
    """One action for a node to run, with all that the node needs."""

    action: Action
    allocations: tuple[Allocation, ...]
    attempt: int = 1
    #: The environment of the action's trajectory; None: no trajectory.
    environment: EnvironmentSpec | None = None
    #: The API that it calls.
    api: ApiConfig | None = None
    #: The GPU service that it calls.
    service: GpuService | None = None
    #: What its environment reaches, with ``network: egress``.
    egress: EgressRules | None = None

    @property
    def id(self) -> ActionId:
        return self.action.id

    @property
    def mark(self) -> str:
        """Name of this attempt in the durable start log: ``act_…#2``."""
        return f"{self.action.id}#{self.attempt}"

    def resized(self, allocation: Allocation) -> RunOrder:
        """Return the same order with another allocation of one resource."""
        others = (each for each in self.allocations if each.resource != allocation.resource)
        return replace(self, allocations=(*others, allocation))

    def allocation(self, kind: str) -> Allocation | None:
        """Return the allocation of ``kind`` (``cpu``), if any."""
        for allocation in self.allocations:
            if allocation.resource.partition(":")[0] == kind:
                return allocation
        return None


class PrepareOrder(msgspec.Struct, frozen=True):
    """A service for a node to load ahead of any grant of its chunk."""

    service: GpuService
    home: Home
    #: Memory of each GPU that it needs.
    memory_bytes: int
    #: Load into GPU memory; else into host memory only.
    awake: bool = True


class ExecResult(msgspec.Struct, frozen=True, omit_defaults=False):
    """Result of a command. Output that is not UTF-8 is decoded with replacement."""

    exit_code: int | None
    stdout: str
    stderr: str
    #: Output beyond the declared limit is missing; a mark in the text says how much.
    truncated: bool = False
    #: None where it is not measured.
    used: UsedResources | None = None
    #: Bytes that the command wrote, kept or not.
    stdout_bytes: int = 0
    stderr_bytes: int = 0


class SessionResult(ExecResult, frozen=True, omit_defaults=False):
    """Result of an action in a session. Without ``exit_code`` its command has not ended."""

    #: Phase of the session at the end: ``idle``, ``busy``, ``replaced``, ``ended``, …
    session: str = ""
    #: What the expected pattern matched.
    matched: str | None = None
    #: Number of the last command that the shell took; None: none yet, or one that it runs since before its worker started.
    command_number: int | None = None


class RewardFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file that a reward is read from, as the command left it."""

    #: None: there is none to read.
    content: bytes | None
    #: Why there is none.
    problem: str = ""


class RunReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report of a driver on a finished run."""

    outcome: Outcome
    execution_seconds: float
    result: ExecResult | None = None
    detail: str | None = None
    #: Nothing was spawned; the action may be granted again.
    never_started: bool = False
    #: Result of a call, and the state of the API that was called.
    answer: CallResult | None = None
    feedback: Feedback | None = None
    #: Changes in the memory of its GPUs.
    chunk: ChunkReport | None = None
    #: Tokens of a call, where its answer has them.
    usage: TokenUsage | None = None
    #: None: its reward is read from no file.
    reward_file: RewardFile | None = None


class Leftover(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action that a crashed predecessor of this driver had marked as started."""

    action_id: ActionId
    attempt: int
    #: Its processes were found and ended; otherwise it may have completed.
    ended: bool
    detail: str = ""

    @property
    def mark(self) -> str:
        """Start mark of the attempt (`RunOrder.mark`)."""
        return f"{self.action_id}#{self.attempt}"
