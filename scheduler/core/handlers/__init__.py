"""Handlers of events. `HANDLERS` is the complete table.

A handler takes (state, event, decisions), changes the state and appends decisions. It never admits
actions: the cycle does, once per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domain import events, fleet_events, rollout_events
from domain.decisions import Decision
from scheduler.core.handlers import (
    actions,
    backends,
    configuration,
    forks,
    generations,
    leases,
    moves,
    node_removal,
    nodes,
    rollouts,
    tasks,
    trajectories,
)
from scheduler.core.residency.registry import HANDLERS as RESIDENCY_HANDLERS
from scheduler.core.state.model import State

Handler = Callable[[State, Any, list[Decision]], None]


def _time_advanced(state: State, event: events.TimeAdvanced, decisions: list[Decision]) -> None:
    """Do nothing: timers that are due run before any event."""


HANDLERS: Final[dict[type, Handler]] = {
    events.ActionSubmitted: actions.submitted,
    events.ActionCancelRequested: actions.cancel_requested,
    events.ActionSetAside: actions.set_aside,
    events.ActionStarted: actions.started,
    events.ActionFinished: actions.finished,
    events.LeaseRenewed: leases.renewed,
    events.LeasesRenewed: leases.renewed_together,
    events.LeaseReleased: leases.released,
    events.TaskOpened: trajectories.task_opened,
    events.TaskPaused: tasks.paused,
    events.TaskPrioritised: tasks.prioritised,
    events.TaskCancelRequested: tasks.cancel_requested,
    events.TrajectoryOpened: trajectories.opened,
    events.TrajectoryRenewed: trajectories.renewed,
    events.TrajectoryFinished: trajectories.finished,
    events.EnvironmentRemoved: trajectories.environment_removed,
    events.FileRequested: trajectories.file_requested,
    events.TrajectoriesForked: forks.asked,
    events.EnvironmentsForked: forks.made,
    events.EnvironmentPacked: moves.was_packed,
    events.EnvironmentReceived: moves.was_received,
    events.NodeJoined: nodes.joined,
    events.NodeLost: nodes.lost,
    events.NodeReturned: nodes.returned,
    events.NodeFenced: nodes.fenced,
    events.NodeRevoked: node_removal.revoked,
    events.NodeRefuses: nodes.refuses,
    events.NodeForgetAsked: node_removal.asked,
    events.ConfigApplied: configuration.applied,
    events.TimeAdvanced: _time_advanced,
    rollout_events.RolloutsSubmitted: rollouts.submitted,
    rollout_events.RolloutCancelRequested: rollouts.cancel_requested,
    rollout_events.RolloutParkRequested: rollouts.park_requested,
    rollout_events.RolloutResumeRequested: rollouts.resume_requested,
    rollout_events.RolloutWorkerJoined: rollouts.worker_joined,
    rollout_events.RolloutWorkerLost: rollouts.worker_lost,
    rollout_events.RolloutsProgressed: rollouts.progressed,
    rollout_events.RolloutFinished: rollouts.finished,
    rollout_events.BackendsChanged: backends.changed,
    rollout_events.BackendJudged: backends.judged,
    fleet_events.FleetWorkersChanged: generations.workers_changed,
    fleet_events.TrajectoryPredicted: generations.predicted,
    fleet_events.CacheMoved: generations.cache_moved,
    fleet_events.TrajectoryPinned: generations.pinned,
    **RESIDENCY_HANDLERS,
}
