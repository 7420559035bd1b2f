"""Status of actions, wait queues and shares, with the reasons for waits (I14).

Computed on request, never stored.

Hints say what unblocks an action that does not wait for units:

- **Quotas** refill with time: how much is left, when the next part is free again, and when there is
  enough for the action and all actions before it.
- **Memory** is held by environments until their trainers finish them: how many bytes are missing,
  which environments are idle (their trajectories could be finished), and an upper bound on the
  wait, since an idle environment ends with its time to live.
- **Size**: what the action requests, and what the largest node or limit has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from heapq import nlargest
from itertools import islice
from math import inf
from typing import Literal, NamedTuple

from domain.action import ActionState
from domain.advice import IdleEnvironment, ShareUsage, UnblockHint, UnmetSize
from domain.ids import ActionId, ResourceId
from domain.resources import units
from scheduler.core.advice.facts import (
    ActionStatus,
    Bound,
    DeferralCause,
    QueuesStatus,
    QueueStatus,
    ShareLimit,
    Shortage,
    WaitFacts,
    WorkerQueue,
)
from scheduler.core.advice.forecast import (
    LONGEST,
    extra_units_effect,
    forecast,
    seconds_until_free,
    taken_before,
    takes_of,
    wanted_of,
)
from scheduler.core.advice.generations import at_worker, without_worker
from scheduler.core.residency.service_turns import KIND
from scheduler.core.sharing.cohorts import CohortKey
from scheduler.core.sharing.shares import ShareBook, cohort_key, takes_of_share
from scheduler.core.state.live import LiveAction, LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue, WaitReason

_WAITS_FOR_RESOURCE = frozenset({"short_of", "behind", "deferred"})


def explain(state: State, action_id: ActionId) -> ActionStatus | None:
    """Return the status of a live action; None for any other id."""
    live = state.actions.get(action_id)
    if live is None:
        return None
    if live.state is not ActionState.QUEUED:
        return ActionStatus(live)
    waiting = wait_facts(state, live)
    expected = forecast(state, live, waiting.resource)
    effect = extra_units_effect(state, live, waiting, expected.starts_in_seconds)
    return ActionStatus(live, waiting, expected, effect, unblock_hint(state, live, waiting))


def wait_facts(state: State, live: LiveAction) -> WaitFacts:
    """Return why a queued action waits."""
    leader = state.coalescing.behind.get(live.id)
    if leader is not None:
        return WaitFacts("merged", blocked_by=leader)
    if live.queue is None:
        if live.id in state.generations.unrouted:
            return without_worker(state, live)
        trajectory = state.trajectory_of(live)
        assert trajectory is not None  # only actions of trajectories are queued outside of queues
        return _behind_its_trajectory(live, trajectory)
    queue = state.queues.active[live.queue]
    reason = queue.reason
    if reason is None:
        return WaitFacts("arriving")
    subject = reason.subject
    if reason.code == "share" and subject is not None:
        position = _position_in_project(state, live, subject)
        limit = _share_limit(state, live, subject)
        return WaitFacts("share", subject, position, reason.blocked_by, cause=limit)
    if reason.code not in _WAITS_FOR_RESOURCE or subject is None:
        if reason.code == "too_large":
            return WaitFacts("too_large", subject=subject, cause=_bound(queue, subject or ""))
        back = reason.code == "node_lost" and state.supply.nodes[subject or ""].lost_at is None
        return WaitFacts(reason.code, subject=subject, cause="returned" if back else None)
    return _for_resource(state, live, queue, reason, ResourceId(subject))


def _for_resource(
    state: State, live: LiveAction, queue: WaitQueue, reason: WaitReason, resource: ResourceId
) -> WaitFacts:
    """Return the facts of an action whose queue waits for ``resource``."""
    head = queue.head()
    if head is not None and head.id != live.id:
        reason = WaitReason("behind", resource, head.id)
    cause: Shortage | DeferralCause | WorkerQueue | None = None
    if reason.code == "deferred":
        cause = _deferral(state, resource, live.needs.resident)
    elif reason.code == "short_of":
        cause = _shortage(state, queue, resource)
    if live.action.generation is not None:
        cause = at_worker(state, live, resource)
    position = _position(state, live, resource)
    return WaitFacts(reason.code, resource, position, reason.blocked_by, cause=cause)


def _behind_its_trajectory(live: LiveAction, trajectory: LiveTrajectory) -> WaitFacts:
    line = [i for i in trajectory.line if i in trajectory.live]
    if trajectory.busy is not None:
        line.insert(0, trajectory.busy)
    if trajectory.move is not None:
        move, position = trajectory.move, line.index(live.id)
        why: Literal["room"] | None = "room" if move.claims and move.target else None
        return WaitFacts("trajectory_moved", subject=move.target, position=position, cause=why)
    if trajectory.busy is None and trajectory.holds_back(line[0]):
        return WaitFacts("trajectory_forked", position=line.index(live.id))
    return WaitFacts("trajectory_busy", position=line.index(live.id), blocked_by=line[0])


def _shortage(state: State, queue: WaitQueue, resource: ResourceId) -> Shortage:
    """Return how much of ``resource`` the head of ``queue`` is short of."""
    node = queue.sticky_node or queue.key.node
    needs = queue.in_cluster + (queue.on_node(node) if node else [])
    wanted = next(amount for name, amount in needs if name == resource)
    ledger, paced = state.supply.ledgers[resource], state.supply.paced.get(resource)
    amount = int if resource.startswith("memory:") else units
    here = node if node and resource.endswith(f":{node}") else None
    found = Shortage(amount(wanted), amount(ledger.free), ledger.fits((wanted,)), here)
    if paced is None:
        return found
    if hindrance := paced.hindrance(state.now):
        return found._replace(hindrance=hindrance)
    if (ready_at := paced.ready_at(wanted)) is None:
        return found
    short = tuple(use for use in paced.uses(state.now) if use.left < wanted)
    return found._replace(quotas=short, ready_in_seconds=max(0.0, ready_at - state.now))


def _share_limit(state: State, live: LiveAction, name: str) -> ShareLimit:
    """Return how much of ``name`` the project of ``live`` may still take."""
    key, project = cohort_key(state, live.pool, name), live.action.project
    cohort, left = state.sharing.cohorts[key], ShareBook(state).left(key, project)
    share = cohort.share_of(project)
    return ShareLimit(
        project=project,
        pool=key.pool or None,
        used=units(cohort.used.get(project, 0)),
        left=units(left),
        nominal=units(share.nominal),
        borrow=None if share.borrow is None else units(share.borrow),
        lent=cohort.entitled(project) > max(0, left),
    )


def _deferral(state: State, resource: ResourceId, service: str) -> DeferralCause:
    deferral = state.queues.deferrals.get(resource)
    if deferral is None:
        return DeferralCause(service, None)
    return DeferralCause("", max(0.0, deferral.until - state.now))


def _bound(queue: WaitQueue, subject: str) -> Bound:
    """Return which bound the head of ``queue`` exceeds."""
    if any(subject == name for name, _ in queue.key.needs.in_cluster):
        return "limit"
    return "node" if queue.key.node else "pool"


def _position(state: State, live: LiveAction, resource: ResourceId) -> int:
    """Count the actions that are served before ``live`` on ``resource``."""
    return sum(
        queue.ahead_of(live.order)
        for queue in state.queues.active.values()
        if takes_of(state, queue, resource)
    )


def _position_in_project(state: State, live: LiveAction, name: str) -> int:
    """Count the actions of the same project that are served before ``live`` from its share."""
    key, project = cohort_key(state, live.pool, name), live.action.project
    return sum(
        queue.ahead_of(live.order)
        for queue in state.queues.active.values()
        if queue.key.needs.project == project and takes_of_share(state, queue.key, key)
    )


class _Selection(NamedTuple):
    """The actions of a queue that belong to the requested projects."""

    queue: WaitQueue
    waiting: int
    head: LiveAction | None


def queues_status(
    state: State, limit: int, projects: Collection[str] | None, now: float
) -> QueuesStatus:
    """Return the ``limit`` longest queues; with ``projects`` their actions in each queue alone.

    ``now``: journal time, for how long heads have waited. The latest event may be long ago.

    Actions that wait for their own trajectory are in no queue. A selection by project scans every
    waiting action, a fraction of a microsecond each.
    """
    selected = [_Selection(each, each.size, each.head()) for each in state.queues.active.values()]
    if projects is not None:
        selected = [_of_projects(each.queue, projects) for each in selected]
    selected = [each for each in selected if each.waiting]
    longest = nlargest(limit, selected, key=lambda each: each.waiting)
    items = [item for each in longest if (item := _queue_status(state, each, now)) is not None]
    return QueuesStatus(items, len(selected), sum(each.waiting for each in selected))


def _of_projects(queue: WaitQueue, projects: Collection[str]) -> _Selection:
    members = [live for live in queue.in_order() if live.action.project in projects]
    return _Selection(queue, len(members), members[0] if members else None)


def _queue_status(state: State, selection: _Selection, now: float) -> QueueStatus | None:
    queue, waiting, head = selection
    status = None if head is None else explain(state, head.id)
    if head is None or status is None or status.waiting is None:
        return None
    return QueueStatus(queue.key, waiting, status, max(0.0, now - head.submitted_at))


def share_usage(state: State) -> list[ShareUsage]:
    """Return the usage of every project that has, uses or waits for a share, by name."""
    book = ShareBook(state)
    return [
        _usage(state, book, key, project, waiting[project])
        for key, cohort in sorted(state.sharing.cohorts.items(), key=lambda item: item[0])
        for waiting in [_waiting_by_project(state, key)]
        for project in sorted({*cohort.shares, *cohort.used, *waiting})
    ]


def _waiting_by_project(state: State, key: CohortKey) -> Counter[str]:
    """Count the queued actions that need the shared resource ``key``, by project."""
    waiting: Counter[str] = Counter()
    for queue_key, queue in state.queues.active.items():
        project = queue_key.needs.project
        if project and queue.size and takes_of_share(state, queue_key, key):
            waiting[project] += queue.size
    return waiting


def _usage(state: State, book: ShareBook, key: CohortKey, project: str, waiting: int) -> ShareUsage:
    cohort = state.sharing.cohorts[key]
    share, used = cohort.share_of(project), cohort.used.get(project, 0)
    return ShareUsage(
        pool=key.pool or None,
        resource=key.name,
        project=project,
        nominal=units(share.nominal),
        borrow=None if share.borrow is None else units(share.borrow),
        lend=None if share.lend is None else units(share.lend),
        used=units(used),
        borrowed=units(max(0, used - share.nominal)),
        left=units(book.left(key, project)),
        waiting=waiting,
    )


#: Idle environments that a hint lists, the largest ones.
MOST_IDLE = 5
_SHORT = frozenset({"short_of", "behind"})


def unblock_hint(state: State, live: LiveAction, why: WaitFacts) -> UnblockHint | None:
    """Return what unblocks ``live``, which waits for ``why``; None for all other reasons."""
    if why.code == "too_large" and live.queue is not None:
        return _of_size(state, live)
    resource = ResourceId(why.resource or "")
    if why.code not in _SHORT or resource not in state.supply.ledgers or live.queue is None:
        return None
    wanted = wanted_of(state, state.queues.active[live.queue], resource)
    ahead = taken_before(state, live, resource)
    if not wanted or ahead is None:
        return None
    before = sum(amount for _, amount in ahead)
    if resource in state.supply.paced:
        return _of_quota(state, resource, wanted, before)
    if resource.startswith("memory:"):
        return _of_memory(state, resource, wanted, [amount for _, amount in ahead])
    return None


def _of_quota(state: State, resource: ResourceId, wanted: int, before: int) -> UnblockHint | None:
    paced = state.supply.paced[resource]
    uses = paced.uses(state.now)
    short = min(uses, key=lambda use: use.left, default=None)
    ready_at = paced.ready_at(wanted)
    if short is None or (ready_at is None and short.left >= wanted):
        return None  # it waits for running calls, not for time
    for_all = paced.ready_at(before + wanted) if before else ready_at
    latest = for_all if for_all is not None else ready_at
    return UnblockHint(
        kind="quota",
        needed=units(wanted),
        left=units(short.left),
        missing=units(max(0, wanted + before - short.left)),
        eases_in_seconds=_from_now(state, short.eases_at),
        enough_in_seconds=_from_now(state, latest),
    )


def _of_memory(
    state: State, resource: ResourceId, wanted: int, before: Iterable[int]
) -> UnblockHint | None:
    node, free = resource.partition(":")[2], state.supply.ledgers[resource].free
    residents = state.environments.on(node)
    if len(residents) > LONGEST:
        residents = []
    ends = [(_from_now(state, one.expires_at) or 0.0, one.memory_bytes) for one in residents]
    idle = [one for one in residents if not one.live and one.memory_bytes]
    idle.sort(key=lambda one: -one.memory_bytes)
    ahead = list(before)
    # Environments before it hold their memory for an unpredictable time.
    latest = seconds_until_free(free, ends, [(inf, amount) for amount in ahead], wanted)
    return UnblockHint(
        kind="memory",
        needed=wanted,
        left=free,
        missing=max(0, wanted + sum(ahead) - free),
        enough_in_seconds=None if latest in (None, inf) else latest,
        idle=[_idle(state, one) for one in islice(idle, MOST_IDLE)],
        idle_bytes=sum(one.memory_bytes for one in idle),
    )


def _idle(state: State, trajectory: LiveTrajectory) -> IdleEnvironment:
    expires = _from_now(state, trajectory.expires_at) or 0.0
    return IdleEnvironment(trajectory.project, trajectory.name, trajectory.memory_bytes, expires)


def _of_size(state: State, live: LiveAction) -> UnblockHint | None:
    """Return what exceeds the cluster's limits, its node, or every node of its pool."""
    assert live.queue is not None
    key = live.queue
    nodes = [state.supply.nodes[key.node]] if key.node else state.supply.nodes_of(key.pool)
    takes = state.supply.usable if key.node is None else state.supply.continues
    names = [node.name for node in nodes if takes(node)]
    asked = [(name, amount, [name]) for name, amount in key.needs.in_cluster]
    on_node = dict(key.needs.on_node)
    if key.memory_bytes:
        on_node["memory"] = key.memory_bytes
    asked += [
        (kind, amount, [f"{kind}:{name}" for name in names]) for kind, amount in on_node.items()
    ]
    sizes = []
    for name, amount, places in asked:
        ledgers = [
            state.supply.ledgers[ResourceId(p)]
            for p in places
            if ResourceId(p) in state.supply.ledgers
        ]
        largest = max((ledger.capacity for ledger in ledgers), default=0)
        if largest < amount:
            convert = int if name == "memory" else units
            sizes.append(UnmetSize(name, convert(amount), convert(largest)))
    if (memory := key.needs.unit_memory_bytes) and names:
        gpus = [node.inventory.resources.get(KIND) for node in nodes if node.name in names]
        largest = max((gpu.memory_bytes for gpu in gpus if gpu is not None), default=0)
        if largest < memory:
            sizes.append(UnmetSize("gpu_memory", memory, largest))
    return UnblockHint(kind="size", sizes=sizes) if sizes else None


def _from_now(state: State, at: float | None) -> float | None:
    return None if at is None else round(max(0.0, at - state.now), 3)
