"""Decisions: the only outputs of the core, named by imperatives."""

from __future__ import annotations

from typing import Any

import msgspec

from domain.action import EnvironmentSpec, Kind, Outcome, Timing
from domain.allocation import Allocation, Home, UsedResources
from domain.backends import BackendPool
from domain.events import NO_RESULT
from domain.fleets import FleetWorker
from domain.ids import ActionId, ResourceId, TrajectoryKey
from domain.limits import Degradation
from domain.rollouts import Rollout, RolloutId, RolloutResult
from domain.selectors import Parallelism, SelectorStage


class _Decision(
    msgspec.Struct, frozen=True, omit_defaults=True, tag=True, tag_field="decision", gc=False
):
    pass


class Grant(_Decision, frozen=True):
    """Run the action with exactly these units; a lease also has an expiry."""

    action_id: ActionId
    #: None: no node is involved (a lease on cluster-wide resources).
    node: str | None
    #: One per resource of its cost.
    allocations: tuple[Allocation, ...]
    #: Journal time at which a lease expires unless renewed.
    expires_at: float | None = None
    #: Counts the grants of this action; above 1 only for replay-safe ones.
    attempt: int = 1
    project: str = ""
    task: str = ""
    trajectory: str | None = None
    #: Of a generation: the greater one is served first on its worker.
    rank: float = 0.0


class Renew(_Decision, frozen=True):
    """Extend a lease to ``expires_at`` (journal time)."""

    action_id: ActionId
    expires_at: float


class Abort(_Decision, frozen=True):
    """Have the node end the action and report."""

    action_id: ActionId
    node: str
    reason: str
    #: Outcome of the report unless the action ended by itself before.
    outcome: Outcome = Outcome.CANCELLED
    attempt: int = 1


class Resize(_Decision, frozen=True):
    """Change the units of the key resource of a running action."""

    action_id: ActionId
    node: str
    attempt: int
    #: Its new allocation of the key resource.
    allocation: Allocation
    #: All its allocations after the change.
    allocations: tuple[Allocation, ...] = ()


class Requeue(_Decision, frozen=True):
    """Return the action to its old place in the queue."""

    action_id: ActionId
    reason: str


class Finish(_Decision, frozen=True):
    """Finish the action; written once."""

    action_id: ActionId
    project: str
    task: str
    outcome: Outcome
    timing: Timing
    trajectory: str | None = None
    reward: float | None = None
    detail: str | None = None
    node: str | None = None
    allocations: tuple[Allocation, ...] = ()
    kind: Kind = Kind.EXEC
    #: Number of grants.
    attempts: int = 0
    #: Number of resizes of its last attempt, and the integral of its key resource's milli-units over
    #: time; 0.0 when it was never resized.
    resizes: int = 0
    key_milli_seconds: float = 0.0
    #: Changes of its key resource as (seconds since its grant, milli-units), up to a few hundred;
    #: empty when it was never resized.
    widths: tuple[tuple[float, int], ...] = ()
    #: Result of the identical call that this one was merged with.
    result: msgspec.Raw = NO_RESULT
    #: Measured usage of its last attempt.
    used: UsedResources | None = None
    #: Facade that it was submitted through; empty: the native API.
    door: str = ""


class RemoveEnvironment(_Decision, frozen=True):
    """Have the node end and delete a trajectory's environment, and report."""

    trajectory: TrajectoryKey
    node: str
    reason: str


class Evict(_Decision, frozen=True):
    """Have the node evict an idle GPU service from GPU memory."""

    node: str
    home: Home


class Degraded(_Decision, frozen=True, tag="TurnedBad"):
    """Announce that a quota is exhausted or a circuit is open; for subscribers, without any effect."""

    resource: ResourceId
    degradation: Degradation = msgspec.field(name="turn")


class Prepare(_Decision, frozen=True):
    """Have the node load a GPU service ahead of any grant of its chunk, without an eviction."""

    node: str
    home: Home
    #: Memory of each GPU that it needs.
    memory_bytes: int
    #: Load into GPU memory; else into host memory only.
    awake: bool = True


class TransferFile(_Decision, frozen=True):
    """Have the node move a file into or out of an environment and answer ``reply_to``."""

    trajectory: TrajectoryKey
    node: str
    request_id: str
    verb: str
    path: str
    reply_to: str
    #: What its environment declares, for `domain.events.OPEN_FILES`.
    environment: EnvironmentSpec | None = None


class ForkEnvironment(_Decision, frozen=True):
    """Have the node fork an environment, report, and answer ``reply_to``."""

    source: TrajectoryKey
    node: str
    children: tuple[TrajectoryKey, ...]
    request_id: str
    reply_to: str
    #: ``refuse``, ``wait`` or ``copy``: see `domain.forks`.
    on_busy: str = "refuse"
    #: Environment of the source and of each child; None: it declares none.
    environment: EnvironmentSpec | None = None
    project: str = ""
    #: Task and pool of the source and of each child.
    task: str = ""
    pool: str = ""
    metadata: dict[str, Any] = {}
    #: Name of a snapshot that is taken instead; then there are no children.
    snapshot: str = ""


