"""Actions: atomic invocations of external resources, as immutable requests.

Transitions are data; `docs/state-machines.md` is drawn from `TRANSITIONS`.

    queued ──▶ granted ──▶ running ──▶ finished
       ▲          │           │
       └──────────┴───────────┘   only if it never started, or was lost and is replay-safe
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from domain.apis import CallSpec
from domain.bodies import StoredBody
from domain.elasticity import Elasticity
from domain.fleet_engines import WorkerProcess
from domain.fleets import GenerationSpec
from domain.ids import ActionId, TaskKey, TrajectoryKey, task_key, trajectory_key
from domain.resources import Cost
from domain.rewards import RewardRule


class Kind(StrEnum):
    """Executor of an action."""

    EXEC = "exec"  # the node: a command in the trajectory's environment
    CALL = "call"  # a request forwarded to a GPU service or an API
    LEASE = "lease"  # the trainer itself, while it holds the lease
    NOOP = "noop"  # none: granted, acknowledged by the node worker, released


class ActionState(StrEnum):
    """State of an action. All states survive a restart."""

    QUEUED = "queued"
    GRANTED = "granted"
    RUNNING = "running"
    FINISHED = "finished"


# Aliases for hot loops: a look-up through the enum class costs as much as a function call.
QUEUED: Final = ActionState.QUEUED
GRANTED: Final = ActionState.GRANTED
RUNNING: Final = ActionState.RUNNING
FINISHED: Final = ActionState.FINISHED
EXEC: Final = Kind.EXEC
CALL: Final = Kind.CALL
LEASE: Final = Kind.LEASE

TRANSITIONS: Final[dict[ActionState, frozenset[ActionState]]] = {
    ActionState.QUEUED: frozenset({ActionState.GRANTED, ActionState.FINISHED}),
    ActionState.GRANTED: frozenset({ActionState.RUNNING, ActionState.FINISHED, ActionState.QUEUED}),
    ActionState.RUNNING: frozenset({ActionState.FINISHED, ActionState.QUEUED}),
    ActionState.FINISHED: frozenset(),
}


class Outcome(StrEnum):
    """Outcome of a finished action; set once, never changed (I1)."""

    COMPLETED = "completed"  # any exit code, any HTTP status: that is data
    TIMEOUT = "timeout"  # execution took longer than timeout_seconds
    EXPIRED = "expired"  # waited longer than queue_timeout_seconds
    CANCELLED = "cancelled"
    OOM_KILLED = "oom_killed"
    INFRA_FAILED = "infra_failed"  # stopped by a failure of Tangram or its nodes
    UNKNOWN = "unknown"  # it may have run; no record tells


COMPLETED: Final = Outcome.COMPLETED

#: Value of `ExecSpec.rewrite`.
PYTEST_XDIST: Final = "pytest-xdist"


class KeepOutput(StrEnum):
    """Which part of an output stream is kept."""

    HEAD_TAIL = "head_tail"
    HEAD = "head"
    TAIL = "tail"


class OutputSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """What is kept of each output stream of a command."""

    limit_bytes: int = 65536
    keep: KeepOutput = KeepOutput.HEAD_TAIL


class ExpectSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Further ends of an action in a session; the program continues in the background."""

    #: Regular expression (RE2), searched in the output of the action.
    pattern: str | None = None
    #: The program in the foreground waits for input.
    input: bool = False


class ExecSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A command. ``{units}`` in an argument becomes the granted count of the key resource.

    In a ``session`` a single word is text for its shell; without words the action continues what the
    session runs. ``stdin`` is then typed, and the output begins where that of the action before ended.
    """

    command: tuple[str, ...]
    #: Relative to the workspace, or absolute in the environment (``/tmp``).
    cwd: str | None = None
    env: dict[str, str] = {}
    stdin: str | None = None
    #: Bytes kept of each output stream, without ``output``.
    output_limit_bytes: int = 65536
    #: ``pytest-xdist``: run pytest with as many workers as units, where the plugin is installed.
    rewrite: str | None = None
    #: None: ``output_limit_bytes``, of the beginning and the end.
    output: OutputSpec | None = None
    #: Set by Tangram in place of a large ``stdin``; refused in requests.
    stored_stdin: StoredBody | None = None
    #: Name of the session to run in.
    session: str | None = None
    expect: ExpectSpec | None = None
    #: Wait, on the granted cores, for the command that the session runs; else the action fails at once.
    queue: bool = False


class LeaseSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Time to live of a lease without renewal."""

    ttl_seconds: float = 30.0


class EnvironmentSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A trajectory's long-lived sandbox."""

    image: str | None = None
    #: Reserved on the node for the trajectory's whole life; 0 reserves nothing.
    memory_bytes: int = 0
    network: str = "none"
    ttl_seconds: float = 7200.0
    #: Quota of its files, in blocks of the disk; 0: the default of the node.
    disk_bytes: int = 0
    #: Snapshot of its project with whose files it begins (`domain.snapshots`).
    snapshot: str | None = None


class Action(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One atomic invocation. Immutable once it is accepted."""

    id: ActionId
    project: str
    task: str
    kind: Kind
    #: Resource name → feasible unit counts in milli-units.
    cost: Cost = {}
    trajectory: str | None = None
    #: Empty: the task's pool, else the project's default.
    pool: str = ""
    #: Higher is served first; equal priorities in order of arrival.
    priority: int = 0
    step: int | None = None
    group: str | None = None
    family: str | None = None
    #: Resource whose unit count decides the duration (paper: key elasticity resource).
    key: str | None = None
    #: T_ori: expected duration with one unit of ``key``.
    duration_seconds: float | None = None
    elasticity: Elasticity | None = None
    malleable: bool = False
    environment: EnvironmentSpec | None = None
    exec: ExecSpec | None = None
    call: CallSpec | None = None
    lease: LeaseSpec | None = None
    reward: RewardRule | None = None
    #: Of a generation: a call of a fleet.
    generation: GenerationSpec | None = None
    #: The worker whose engine it is; refused in requests.
    engine: WorkerProcess | None = None
    #: Limit on execution; waiting never counts (I9).
    timeout_seconds: float | None = None
    #: Limit on waiting.
    queue_timeout_seconds: float | None = None
    #: It may run again when it is unknown whether it ran (I3).
    replay_safe: bool = False
    #: Actions of its trajectory that will follow it, as its trainer expects.
    remaining_actions: int | None = None
    metadata: dict[str, Any] = {}
    #: Facade that it was submitted through; empty: the native API.
    door: str = ""
    #: Name of the token or account that submitted it; empty: not recorded.
    by: str = ""

    @property
    def task_key(self) -> TaskKey:
        return task_key(self.project, self.task)

    @property
    def trajectory_key(self) -> TrajectoryKey | None:
        name = self.trajectory
        return None if name is None else trajectory_key(self.project, name)


class Timing(msgspec.Struct, frozen=True, omit_defaults=False, gc=False):
    """ACT and its parts. ``act = queue + overhead + execution``; all in seconds."""

    queue_seconds: float
    overhead_seconds: float
    execution_seconds: float
    act_seconds: float
