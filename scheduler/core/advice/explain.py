"""Where an action stands, and why it waits (I14). Computed when asked, never stored."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from contract.responses import WaitDetails
from domain.action import ActionState
from domain.advice import ExtraUnitsEffect, UnblockHint
from domain.ids import ActionId, ResourceId
from domain.limits import Quota, QuotaUse
from domain.resources import units
from scheduler.core.advice.counterfactual import one_more
from scheduler.core.advice.forecast import Forecast, forecast, takes_of
from scheduler.core.advice.unblock_hints import relief
from scheduler.core.sharing.shares import ShareBook, key_of, takes_of_share
from scheduler.core.state.model import LiveAction, LiveTrajectory, State
from scheduler.core.state.queues import WaitQueue, WaitReason


class Standing(NamedTuple):
    """A live action and, while it is queued, what it waits for."""

    live: LiveAction
    waiting: WaitDetails | None
    forecast: Forecast | None = None
    one_more: ExtraUnitsEffect | None = None
    relief: UnblockHint | None = None

    def why(self) -> WaitDetails | None:
        """Return why it waits, with what it may expect; None when it does not wait."""
        if self.waiting is None or self.forecast is None:
            return self.waiting
        seconds = self.forecast.starts_in_seconds
        if self.relief is not None and self.relief.kind == "quota":
            # Calls that end do not bring a quota back.
            seconds = max(seconds or 0.0, self.relief.enough_in_seconds or 0.0)
        rounded = None if seconds is None else round(seconds, 3)
        return replace(
            self.waiting,
            starts_in_seconds=rounded,
            units=self.forecast.units,
            one_more=self.one_more,
            relief=self.relief,
        )


def explain(state: State, action_id: ActionId) -> Standing | None:
    """Return the standing of a live action."""
    live = state.actions.get(action_id)
    if live is None:
        return None
    if live.state is not ActionState.QUEUED:
        return Standing(live, None)
    why = waiting(state, live)
    expected = forecast(state, live, why.resource)
    more = one_more(state, live, why, expected.starts_in_seconds)
    return Standing(live, why, expected, more, relief(state, live, why))


def waiting(state: State, live: LiveAction) -> WaitDetails:
    """Say why a queued action waits."""
    leader = state.merging.behind.get(live.id)
    if leader is not None:
        said = f"{leader} makes the same call, and will have the answer for both"
        return WaitDetails("merged", said, blocked_by=leader)
    if live.queue is None:
        trajectory = state.trajectory_of(live)
        assert trajectory is not None  # only who takes turns is queued outside a line
        return _behind_its_trajectory(live, trajectory)
    queue = state.queues[live.queue]
    reason = queue.reason
    if reason is None:
        return WaitDetails("arriving", "it has just arrived and is looked at in the next cycle")
    if reason.code == "share" and reason.subject is not None:
        sentence = _what_the_share_leaves(state, live, reason.subject)
        position = _ahead_in_project(state, live, reason.subject)
        return WaitDetails("share", sentence, reason.subject, position, reason.blocked_by)
    if reason.code not in {"short_of", "behind", "deferred"} or reason.subject is None:
        return WaitDetails(reason.code, _what_is_shut(state, queue, reason), subject=reason.subject)
    resource = ResourceId(reason.subject)
    head = queue.head()
    if head is not None and head.id != live.id:
        reason = WaitReason("behind", resource, head.id)
    if reason.code == "deferred":
        sentence = _why_deferred(state, resource, live.needs.service)
    elif reason.code == "short_of":
        sentence = _what_is_short(state, queue, resource)
    else:
        sentence = f"{reason.blocked_by} came before it and waits for {resource}"
    position = _ahead(state, live, resource)
    return WaitDetails(reason.code, sentence, resource, position, reason.blocked_by)


def _behind_its_trajectory(live: LiveAction, trajectory: LiveTrajectory) -> WaitDetails:
    line = [i for i in trajectory.line if i in trajectory.live]
    if trajectory.busy is not None:
        line.insert(0, trajectory.busy)
    return WaitDetails(
        "trajectory_busy",
        f"an environment runs one action at a time, and {line[0]} is before it",
        position=line.index(live.id),
        blocked_by=line[0],
    )


def _what_is_short(state: State, queue: WaitQueue, resource: ResourceId) -> str:
    """Word what the head of ``queue`` is short of."""
    node = queue.sticky_node or queue.key.node
    needs = queue.in_cluster + (queue.on_node(node) if node else [])
    wanted = next(amount for name, amount in needs if name == resource)
    place = f" on node {node}" if node and resource.endswith(f":{node}") else ""
    ledger = state.ledgers[resource]
    if (paced := state.paced.get(resource)) is not None:
        if hindrance := paced.hindrance(state.now):
            return f"waits for {units(wanted)} of {resource}: {hindrance}"
        ready_at = paced.ready_at(wanted)
        if ready_at is not None:
            short = [use for use in paced.uses(state.now) if use.left < wanted]
            return _what_is_used_up(short, resource, wanted, max(0.0, ready_at - state.now))
    kept = ", kept for actions before it" if ledger.fits((wanted,)) else ""
    if resource.startswith("memory:"):
        return f"waits for {_gib(wanted)} of {resource}, {_gib(ledger.free)} free{kept}{place}"
    return f"waits for {units(wanted)} of {resource}, {units(ledger.free)} free{kept}{place}"


def _gib(amount_bytes: int) -> str:
    return f"{amount_bytes / 2**30:.3g} GiB"


def _what_is_used_up(
    short: list[QuotaUse], resource: ResourceId, wanted: int, seconds: float
) -> str:
    """Word which quotas leave too little, and for how long."""
    which = ", ".join(
        f"{units(use.quota.amount)} per {_period(use.quota)} ({units(use.left)} left)"
        for use in short
    )
    return (
        f"waits for {units(wanted)} of {resource}: of {which}; enough is left in {spoken(seconds)}"
    )


def spoken(seconds: float) -> str:
    """Return a wait as one says it: ``9.5 s``, ``15 min``, ``24 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _what_the_share_leaves(state: State, live: LiveAction, name: str) -> str:
    """Word how much a project may still take of what it shares with others."""
    key, project = key_of(state, live.pool, name), live.action.project
    cohort, left = state.cohorts[key], ShareBook(state).left(key, project)
    share = cohort.share_of(project)
    borrow = "what others leave" if share.borrow is None else f"{units(share.borrow)}"
    where = f"{name} in pool {key.pool}" if key.pool else name
    lent = cohort.entitled(project) > max(0, left)
    rest = "; others have borrowed the rest, which comes back as their actions end" if lent else ""
    return (
        f"project {project} has {units(cohort.used.get(project, 0))} of {where} and"
        f" may take {units(left)} more: its share is {units(share.nominal)}, and it may"
        f" borrow {borrow}{rest}"
    )


