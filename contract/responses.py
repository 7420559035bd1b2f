"""Response bodies of the hot endpoints, answered by the gateway and by the row-backed pages."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from domain.action import ActionState, Kind, Outcome, Timing
from domain.advice import ExtraUnitsEffect, PolicyDecision, StartRange, UnblockHint
from domain.allocation import Placement, UsedResources
from domain.request_text import RequestDetails


class WaitDetails(msgspec.Struct, omit_defaults=True):
    """Reason why an action waits (I14)."""

    #: ``short_of`` · ``share`` · ``behind`` · ``deferred`` · ``trajectory_busy`` · ``trajectory_forked`` · ``trajectory_moved`` · ``merged`` · ``too_large`` · ``no_backend`` · ``no_node`` ·
    #: ``nodes_unusable`` · ``pool_unconfined`` · ``node_unconfined`` · ``node_lost`` · ``node_drained`` ·
    #: ``node_refuses`` · ``pool_paused`` · ``task_paused`` · ``service_quarantined`` · ``kept_away`` · ``no_worker`` · ``batch_gathers`` · ``cache_moves`` · ``arriving``
    code: str
    #: The reason in one sentence.
    reason: str
    resource: str | None = None
    #: Actions that are served before this one on that resource.
    position: int | None = None
    blocked_by: str | None = None
    #: Predicted start, in seconds from now: one number, of unknown error. For a person: ``start_range``.
    starts_in_seconds: float | None = None
    #: Units that it needs to start; a policy may grant more of its key resource.
    units: dict[str, float | int] = {}
    #: Effect of more units of ``resource``; None when it cannot be predicted.
    one_more: ExtraUnitsEffect | None = None
    #: What has to happen first, where waiting for units is not the reason.
    relief: UnblockHint | None = None
    #: The node, pool, task or service that accepts no actions now.
    subject: str | None = None
    #: When it may start, as a range whose hit rate is measured; None: unknown.
    start_range: StartRange | None = None


class QueueDetails(msgspec.Struct):
    """One wait queue: actions with equal needs; its head is admitted first."""

    pool: str
    #: Node that the trajectories are bound to; None: any node of the pool.
    node: str | None
    #: Units that each action needs to start.
    needs: dict[str, float | int]
    #: Memory that the first grant of a trajectory reserves.
    memory_bytes: int
    waiting: int
    #: The first action, and why it waits.
    head: str
    project: str
    task: str
    trajectory: str | None
    waited_seconds: float
    why: WaitDetails


class QueuesResponse(msgspec.Struct):
    """The longest wait queues first; ``lines`` and ``waiting`` count all queues and actions."""

    items: list[QueueDetails]
    lines: int
    waiting: int


class DecisionDetails(PolicyDecision):
    """A decision of a policy, with its time as UTC RFC 3339."""

    at: str | None = None


class DecisionsResponse(msgspec.Struct):
    """Recent decisions of policies, latest first."""

    items: list[DecisionDetails]


class ActionResponse(msgspec.Struct, kw_only=True):
    """State of an action, with its result once it is finished."""

    id: str
    state: ActionState
    outcome: Outcome | None = None
    #: ``exec``: exit_code, stdout, stderr, truncated, used (cpu_seconds, throttled_seconds,
    #: peak_memory_bytes; null where it is not measured). ``lease``: expires_at. ``call``: status,
    #: headers, body, encoding, truncated.
    result: Any = None
    reward: float | None = None
    units: dict[str, float | int] = {}
    placement: Placement | None = None
    timing: Timing | None = None
    #: Measured usage of ``units``; null where it is not measured.
    used: UsedResources | None = None
    waiting: WaitDetails | None = None
    project: str = ""
    task: str = ""
    trajectory: str | None = None
    kind: Kind | None = None
    #: Door that it was submitted through, as in ``e2b``; empty: the native API.
    door: str = ""
    attempt: int = 1
    #: Cause of the outcome, where the outcome alone does not give it.
    detail: str | None = None
    submitted_at: str | None = None
    granted_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    #: Its request; only of one action, with ``include=request``.
    request: RequestDetails | UnsetType = UNSET


class ProblemDetails(msgspec.Struct, omit_defaults=True):
    """RFC 9457 problem details; ``errors`` point into the request body."""

    title: str
    status: int
    code: str
    detail: str = ""
    type: str = "about:blank"
    instance: str = ""
    request_id: str = ""
    errors: list[dict[str, str]] = []


class BatchItemResponse(msgspec.Struct, omit_defaults=True):
    """Result of one item of a batch, in the order of the request."""

    status: int
    id: str | None = None
    state: ActionState | None = None
    problem: ProblemDetails | None = None


class BatchResponse(msgspec.Struct):
    """Results of a batch, one per item."""

    items: list[BatchItemResponse]
    accepted: int
    refused: int


class CompletionsResponse(msgspec.Struct):
    """A page of the log of finished actions; ``next`` is the cursor of the following page."""

    items: list[ActionResponse]
    next: str
    #: The following page has items already.
    more: bool = False


def rfc3339(epoch_seconds: float) -> str:
    """Return a wall-clock instant as UTC RFC 3339 with microseconds."""
    microseconds = round(epoch_seconds * 1_000_000)
    second, rest = divmod(microseconds, 1_000_000)
    return f"{_second(second)}.{rest:06d}Z" if rest else f"{_second(second)}Z"


@lru_cache(1024)
def _second(epoch_seconds: int) -> str:
    return datetime.fromtimestamp(epoch_seconds, UTC).isoformat().removesuffix("+00:00")
