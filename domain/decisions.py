"""What the core wants done: the only outputs of the core, as imperative nouns."""

from __future__ import annotations

import msgspec

from domain.action import Kind, Outcome, Timing
from domain.allocation import Allocation, Home, UsedResources
from domain.events import NO_RESULT
from domain.ids import ActionId, ResourceId, TrajectoryKey
from domain.limits import Turn


class _Decision(
    msgspec.Struct, frozen=True, omit_defaults=True, tag=True, tag_field="decision", gc=False
):
    pass


class Grant(_Decision, frozen=True):
    """The action may run with exactly these units. A lease also says until when."""

    action_id: ActionId
    #: None: no node takes part (a lease on cluster-wide resources).
    node: str | None
    #: One per resource of its cost.
    allocations: tuple[Allocation, ...]
    #: Journal time at which a lease ends unless renewed.
    expires_at: float | None = None
    #: Counts the grants of this action; above 1 only for replay-safe ones.
    attempt: int = 1
    project: str = ""
    task: str = ""
    trajectory: str | None = None


class Renew(_Decision, frozen=True):
    """A lease now ends at ``expires_at`` (journal time)."""

    action_id: ActionId
    expires_at: float


class Abort(_Decision, frozen=True):
    """The node shall end the action's work and report."""

    action_id: ActionId
    node: str
    reason: str
    #: What the report shall say unless the work ended by itself before.
    outcome: Outcome = Outcome.CANCELLED
    attempt: int = 1


class Resize(_Decision, frozen=True):
    """A running action goes on with other units of its key resource."""

    action_id: ActionId
    node: str
    attempt: int
    #: What it holds of its key resource from now on.
    allocation: Allocation
    #: Everything that it holds from now on.
    allocations: tuple[Allocation, ...] = ()


class Requeue(_Decision, frozen=True):
    """The action waits again, at its old place."""

    action_id: ActionId
    reason: str


class Finish(_Decision, frozen=True):
    """The action is over. Written once."""

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
    #: How often it was granted; 0 for an action that never was.
    attempts: int = 0
    #: How often its last attempt was resized, and the integral of its key resource's milli-units
    #: over the time it held them; 0.0 when it was never resized.
    resizes: int = 0
    key_milli_seconds: float = 0.0
    #: What it held of its key resource from when on: (seconds since its grant, milli-units). The
    #: first few hundred changes; empty when it was never resized.
    widths: tuple[tuple[float, int], ...] = ()
    #: What another call was answered, which is the answer to this one as well.
    result: msgspec.Raw = NO_RESULT
    #: What its last attempt used, where something counts it.
    used: UsedResources | None = None


class RemoveEnvironment(_Decision, frozen=True):
    """The node shall end and delete a trajectory's environment, and report."""

    trajectory: TrajectoryKey
    node: str
    reason: str


class Evict(_Decision, frozen=True):
    """The node shall let a GPU service leave the memory of GPUs where it does not work."""

    node: str
    home: Home


class TurnedBad(_Decision, frozen=True):
    """A cluster-wide resource ran out, or is left alone: told to who listens, nothing follows."""

    resource: ResourceId
    turn: Turn


class Prepare(_Decision, frozen=True):
    """The node shall get a GPU service ready before anybody is granted its chunk; nobody leaves for it."""

    node: str
    home: Home
    #: What it needs of each GPU.
    memory_bytes: int
    #: In the memory of its GPUs; else in host memory alone.
    awake: bool = True


class TransferFile(_Decision, frozen=True):
    """The node shall move a file in or out of an environment and answer ``reply_to``."""

    trajectory: TrajectoryKey
    node: str
    request_id: str
    verb: str
    path: str
    reply_to: str


class Refuse(_Decision, frozen=True):
    """A request that came too late to be honoured: the requester is told why."""

    request_id: str
    reply_to: str
    code: str
    detail: str


class Forget(_Decision, frozen=True):
    """The node is no part of the system any more. Should it live after all, it begins anew."""

    node: str
    #: Of the state directory that is forgotten; another one may come under the same name.
    identity: str
    #: Whoever asked for it, if somebody did just now.
    request_id: str = ""
    reply_to: str = ""


class Wake(_Decision, frozen=True):
    """Send `TimeAdvanced` at this journal time, at the latest."""

    wake_at: float


Decision = (
    Grant
    | Renew
    | Abort
    | Resize
    | Requeue
    | Finish
    | RemoveEnvironment
    | Evict
    | TurnedBad
    | Prepare
    | TransferFile
    | Refuse
    | Forget
    | Wake
)
