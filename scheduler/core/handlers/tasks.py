"""Operations on a task: pause it, change its priority, cancel its actions.

Rules
1. Waiting actions of a paused task are in queues of their own (`QueueKey.held`), which take, block and
   claim nothing; running actions continue. New actions join those queues.
2. A priority set here replaces that of each action; arrivals stay as they were.
3. Cancelling a task ends its present actions and rollouts; those submitted later are accepted.
"""

from __future__ import annotations

from collections.abc import Callable

from domain.decisions import Decision
from domain.events import TaskCancelRequested, TaskPaused, TaskPrioritised
from scheduler.core.handlers import rollouts
from scheduler.core.handlers.actions import cancel
from scheduler.core.state.lifecycle import enqueue, leave_queue
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def paused(state: State, event: TaskPaused, decisions: list[Decision]) -> None:
    """Pause or resume a task. Repeats change nothing."""
    before = state.steering.of(event.project, event.task)
    if before.paused != event.paused:
        state.steering.set(event.project, event.task, before._replace(paused=event.paused))
        _requeue(state, event.project, event.task, lambda live: None)


def prioritised(state: State, event: TaskPrioritised, decisions: list[Decision]) -> None:
    """Set the priority of a task's actions; None: each has its own again."""
    before = state.steering.of(event.project, event.task)
    if before.priority != event.priority:
        state.steering.set(event.project, event.task, before._replace(priority=event.priority))

        def place(live: LiveAction) -> None:
            priority, _ = state.steering.order(live.action, int(live.order[-1]))
            live.order = priority, *live.order[1:]

        _requeue(state, event.project, event.task, place)
        rollouts.reprioritise(state, event.project, event.task)


def cancel_requested(state: State, event: TaskCancelRequested, decisions: list[Decision]) -> None:
    """Cancel the present rollouts and actions of a task."""
    for rollout in rollouts.of_task(state, event.project, event.task):
        rollouts.cancel(state, rollout, event.reason, decisions)
    for live in _live(state, event.project, event.task):
        if live.id in state.actions:
            cancel(state, live, event.reason, decisions)


def _requeue(state: State, project: str, task: str, change: Callable[[LiveAction], None]) -> None:
    """Apply ``change`` to each action of a task, and move queued ones to the queues they belong in."""
    for live in _live(state, project, task):
        queued = live.queue is not None
        if queued:
            leave_queue(state, live)
        change(live)
        if queued:
            enqueue(state, live, state.trajectory_of(live))


def _live(state: State, project: str, task: str) -> list[LiveAction]:
    return [
        live
        for live in state.actions.values()
        if (live.action.project, live.action.task) == (project, task)
    ]
