"""Facts about live actions and wait queues, without wording; amounts in units, memory in bytes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from domain.advice import ExtraUnitsEffect, UnblockHint
from domain.limits import QuotaUse
from scheduler.core.state.demand import QueueKey
from scheduler.core.state.live import LiveAction


class Shortage(NamedTuple):
    """Amounts of a resource of which too little is free for the head of a queue."""

    wanted: float | int
    free: float | int
    #: ``free`` is enough, but is reserved for actions before it.
    reserved: bool
    #: Node of the resource; None: a resource of the whole cluster.
    node: str | None = None
    #: What makes an API accept no calls now (an open circuit, a pause); empty: nothing.
    hindrance: str = ""
    #: Quotas with too little left, and the time until enough is left.
    quotas: tuple[QuotaUse, ...] = ()
    ready_in_seconds: float = 0.0


class ShareLimit(NamedTuple):
    """Usage of the share that an action would exceed."""

    project: str
    #: None: a share of a cluster-wide resource.
    pool: str | None
    used: float | int
    #: Amount that the project may still take.
    left: float | int
    nominal: float | int
    #: None: no limit.
    borrow: float | int | None
    #: Other projects have borrowed part of the share.
    lent: bool


class DeferralCause(NamedTuple):
    """What an action is deferred for."""

    #: The service whose own chunk it waits for; empty: a policy evicted it.
    service: str
    #: Time until the policy decides again; None: not set.
    seconds: float | None


#: Which bound an action exceeds: of a cluster-wide limit, of its node, of every node of its pool.
Bound = Literal["limit", "node", "pool"]


class WorkerQueue(NamedTuple):
    """What is before a generation at its worker."""

    fleet: str
    #: Name of the worker, and its slots.
    worker: str
    slots: int
    #: Generations before it, and those of them that are there since their trajectories are longer.
    ahead: int
    longer: int


class WaitFacts(NamedTuple):
    """Why an action waits (I14); `contract.responses.WaitDetails` lists the codes."""

    code: str
    resource: str | None = None
    #: Actions that are served before this one.
    position: int | None = None
    blocked_by: str | None = None
    #: The node, pool, task or service that accepts no actions now.
    subject: str | None = None
    #: ``returned``: the lost node is back, and still ends what it ran before. ``room``: the move is for an action that waited.
    cause: (
        Shortage
        | ShareLimit
        | DeferralCause
        | WorkerQueue
        | Bound
        | Literal["returned", "room"]
        | None
    ) = None


class Forecast(NamedTuple):
    """Predicted start of a waiting action."""

    #: Seconds from now; None when it cannot be predicted.
    starts_in_seconds: float | None
    #: Units that it is admitted with, per resource as the trainer wrote it. A policy may grant more
    #: of the key resource.
    units: dict[str, float | int]


class ActionStatus(NamedTuple):
    """A live action and, while it is queued, why it waits."""

    live: LiveAction
    waiting: WaitFacts | None = None
    forecast: Forecast | None = None
    extra_units: ExtraUnitsEffect | None = None
    hint: UnblockHint | None = None

    @property
    def starts_in_seconds(self) -> float | None:
        """Return the predicted start; a quota delays it, since finished calls do not refill it."""
        seconds = None if self.forecast is None else self.forecast.starts_in_seconds
        if self.hint is not None and self.hint.kind == "quota":
            seconds = max(seconds or 0.0, self.hint.enough_in_seconds or 0.0)
        return seconds


class QueueStatus(NamedTuple):
    """One wait queue and the status of its head."""

    key: QueueKey
    waiting: int
    head: ActionStatus
    waited_seconds: float


class QueuesStatus(NamedTuple):
    """The longest wait queues first; ``queues`` and ``waiting`` count all of them."""

    items: list[QueueStatus]
    queues: int
    waiting: int
