"""Deadlines: timers of the core that are due.

An entry of `Timers` may be stale: the lease was renewed, the action granted, the node returned. A stale
entry is dropped, and never causes a `Wake`.
"""

from __future__ import annotations

from typing import Final

from domain.action import ActionState, Outcome
from domain.decisions import Decision
from domain.ids import ActionId, ResourceId, TrajectoryKey
from scheduler.core.handlers.generations import abandon
from scheduler.core.handlers.leases import expire
from scheduler.core.handlers.nodes import dead, grace_over
from scheduler.core.handlers.trajectories import end_of_life
from scheduler.core.state.completion import finish
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State
from scheduler.core.state.moves import give_up, look_due
from scheduler.core.state.rebalancing import WAITING_QUEUES
from scheduler.core.state.timers import Timer, TimerKind

#: Kinds whose subject knows when it is examined.
_SET_AGAIN: Final = frozenset(
    {TimerKind.RESIZE, TimerKind.PACE, TimerKind.FLEET, TimerKind.MOVE, TimerKind.MOVES}
)


def is_valid(state: State, timer: Timer) -> bool:
    """Return whether ``timer`` is not stale."""
    at, kind, subject = timer
    if kind is TimerKind.TOMBSTONE:
        tombstone = state.tombstones.get(subject)
        return tombstone is not None and tombstone.until <= at
    if kind is TimerKind.DEFERRAL:
        deferral = state.queues.deferrals.get(ResourceId(subject))
        return deferral is not None and deferral.until <= at
    if kind in _SET_AGAIN:
        due = _due(state, kind, subject)
        return due is not None and due <= at
    if kind in {TimerKind.NODE_GRACE, TimerKind.NODE_DEAD}:
        return _still_silent(state, timer)
    if kind is TimerKind.TRAJECTORY:
        trajectory = state.trajectories.get(TrajectoryKey(subject))
        if trajectory is None or trajectory.closing is not None:
            return False
        return trajectory.expires_at <= at
    live = state.actions.get(ActionId(subject))
    if live is None:
        return False
    if kind is TimerKind.LEASE:
        return live.lease_expires_at is not None and live.lease_expires_at <= at
    return live.state is ActionState.QUEUED and live.attempt == 0


def _due(state: State, kind: TimerKind, subject: str) -> float | None:
    """Return when a resource, a fleet or a move is examined again; None: nothing waits for that."""
    if kind is TimerKind.MOVES:
        return state.rebalancing.due if subject == WAITING_QUEUES else state.moves.due
    if kind is TimerKind.MOVE:
        trajectory = state.trajectories.get(TrajectoryKey(subject))
        return trajectory.move.until if trajectory is not None and trajectory.move else None
    if kind is TimerKind.RESIZE:
        return state.resizing.due.get(ResourceId(subject))
    if kind is TimerKind.PACE:
        return state.timers.pacing.get(ResourceId(subject))
    fleet = state.generations.fleets.get(subject)
    return None if fleet is None else fleet.placement.due()


def _still_silent(state: State, timer: Timer) -> bool:
    at, kind, subject = timer
    node, config = state.supply.nodes.get(subject), state.config
    if node is None or node.lost_at is None:
        return False
    limit = config.grace_of if kind is TimerKind.NODE_GRACE else config.death_of
    return node.lost_at + limit(node.inventory.pool) <= at


def fire(state: State, timer: Timer, decisions: list[Decision]) -> None:
    """Act on ``timer``, which is due."""
    if not is_valid(state, timer):
        return
    _, kind, subject = timer
    if kind in _SET_AGAIN or kind is TimerKind.DEFERRAL:
        _look_again(state, kind, subject, decisions)
    elif kind is TimerKind.TOMBSTONE:
        del state.tombstones[subject]
    elif kind is TimerKind.NODE_GRACE:
        grace_over(state, state.supply.nodes[subject], decisions)
    elif kind is TimerKind.NODE_DEAD:
        dead(state, state.supply.nodes[subject], decisions)
    elif kind is TimerKind.TRAJECTORY:
        end_of_life(state, state.trajectories[TrajectoryKey(subject)], decisions)
    else:
        _expire(state, kind, state.actions[ActionId(subject)], decisions)


def _look_again(state: State, kind: TimerKind, subject: str, decisions: list[Decision]) -> None:
    """Have the pass examine what waited for a time, or end a move whose time is over."""
    if kind is TimerKind.MOVES and subject == WAITING_QUEUES:
        state.rebalancing.due, state.rebalancing.look = None, True
    elif kind is TimerKind.MOVES:
        look_due(state)
    elif kind is TimerKind.MOVE:
        give_up(state, state.trajectories[TrajectoryKey(subject)], decisions)
    elif kind is TimerKind.FLEET:
        state.generations.changed.add(subject)
    elif kind is TimerKind.RESIZE:
        del state.resizing.due[ResourceId(subject)]
        state.resizing.changed.add(ResourceId(subject))
        state.dirty = True
    else:
        waiting = state.queues.deferrals if kind is TimerKind.DEFERRAL else state.timers.pacing
        del waiting[ResourceId(subject)]
        state.dirty = True


def _expire(state: State, kind: TimerKind, live: LiveAction, decisions: list[Decision]) -> None:
    """End what its holder did not renew, or what waited for too long."""
    if kind is TimerKind.LEASE:
        (expire if live.action.generation is None else abandon)(state, live, decisions)
        return
    seconds = live.action.queue_timeout_seconds
    detail = f"waited longer than queue_timeout_seconds ({seconds:g})"
    finish(state, live, Outcome.EXPIRED, decisions, detail=detail)


def upcoming(state: State) -> float | None:
    """Return when the next timer is due, and drop stale ones before it."""
    timers = state.timers
    timers.sweep(lambda timer: is_valid(state, timer))
    while (timer := timers.first()) is not None and not is_valid(state, timer):
        timers.pop()
    return None if timer is None else timer[0]
