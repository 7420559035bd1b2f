"""The contract at the edge: JSON bodies of the hot endpoints, and their names in OpenAPI.

`ActionPayload` is what a trainer sends, `ActionView` what it gets back. Both sides of the system
(gateway and row-backed pages) answer with the same structs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from domain.action import (
    ActionState,
    EnvironmentSpec,
    ExecSpec,
    Kind,
    LeaseSpec,
    Outcome,
    RewardRule,
    Timing,
)
from domain.allocation import Placement, UsedResources
from domain.resources import UnitRange

#: Names that end up in keys, paths and labels.
#: ``$`` alone would let a line break pass behind them.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]*$(?!\n)", max_length=128)]
Label = Annotated[str, Meta(max_length=128)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
LeaseSeconds = Annotated[float, Meta(ge=0.1, le=86_400)]
Count = int | float

MAX_BATCH = 1000
#: In the scope of a request: the route that answers it, as a template
#: (``/api/v1/actions/{id}``). Metrics count by it.
ROUTE = "tangram.route"
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_WAIT_SECONDS = 60.0
MAX_FILE_BYTES = 16 * 1024 * 1024


class CallPayload(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One request to a declared API (``api:search``)."""

    target: Name
    method: Annotated[str, Meta(max_length=16)] = "POST"
    #: Below the base URL of the API, with the query, percent-encoded.
    path: str = "/"
    headers: dict[str, str] = {}
    #: Sent as JSON; or ``body`` as it stands.
    json: Any | msgspec.UnsetType = msgspec.UNSET
    body: str | None = None
    #: Pass the answer on while it comes: read it at ``GET /actions/{id}/stream``.
    stream: bool = False


