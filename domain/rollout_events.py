"""Events of rollouts, their workers and the backends of language models.

Workers send `RolloutWorkerJoined`, `RolloutsProgressed`, `RolloutFinished` and `BackendJudged`; the gateway sends the
rest, apart from `RolloutWorkerLost`, which the loop's housekeeping makes. The core answers with the decisions `AssignRollout`,
`WithdrawRollout`, `ParkRollout`, `ResumeRollout`, `FinishRollout` and `SetBackends`.

Rules
1. Every event may arrive twice. A report of an attempt that is over changes nothing.
2. A cancel of an unknown rollout is remembered (`domain.rollouts`), so it also reaches one that arrives later.
"""

from __future__ import annotations

import msgspec

from domain.backends import Balance, LlmBackend
from domain.event_base import EventBase, RequestOrigin
from domain.rollouts import Rollout, RolloutId, RolloutProgress, RolloutResult


class RolloutsSubmitted(EventBase):
    """Rollouts were accepted: the request of each is the first record of its log, on disk."""

    rollouts: tuple[Rollout, ...]
    #: Wall clock of the accepting gateway, seconds since the epoch.
    accepted_at: float = 0.0
    #: Seconds between acceptance and ``at``; counts as waiting.
    lag_seconds: float = 0.0
    #: Reason for which they end at once: the loop sets aside messages that the core cannot handle.
    set_aside: str = ""


class RolloutCancelRequested(EventBase):
    """Cancellation of a rollout was requested. Idempotent; an unknown one ends when it is submitted."""

    rollout_id: RolloutId
    project: str
    reason: str = "cancelled by request"
    asked: RequestOrigin | None = None


class RolloutParkRequested(EventBase):
    """A rollout is to be kept without a lease, from its last stored turn on, until it is resumed."""

    rollout_id: RolloutId
    project: str
    reason: str = "parked by request"
    asked: RequestOrigin | None = None


class RolloutResumeRequested(EventBase):
    """A parked rollout is to go on; it waits at the place of its arrival."""

    rollout_id: RolloutId
    project: str
    asked: RequestOrigin | None = None


class RolloutWorkerJoined(EventBase):
    """A rollout worker takes rollouts. A later incarnation has nothing of an earlier one.

    The same incarnation again: it changes its slots and handlers, or returns after it was lost.
    """

    worker: str
    #: Counts the starts of the worker of this name.
    incarnation: int
    #: Rollouts that it takes at once; 0: it finishes those that it has.
    slots: int
    hostname: str = ""
    version: str = ""
    #: Names of the handlers that it has; empty: it takes rollouts of all, as workers of earlier versions do.
    handlers: tuple[str, ...] = ()


class RolloutWorkerLost(EventBase):
    """A rollout worker missed its heartbeats, or stopped; its rollouts are assigned again."""

    worker: str
    incarnation: int
    reason: str = "its worker is silent"


class ProgressReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of one rollout."""

    rollout_id: RolloutId
    attempt: int
    progress: RolloutProgress


class RolloutsProgressed(EventBase):
    """A worker reports progress of its rollouts, at most once a second: for pages, without any effect."""

    worker: str
    reports: tuple[ProgressReport, ...]


class RolloutFinished(EventBase):
    """A worker reports the end of a rollout, whose log is complete."""

    rollout_id: RolloutId
    worker: str
    attempt: int
    result: RolloutResult


class BackendsChanged(EventBase):
    """Backends of a pool were cleared, removed, added or changed, in this order.

    Without any change it only makes the pool known.
    """

    pool: str
    #: Remove all; the weights version of the pool becomes the next one.
    clear: bool = False
    #: Names of backends that are removed.
    removed: tuple[str, ...] = ()
    #: Backends that are added, or replace those of their names: at the same address with number and health.
    put: tuple[LlmBackend, ...] = ()
    #: None: as it is.
    balance: Balance | None = None
    #: Forget the pool instead, if it has no backends, no rollout names it and no lease has a seat of it.
    forget: bool = False
    asked: RequestOrigin | None = None


class BackendJudged(EventBase):
    """A backend failed, or works again."""

    pool: str
    backend: str
    #: Why it takes no new seats; empty: it is healthy.
    unhealthy: str = ""


class RolloutsQueried(EventBase):
    """Query of live rollouts, workers and backends. Answered by the loop, never journalled.

    The answer is `contract.rollout_status.RolloutsStatus`.
    """

    request_id: str
    reply_to: str
    #: Empty: of all projects.
    project: str = ""
    #: One rollout; empty: all.
    rollout_id: str = ""
    task: str = ""
    group: str = ""
    #: Facade that they were submitted through; empty: all.
    door: str = ""
    #: The workers are part of the answer.
    workers: bool = False
    #: Pools whose backends are part of the answer; ``*``: of all pools.
    backends: tuple[str, ...] = ()
    limit: int = 100
    #: These rollouts alone; empty: all.
    rollout_ids: tuple[str, ...] = ()


RolloutEvent = (
    RolloutsSubmitted | RolloutCancelRequested | RolloutParkRequested | RolloutResumeRequested
    | RolloutWorkerJoined | RolloutWorkerLost | RolloutsProgressed | RolloutFinished
    | BackendsChanged | BackendJudged
)  # fmt: skip
