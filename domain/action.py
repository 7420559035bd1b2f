"""The action: one atomic invocation of an external resource, as an immutable request.

Transitions are data; `docs/state-machines.md` is drawn from `TRANSITIONS`.

    queued ──▶ granted ──▶ running ──▶ finished
       ▲          │           │
       └──────────┴───────────┘   only when it never started, or was lost and is replay-safe
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from domain.apis import CallSpec
from domain.elasticity import Elasticity
from domain.ids import ActionId, TaskKey, TrajectoryKey, task_key, trajectory_key
from domain.resources import Cost


class Kind(StrEnum):
    """Who executes the action."""

    EXEC = "exec"  # a command in the trajectory's environment
    CALL = "call"  # a request forwarded to a GPU service or an API
    LEASE = "lease"  # the trainer itself, while it holds the lease
    NOOP = "noop"  # nobody: granted, touched by the node worker, released


class ActionState(StrEnum):
    """Where an action is. All states survive a restart."""

    QUEUED = "queued"
    GRANTED = "granted"
    RUNNING = "running"
    FINISHED = "finished"


# Who looks at every action names members so: through the class, each look-up costs as much as a call.
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
    """How an action ended; set once, never changed (I1)."""

    COMPLETED = "completed"  # any exit code, any HTTP status: that is data
    TIMEOUT = "timeout"  # execution took longer than timeout_seconds
    EXPIRED = "expired"  # waited longer than queue_timeout_seconds
    CANCELLED = "cancelled"
    OOM_KILLED = "oom_killed"
    INFRA_FAILED = "infra_failed"  # it did not run to its end, and that is our side's fault
    UNKNOWN = "unknown"  # it may have run; nobody can tell any more


COMPLETED: Final = Outcome.COMPLETED

#: What `ExecSpec.rewrite` may ask for.
PYTEST_XDIST: Final = "pytest-xdist"


class ExecSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A command. ``{units}`` in an argument becomes the granted count of the key resource."""

    command: tuple[str, ...]
    #: Relative to the workspace, or absolute inside it (``/workspace/src``).
    cwd: str | None = None
    env: dict[str, str] = {}
    stdin: str | None = None
    #: Bytes kept of each output stream; the rest is dropped and ``truncated`` says so.
    output_limit_bytes: int = 65536
    #: ``pytest-xdist``: run pytest with as many workers as units, where the plugin is there.
    rewrite: str | None = None


class LeaseSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """How long a lease lives without renewal."""

    ttl_seconds: float = 30.0


class RewardRule(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"source": "from"},
    gc=False,
):
    """How a reward is read from a completed action: ``exit_code`` (0 → 1.0, else 0.0) or ``json``.

    ``json`` reads the number at the dotted ``path`` of the last line of standard output, or of the
    body of a call that was answered with 2xx.
    """

    source: str
    path: str | None = None


class EnvironmentSpec(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """A trajectory's long-lived sandbox."""

    image: str | None = None
    #: Reserved on the node for the trajectory's whole life; 0 reserves nothing.
    memory_bytes: int = 0
    network: str = "none"
    ttl_seconds: float = 7200.0


class Action(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One atomic invocation. Never changed after it was accepted."""

    id: ActionId
    project: str
    task: str
    kind: Kind
    #: Resource name → feasible unit counts in milli-units.
    cost: Cost = {}
    trajectory: str | None = None
    #: Empty: the task's pool, else the project's default.
    pool: str = ""
    #: Higher goes first; equal priorities are served in order of arrival.
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
    #: Limit on execution alone; waiting never counts (I9).
    timeout_seconds: float | None = None
    #: Limit on waiting alone.
    queue_timeout_seconds: float | None = None
    #: It may be run again when nobody can tell whether it ran (I3).
    replay_safe: bool = False
    metadata: dict[str, Any] = {}

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