class ActionPayload(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An action as a trainer submits it."""

    task: Name
    kind: Kind
    project: Name | None = None
    trajectory: Name | None = None
    pool: Name | None = None
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    step: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    group: Label | None = None
    family: Label | None = None
    environment: EnvironmentSpec | None = None
    #: Resource → feasible unit counts: a count, a list of counts, or ``{"min": …, "max": …}``.
    cost: dict[Name, Count | list[Count] | UnitRange] = {}
    key: Name | None = None
    duration_seconds: Seconds | None = None
    elasticity: dict[str, float] | None = None
    malleable: bool = False
    exec: ExecSpec | None = None
    call: CallPayload | None = None
    lease: LeaseSpec | None = None
    reward: RewardRule | None = None
    timeout_seconds: Seconds | None = None
    queue_timeout_seconds: Seconds | None = None
    replay_safe: bool = False
    metadata: dict[str, Any] = {}


class BatchPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Up to 1,000 actions; each is accepted or refused on its own."""

    actions: list[msgspec.Raw]


class ShareView(msgspec.Struct, frozen=True):
    """How a project stands with what it shares with others; in units."""

    #: None: the resource belongs to the whole cluster.
    pool: str | None
    #: A kind of the pool's nodes (``cpu``), or the resource.
    resource: str
    project: str
    nominal: float | int
    #: Most that it may borrow, and lend; None: no limit.
    borrow: float | int | None
    lend: float | int | None
    used: float | int
    #: Of that, what is beyond its nominal share.
    borrowed: float | int
    #: What it may still take; negative after a cut.
    left: float | int
    #: Its actions that wait in line for some of it, and perhaps for other things.
    waiting: int


class OneMoreView(msgspec.Struct):
    """What more of the binding resource would change for a waiting action."""

    #: How much more: one unit, or of GPUs the chunk that it needs.
    units: float | int
    #: How much earlier it would start; 0: so little more changes nothing.
    sooner_seconds: float
    #: Predicted start and end with that much more, in seconds from now.
    starts_in_seconds: float
    ends_in_seconds: float
    #: How much more would let it, and all before it, start now.
    missing: float | int


class IdleView(msgspec.Struct):
    """An environment that nobody uses at the moment, and that holds memory."""

    project: str
    trajectory: str
    memory_bytes: int
    #: When its time to live is over.
    expires_in_seconds: float


class SizeView(msgspec.Struct):
    """Something of which no node, or no limit, is as large as it is asked for."""

    #: ``memory`` and ``gpu_memory`` (of each GPU) are in bytes, everything else in units.
    resource: str
    asked: float | int
    largest: float | int


class ReliefView(msgspec.Struct, omit_defaults=True):
    """What frees an action that waits for time, for memory, or for something larger."""

    #: ``quota`` · ``memory`` · ``size``
    kind: str
    #: What it needs, what is left, and how much more would let it, and all before it, start now; in
    #: units, of memory in bytes.
    needed: float | int = 0
    left: float | int = 0
    missing: float | int = 0
    #: When something of the quota comes back.
    eases_in_seconds: float | None = None
    #: When there is enough for it and, as far as that can be said, for those before it; of memory
    #: at the latest, by times to live.
    enough_in_seconds: float | None = None
    #: Environments that nobody uses now, the largest few; and what all such hold.
    idle: list[IdleView] = []
    idle_bytes: int = 0
    sizes: list[SizeView] = []


class WaitView(msgspec.Struct, omit_defaults=True):
    """Why an action waits (I14)."""

    #: ``short_of`` · ``share`` · ``behind`` · ``deferred`` · ``trajectory_busy`` · ``merged`` · ``too_large`` · ``no_node`` ·
    #: ``nodes_unusable`` · ``node_lost`` · ``node_drained`` · ``pool_paused`` · ``task_paused`` ·
    #: ``service_quarantined`` · ``kept_away`` · ``arriving``
    code: str
    #: One sentence for people.
    reason: str
    resource: str | None = None
    #: Actions that are served before this one on that resource.
    position: int | None = None
    blocked_by: str | None = None
    #: Predicted start, in seconds from now.
    starts_in_seconds: float | None = None
    #: What it needs to start, in units; a policy may give it more of its key resource.
    units: dict[str, float | int] = {}
    #: What more of ``resource`` would change; None when nobody can tell.
    one_more: OneMoreView | None = None
    #: What frees it, where it is not units that end.
    relief: ReliefView | None = None
    #: The node, pool, task or service that takes nobody now.
    subject: str | None = None


class QueueView(msgspec.Struct):
    """One line: waiting actions that can only be admitted alike, the next one first."""

    pool: str
    #: The node that its trajectories are bound to; None: any node of the pool.
    node: str | None
    #: What each of them needs to start, in units.
    needs: dict[str, float | int]
    #: Memory that the first grant of a trajectory reserves.
    memory_bytes: int
    waiting: int
    #: The next one, and why it waits.
    head: str
    project: str
    task: str
    trajectory: str | None
    waited_seconds: float
    why: WaitView


class QueuesView(msgspec.Struct):
    """The longest lines first; ``lines`` and ``waiting`` count all there are."""

    items: list[QueueView]
    lines: int
    waiting: int


class TrialView(msgspec.Struct):
    """One eviction that a policy looked at."""

    evicted: int
    #: Predicted sum of ends of the whole group; None: certainly no better, so not worked out.
    objective_seconds: float | None
    #: The same per action: the estimated ACT from now on.
    mean_seconds: float | None


class DecisionView(msgspec.Struct):
    """What a policy decided about the candidates of one resource."""

    #: Journal time.
    at_seconds: float
    resource: str
    policy: str
    #: In the order in which they are served.
    candidates: list[str]
    #: Units of the resource that were granted.
    units: dict[str, float | int]
    #: Candidates that keep waiting.
    evicted: list[str]
    #: Further waiting actions that the decision looked at.
    waiting_behind: int
    objective_seconds: float | None
    #: What was tried, in that order; the first one evicts nobody.
    trials: list[TrialView]
    at: str | None = None


class DecisionsView(msgspec.Struct):
    """Recent decisions of policies, latest first."""

    items: list[DecisionView]


class ActionView(msgspec.Struct, kw_only=True):
    """An action as everybody sees it."""

    id: str
    state: ActionState
    outcome: Outcome | None = None
    #: ``exec``: exit_code, stdout, stderr, truncated, used (cpu_seconds, throttled_seconds,
    #: peak_memory_bytes; null where nothing counts it). ``lease``: expires_at. ``call``: status,
    #: headers, body, encoding, truncated.
    result: Any = None
    reward: float | None = None
    units: dict[str, float | int] = {}
    placement: Placement | None = None
    timing: Timing | None = None
    #: What the command used of ``units``; null where nothing counts it.
    used: UsedResources | None = None
    waiting: WaitView | None = None
    project: str = ""
    task: str = ""
    trajectory: str | None = None
    kind: Kind | None = None
    attempt: int = 1
    #: Why it ended so, when the outcome alone does not say.
    detail: str | None = None
    submitted_at: str | None = None
    granted_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457 problem details; ``errors`` point into the request body."""

    title: str
    status: int
    code: str
    detail: str = ""
    type: str = "about:blank"
    instance: str = ""
    request_id: str = ""
    errors: list[dict[str, str]] = []


class BatchItem(msgspec.Struct, omit_defaults=True):
    """What became of one item of a batch, in the order of the request."""

    status: int
    id: str | None = None
    state: ActionState | None = None
    problem: Problem | None = None


class BatchView(msgspec.Struct):
    """Answer to a batch: one result per item."""

    items: list[BatchItem]
    accepted: int
    refused: int


class CompletionsView(msgspec.Struct):
    """A page of the log of finished actions; ``next`` is the cursor to go on from."""

    items: list[ActionView]
    next: str
    #: More are there already.
    more: bool = False


class TrajectoryPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Declare a trajectory before its first action."""

    id: Name
    task: Name
    project: Name | None = None
    pool: Name | None = None
    environment: EnvironmentSpec | None = None
    metadata: dict[str, Any] = {}


class TaskPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Declare a task and bind it to a pool."""

    id: Name
    project: Name | None = None
    pool: Name | None = None
    metadata: dict[str, Any] = {}


class PriorityPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Serve a task's actions at one priority; null: each at its own."""

    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] | None


class RenewPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Renew a lease; without ``ttl_seconds`` for as long as it was declared."""

    ttl_seconds: LeaseSeconds | None = None


class ReleasePayload(msgspec.Struct, forbid_unknown_fields=True):
    """Give a lease back, and say what the API answered, so that everybody heeds it."""

    #: HTTP status of the answer; None: nothing is said.
    status: Annotated[int, Meta(ge=100, le=599)] | None = None
    retry_after_seconds: Annotated[float, Meta(ge=0, le=3600)] | None = None
    #: Which of the leased resources it is about; all of them by default.
    resource: Name | None = None


class CancelPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Cancel an action."""

    reason: Label = "cancelled by request"


def rfc3339(epoch_seconds: float) -> str:
    """Return a wall-clock instant as UTC RFC 3339 with microseconds."""
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat().replace("+00:00", "Z")
