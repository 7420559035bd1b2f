"""Leases: a trainer holds units for as long as it renews them in time."""

from __future__ import annotations

from domain.action import ActionState, Kind, Outcome
from domain.decisions import Decision, Renew
from domain.events import LeaseReleased, LeaseRenewed, LeasesRenewed
from domain.ids import ActionId
from scheduler.core.handlers.api_feedback import apply_lease_feedback
from scheduler.core.state.completion import finish
from scheduler.core.state.lifecycle import extend_lease, hold
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def _lease(state: State, action_id: ActionId, project: str) -> LiveAction | None:
    """Return the live lease ``action_id`` of ``project``, if there is one."""
    live = state.actions.get(action_id)
    if live is None or live.action.kind is not Kind.LEASE or live.action.project != project:
        return None
    return live


def renewed(state: State, event: LeaseRenewed, decisions: list[Decision]) -> None:
    """Extend a running lease; a lease that waits or has ended is left unchanged."""
    live = _lease(state, event.action_id, event.project)
    if live is not None and live.state is ActionState.RUNNING:
        decisions.append(Renew(live.id, extend_lease(state, live, event.ttl_seconds)))


def renewed_together(state: State, event: LeasesRenewed, decisions: list[Decision]) -> None:
    """Extend each of these leases that is running, and let each of these generations be held for longer."""
    for action_id in event.action_ids:
        live = state.actions.get(action_id)
        if live is None:
            continue
        if live.action.generation is not None:
            if live.state is not ActionState.QUEUED:
                hold(state, live)
        elif live.action.kind is Kind.LEASE and live.state is ActionState.RUNNING:
            decisions.append(Renew(live.id, extend_lease(state, live, None)))


def released(state: State, event: LeaseReleased, decisions: list[Decision]) -> None:
    """End a running lease; a lease that still waits is cancelled."""
    live = _lease(state, event.action_id, event.project)
    if live is None:
        return
    if live.state is ActionState.RUNNING:
        if event.feedback is not None:
            apply_lease_feedback(state, live, event.feedback)
        finish(state, live, Outcome.COMPLETED, decisions)
    else:
        finish(state, live, Outcome.CANCELLED, decisions, detail="released before it was granted")


def expire(state: State, live: LiveAction, decisions: list[Decision]) -> None:
    """End a lease whose holder did not renew in time."""
    finish(state, live, Outcome.TIMEOUT, decisions, detail="the lease was not renewed in time")