class MoveEnvironment(_Decision, frozen=True):
    """Have the node hold an idle environment and pack its files for another node, and report."""

    trajectory: TrajectoryKey
    #: It has the environment.
    node: str
    #: Counts the moves of the trajectory.
    number: int
    target: str
    project: str
    environment: EnvironmentSpec | None = None
    #: A larger one stays, with the code `domain.moves.TOO_LARGE`; 0: any goes.
    most_bytes: int = 0


class ReceiveEnvironment(_Decision, frozen=True):
    """Have the node fetch what another one has packed, begin the environment with it, and report."""

    trajectory: TrajectoryKey
    #: It gets the environment.
    node: str
    number: int
    source: str
    project: str
    environment: EnvironmentSpec | None = None


class EndMove(_Decision, frozen=True):
    """Tell a node where a trajectory lives on. There its environment is used again; the other node removes its own, and reports."""

    trajectory: TrajectoryKey
    node: str
    number: int
    #: Empty: the trajectory is over.
    lives_on: str
    #: Why it was not moved; empty for a success.
    why: str = ""
    task: str = ""

    @property
    def has_moved(self) -> bool:
        """Whether this is the end of a move that succeeded, for the node that it left."""
        return bool(self.lives_on) and self.node != self.lives_on and not self.why


class Refuse(_Decision, frozen=True):
    """Refuse a request that came too late, with the reason."""

    request_id: str
    reply_to: str
    code: str
    detail: str


class Forget(_Decision, frozen=True):
    """Remove a node from the system; if its worker is alive after all, it restarts as a new node."""

    node: str
    #: Identity of its state directory; a new one may join under the same name.
    identity: str
    #: Request to answer; empty: none is pending.
    request_id: str = ""
    reply_to: str = ""


class AssignRollout(_Decision, frozen=True):
    """Have a rollout worker run the rollout, from the end of its log on."""

    rollout: Rollout
    worker: str
    #: Of the worker.
    incarnation: int
    #: Counts the assignments of the rollout; records and reports of an earlier one are refused.
    attempt: int


class WithdrawRollout(_Decision, frozen=True):
    """Have a worker drop a rollout; one that is parked keeps its environments."""

    rollout_id: RolloutId
    worker: str
    incarnation: int
    attempt: int
    reason: str
    parked: bool = False


class ParkRollout(_Decision, frozen=True):
    """Keep a rollout without a lease until it is resumed."""

    rollout_id: RolloutId
    reason: str


class ResumeRollout(_Decision, frozen=True):
    """Let a rollout that was parked, or whose worker is lost, wait for a worker."""

    rollout_id: RolloutId
    reason: str = ""


class FinishRollout(_Decision, frozen=True, kw_only=True):
    """Finish the rollout; written once. Everything large is in its log."""

    rollout_id: RolloutId
    project: str
    task: str
    result: RolloutResult
    handler: str = ""
    instance: str = ""
    group: str | None = None
    sample: int = 0
    #: Number of assignments.
    attempts: int = 0
    #: Time from acceptance to the first assignment, and to the end.
    queue_seconds: float = 0.0
    total_seconds: float = 0.0
    #: Worker that ran it last.
    worker: str = ""
    #: Facade that it was submitted through; empty: the native API.
    door: str = ""


class SetBackends(_Decision, frozen=True):
    """Send the sampling of a pool to these backends: the whole pool, after a change."""

    pool: str
    backends: BackendPool


class SetFleet(_Decision, frozen=True):
    """Send the generations of a fleet to these workers: all of it, after a change."""

    fleet: str
    workers: tuple[FleetWorker, ...]


class MoveCache(_Decision, frozen=True):
    """Transfer the cache of a trajectory, which is in a tool, and report with `CacheMoved`."""

    fleet: str
    trajectory: TrajectoryKey
    #: Numbers of the workers.
    source: int
    target: int
    context_tokens: int
    #: Time by which the trajectory is expected to end earlier.
    gain_seconds: float = 0.0


class DropCacheMove(_Decision, frozen=True):
    """Give up the transfer that was just reported to begin: its trajectory is back, and no longer waits for it."""

    fleet: str
    trajectory: TrajectoryKey


class SetParallelism(_Decision, frozen=True):
    """Use this degree of parallelism for the stages from the next one on; calls of a steered service get it."""

    selector: str
    stage: SelectorStage
    parallelism: Parallelism
    #: None: it is the first one.
    former: Parallelism | None
    #: As `scheduler.core.residency.parallelism` names them, and the reason in a sentence.
    code: str
    why: str
    #: Speed over that of the former degree, less 1.
    gain: float = 0.0
    switch_seconds: float = 0.0
    #: Of the profile.
    revision: int = 0


class Wake(_Decision, frozen=True):
    """Send `TimeAdvanced` at this journal time at the latest."""

    wake_at: float


Decision = (
    Grant | Renew | Abort | Resize | Requeue | Finish | RemoveEnvironment | Evict | Degraded
    | Prepare | TransferFile | ForkEnvironment | Refuse | Forget | Wake
    | AssignRollout | WithdrawRollout | ParkRollout | ResumeRollout | FinishRollout | SetBackends
    | SetFleet | MoveCache | DropCacheMove | SetParallelism
    | MoveEnvironment | ReceiveEnvironment | EndMove
)  # fmt: skip
