"""Reasons why actions wait (I14). Computed on request, never stored."""

from __future__ import annotations

from domain.action import ActionState
from domain.ids import ActionId, ResourceId
from domain.resources import units
from scheduler.core.advice.counterfactual import extra_units_effect
from scheduler.core.advice.facts import (
    ActionStatus,
    Bound,
    DeferralCause,
    ShareLimit,
    Shortage,
    WaitFacts,
)
from scheduler.core.advice.forecast import forecast, takes_of
from scheduler.core.advice.unblock_hints import unblock_hint
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
        back = reason.code == "node_lost" and state.fleet.nodes[subject or ""].lost_at is None
        return WaitFacts(reason.code, subject=subject, cause="returned" if back else None)
    resource = ResourceId(subject)
    head = queue.head()
    if head is not None and head.id != live.id:
        reason = WaitReason("behind", resource, head.id)
    cause: Shortage | DeferralCause | None = None
    if reason.code == "deferred":
        cause = _deferral(state, resource, live.needs.resident)
    elif reason.code == "short_of":
        cause = _shortage(state, queue, resource)
    position = _position(state, live, resource)
    return WaitFacts(reason.code, resource, position, reason.blocked_by, cause=cause)


def _behind_its_trajectory(live: LiveAction, trajectory: LiveTrajectory) -> WaitFacts:
    line = [i for i in trajectory.line if i in trajectory.live]
    if trajectory.busy is not None:
        line.insert(0, trajectory.busy)
    return WaitFacts("trajectory_busy", position=line.index(live.id), blocked_by=line[0])


def _shortage(state: State, queue: WaitQueue, resource: ResourceId) -> Shortage:
    """Return how much of ``resource`` the head of ``queue`` is short of."""
    node = queue.sticky_node or queue.key.node
    needs = queue.in_cluster + (queue.on_node(node) if node else [])
    wanted = next(amount for name, amount in needs if name == resource)
    ledger, paced = state.fleet.ledgers[resource], state.fleet.paced.get(resource)
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
