"""Rendering of the core's facts as response bodies, with the sentences that explain a wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import asdict

from contract.responses import (
    DecisionDetails,
    DecisionsResponse,
    QueueDetails,
    QueuesResponse,
    WaitDetails,
    rfc3339,
)
from domain.advice import PolicyDecision, StartRange
from domain.confinement import SANDBOX_CURE
from domain.limits import Quota
from domain.resources import units
from scheduler.core.advice.facts import (
    ActionStatus,
    DeferralCause,
    QueuesStatus,
    QueueStatus,
    ShareLimit,
    Shortage,
    WaitFacts,
    WorkerQueue,
)

#: Returns when a waiting action may start; None: unknown.
RangeOf = Callable[[ActionStatus], StartRange | None]


def unknown_start(_: ActionStatus) -> None:
    """No predictions were compared with starts."""


def wait_details(status: ActionStatus, range_of: RangeOf = unknown_start) -> WaitDetails | None:
    """Return why an action waits, with its forecast; None for an action that does not wait."""
    facts, seconds = status.waiting, status.starts_in_seconds
    if facts is None:
        return None
    return WaitDetails(
        facts.code,
        reason_of(facts),
        facts.resource,
        facts.position,
        facts.blocked_by,
        starts_in_seconds=None if seconds is None else round(seconds, 3),
        units={} if status.forecast is None else status.forecast.units,
        one_more=status.extra_units,
        relief=status.hint,
        subject=facts.subject,
        start_range=range_of(status),
    )


def queues_response(queues: QueuesStatus, range_of: RangeOf = unknown_start) -> QueuesResponse:
    """Return the wait queues, the longest first."""
    items = [_queue(item, range_of) for item in queues.items]
    return QueuesResponse(items, queues.queues, queues.waiting)


def decisions_response(
    decisions: Sequence[PolicyDecision], wall_offset: float
) -> DecisionsResponse:
    """Return decisions of policies; ``wall_offset`` turns journal time into wall clock."""
    return DecisionsResponse(
        [
            DecisionDetails(**asdict(decision), at=rfc3339(decision.at_seconds + wall_offset))
            for decision in decisions
        ]
    )


def _queue(status: QueueStatus, range_of: RangeOf) -> QueueDetails:
    key, action, why = status.key, status.head.live.action, wait_details(status.head, range_of)
    assert why is not None  # heads of queues wait
    needs = (*key.needs.on_node, *key.needs.in_cluster)
    return QueueDetails(
        pool=key.pool,
        node=key.node,
        needs={name: units(amount) for name, amount in needs if name != "memory"},
        memory_bytes=key.memory_bytes,
        waiting=status.waiting,
        head=action.id,
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        waited_seconds=status.waited_seconds,
        why=why,
    )


def reason_of(facts: WaitFacts) -> str:
    """Return the reason for a wait as one sentence."""
    subject, cause = facts.subject or "", facts.cause
    if isinstance(cause, Shortage):
        return _shortage(facts.resource or "", cause)
    if isinstance(cause, ShareLimit):
        return _share_limit(facts.resource or "", cause)
    if isinstance(cause, DeferralCause):
        return _deferral(facts.resource or "", cause)
    if isinstance(cause, WorkerQueue):
        return _worker_queue(cause)
    node = f"node {subject}, which holds its environment,"
    bounds = {
        "limit": f"asks for more of {subject} than its limit is now",
        "node": f"{node} is smaller than it needs now",
        "pool": f"no node of pool {subject} that takes actions now is large enough",
        "returned": f"{node} is back and ends what it ran before",
        "room": f"the environment of its trajectory is being moved to node {subject}, which has room for it",
    }
    if cause is not None:
        return bounds[cause]
    return {
        "merged": f"{facts.blocked_by} makes the same call, and its response answers both",
        "arriving": "it has just arrived; the next scheduling cycle considers it",
        "trajectory_busy": "an environment runs one action at a time, "
        f"and {facts.blocked_by} is before it",
        "trajectory_forked": "the environment of its trajectory is being forked",
        "trajectory_moved": "the environment of its trajectory is being moved to"
        f" {f'node {subject}' if subject else 'another node'}, since its node is drained",
        "behind": f"{facts.blocked_by} came before it and waits for {facts.resource}",
        "task_paused": f"task {subject.partition('/')[2]} is paused",
        "service_quarantined": f"service {subject} is quarantined: "
        "it takes no calls until the quarantine is lifted",
        "kept_away": f"service {subject} failed on the chunks that are free, "
        "and waits for another one",
        "pool_paused": f"pool {subject} is paused",
        "no_backend": f"no backend of {subject} is usable now: add one, or end its drain",
        "no_worker": f"no worker of fleet {subject} gets generations now: add one, end its drain, or see why"
        " it is unhealthy",
        "batch_gathers": "the other trajectories of its batch are waited for, half a second at most",
        "cache_moves": "the cache of its trajectory is being moved to another worker",
        "no_node": f"no node has joined pool {subject} yet",
        "nodes_unusable": f"every node of pool {subject} is lost or drained, or refuses work",
        "pool_unconfined": f"pool {subject} requires a sandbox, and no node that takes actions now has"
        f" one: {SANDBOX_CURE}; or set sandbox: off for the pool",
        "node_unconfined": f"{node} has no sandbox, which its pool requires: {SANDBOX_CURE}; or set"
        " sandbox: off for the pool",
        "node_lost": f"{node} is silent",
        "node_drained": f"{node} is drained",
        "node_refuses": f"{node} refuses new work: it has too little disk space",
    }[facts.code]


def _shortage(resource: str, short: Shortage) -> str:
    if short.hindrance:
        return f"waits for {short.wanted} of {resource}: {short.hindrance}"
    if short.quotas:
        which = ", ".join(
            f"{units(use.quota.amount)} per {_period(use.quota)} ({units(use.left)} left)"
            for use in short.quotas
        )
        ready = duration_text(short.ready_in_seconds)
        return f"waits for {short.wanted} of {resource}: of {which}; enough is left in {ready}"
    kept = ", kept for actions before it" if short.reserved else ""
    place = f" on node {short.node}" if short.node else ""
    text = _gib if resource.startswith("memory:") else str
    return f"waits for {text(short.wanted)} of {resource}, {text(short.free)} free{kept}{place}"


def _share_limit(name: str, limit: ShareLimit) -> str:
    where = f"{name} in pool {limit.pool}" if limit.pool else name
    borrow = "what others leave" if limit.borrow is None else f"{limit.borrow}"
    rest = "; others have borrowed the rest, which comes back as their actions end"
    return (
        f"project {limit.project} has {limit.used} of {where} and may take {limit.left} more: "
        f"its share is {limit.nominal}, and it may borrow {borrow}{rest if limit.lent else ''}"
    )


def _deferral(resource: str, cause: DeferralCause) -> str:
    if cause.service:
        return (
            f"service {cause.service!r} works for others on {resource}: its chunk there is free "
            "again sooner than the service is restored onto another one"
        )
    soon = "" if cause.seconds is None else f", in about {cause.seconds:.3g} s"
    return (
        f"held back: all are done sooner when those before it have more of {resource} "
        f"and it goes after the next one ends{soon}"
    )


def _worker_queue(queue: WorkerQueue) -> str:
    text = (
        f"waits for one of the {queue.slots} slots of worker {queue.worker} of fleet {queue.fleet}"
    )
    if queue.ahead:
        text += f", behind {queue.ahead}"
    if queue.longer:
        text += f", {queue.longer} of longer trajectories"
    return text


def duration_text(seconds: float) -> str:
    """Return a duration in its natural unit: ``9.5 s``, ``15 min``, ``24 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _gib(amount_bytes: float) -> str:
    return f"{amount_bytes / 2**30:.3g} GiB"


def _period(quota: Quota) -> str:
    return f"{quota.window_seconds:g} s" if quota.window_seconds else f"day in {quota.zone}"
