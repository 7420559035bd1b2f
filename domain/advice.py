"""Facts about waiting actions, shared pools and policy decisions, in the units that people use.

The core computes them on request and never stores them; `contract.responses` embeds them.
"""

from __future__ import annotations

import msgspec


class ShareUsage(msgspec.Struct, frozen=True):
    """Usage of one shared resource by one project, in units."""

    #: None: a resource of the whole cluster.
    pool: str | None
    #: A kind of the pool's nodes (``cpu``), or the resource.
    resource: str
    project: str
    nominal: float | int
    #: Limits on what it borrows and lends; None: no limit.
    borrow: float | int | None
    lend: float | int | None
    used: float | int
    #: Part of ``used`` beyond the nominal share.
    borrowed: float | int
    #: Units that it may still take; negative after a cut.
    left: float | int
    #: Queued actions that need the resource, whatever else they wait for.
    waiting: int


class StartRange(msgspec.Struct, frozen=True):
    """When a waiting action may start, in seconds from now, and how often such ranges have held."""

    earliest_seconds: float
    latest_seconds: float
    #: Share of the ranges that is meant to hold.
    meant: float
    #: Share of the latest ranges about such waits that did hold, and their number.
    held: float
    ranges: int


class ExtraUnitsEffect(msgspec.Struct):
    """Predicted effect of more units of the binding resource on a waiting action."""

    #: Units added: one, or the chunk of GPUs that it needs.
    units: float | int
    #: How much earlier it would start; 0: no effect.
    sooner_seconds: float
    #: Predicted start and end with that much more, in seconds from now.
    starts_in_seconds: float
    ends_in_seconds: float
    #: Units missing for it, and all actions before it, to start now.
    missing: float | int


class IdleEnvironment(msgspec.Struct):
    """An environment without live actions that holds memory."""

    project: str
    trajectory: str
    memory_bytes: int
    #: Remaining time to live.
    expires_in_seconds: float


class UnmetSize(msgspec.Struct):
    """A request that exceeds the largest node or limit."""

    #: ``memory`` and ``gpu_memory`` (of each GPU) are in bytes, everything else in units.
    resource: str
    asked: float | int
    largest: float | int


class UnblockHint(msgspec.Struct, omit_defaults=True):
    """What unblocks an action that waits for a quota, for memory, or for a larger node or limit."""

    #: ``quota`` · ``memory`` · ``size``
    kind: str
    #: Amounts that it needs, that are left, and that are missing for it and all actions before it to
    #: start now; in units, memory in bytes.
    needed: float | int = 0
    left: float | int = 0
    missing: float | int = 0
    #: Time until part of the quota is free again.
    eases_in_seconds: float | None = None
    #: Time until there is enough for it and, as far as predictable, for the actions before it; of
    #: memory an upper bound, by times to live.
    enough_in_seconds: float | None = None
    #: The largest idle environments, and the memory that all idle ones hold.
    idle: list[IdleEnvironment] = []
    idle_bytes: int = 0
    sizes: list[UnmetSize] = []


class EvictionTrial(msgspec.Struct):
    """One number of evictions that a policy evaluated."""

    evicted: int
    #: Predicted sum of finish times of the group; None: pruned by a bound.
    objective_seconds: float | None
    #: The same per action: its mean ACT from now on.
    mean_seconds: float | None


class PolicyDecision(msgspec.Struct):
    """Decision of a policy about the candidates of one resource."""

    #: Journal time.
    at_seconds: float
    resource: str
    policy: str
    #: In service order.
    candidates: list[str]
    #: Units of the resource that were granted.
    units: dict[str, float | int]
    #: Candidates that keep waiting.
    evicted: list[str]
    #: Further waiting actions of the group.
    waiting_behind: int
    objective_seconds: float | None
    #: Evictions in the order in which they were tried; the first one evicts no candidate.
    trials: list[EvictionTrial]
    #: Each candidate got its smallest count without a comparison: none declares both elasticity and a duration, or shares leave one count.
    no_choice: bool = False