def _period(quota: Quota) -> str:
    return f"{quota.window_seconds:g} s" if quota.window_seconds else f"day in {quota.zone}"


def _why_deferred(state: State, resource: ResourceId, service: str) -> str:
    """Word what a policy, or the service that is called, holds somebody back for."""
    deferral = state.deferrals.get(resource)
    if service and deferral is None:
        return (
            f"service {service!r} works for others on {resource}: its chunk there is free again "
            "sooner than the service is restored onto another one"
        )
    soon = "" if deferral is None else f", in about {max(0.0, deferral.until - state.now):.3g} s"
    return (
        f"held back: all are done sooner when those before it have more of {resource} "
        f"and it goes after the next one ends{soon}"
    )


def _what_is_shut(state: State, queue: WaitQueue, reason: WaitReason) -> str:
    """Word a reason that no action ending would cure."""
    subject = reason.subject or ""
    home = f"node {subject}, which holds its environment,"
    if reason.code == "too_large":
        if any(subject == name for name, _ in queue.key.needs.in_cluster):
            return f"asks for more of {subject} than its limit is now"
        if queue.key.node:
            return f"{home} is smaller than it needs now"
        return f"no node of pool {subject} that takes actions now is large enough"
    if reason.code == "node_lost" and state.nodes[subject].lost_at is None:
        return f"{home} is back and ends what it ran before"
    return {
        "task_paused": f"task {subject.partition('/')[2]} is paused",
        "service_quarantined": f"service {subject} is quarantined: nobody calls it until that is lifted",
        "kept_away": f"service {subject} failed on the chunks that are free, and waits for another one",
        "pool_paused": f"pool {subject} is paused",
        "no_node": f"no node has joined pool {subject} yet",
        "nodes_unusable": f"every node of pool {subject} is lost or drained",
        "node_lost": f"{home} is silent",
        "node_drained": f"{home} is drained",
    }[reason.code]


def _ahead(state: State, live: LiveAction, resource: ResourceId) -> int:
    """Count the actions that are served before ``live`` on ``resource``."""
    return sum(
        queue.ahead_of(live.order)
        for queue in state.queues.values()
        if takes_of(state, queue, resource)
    )


def _ahead_in_project(state: State, live: LiveAction, name: str) -> int:
    """Count the actions of the same project that are served before ``live`` from its share."""
    key, project = key_of(state, live.pool, name), live.action.project
    return sum(
        queue.ahead_of(live.order)
        for queue in state.queues.values()
        if queue.key.needs.project == project and takes_of_share(state, queue.key, key)
    )
