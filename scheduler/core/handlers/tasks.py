"""TaskControl a task: pausing it, changing its priority, ending what it has.

Rules
1. What waits of a paused task stands in lines of its own (`QueueKey.held`), which take, block and
   claim nothing; what runs goes on. New actions join those lines.
2. A priority given here stands for the one that each action came with; arrivals stay as they were.
3. Ending a task ends what there is of it now; what its trainer submits later is accepted.
"""

from __future__ import annotations

from collections.abc import Callable

from domain.decisions import Decision
from domain.events import TaskCancelRequested, TaskPaused, TaskPrioritised
from scheduler.core.handlers.actions import cancel
from scheduler.core.state.lifecycle import enqueue, leave_queue
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State


def paused(state: State, event: TaskPaused, decisions: list[Decision]) -> None:
    """Grant nothing to a task from now on, or go on with it. Repeats change nothing."""
    before = state.steering.of(event.project, event.task)
    if before.paused != event.paused:
        state.steering.set(event.project, event.task, before._replace(paused=event.paused))
        _queue_anew(state, event.project, event.task, lambda live: None)


def prioritised(state: State, event: TaskPrioritised, decisions: list[Decision]) -> None:
    """Serve a task's actions at another priority; None: each at its own again."""
    before = state.steering.of(event.project, event.task)
    if before.priority != event.priority:
        state.steering.set(event.project, event.task, before._replace(priority=event.priority))

        def place(live: LiveAction) -> None:
            live.order = state.steering.order(live.action, live.order[1])

        _queue_anew(state, event.project, event.task, place)


def cancel_requested(state: State, event: TaskCancelRequested, decisions: list[Decision]) -> None:
    """End everything that a task has now."""
    for live in _live(state, event.project, event.task):
        if live.id in state.actions:
            cancel(state, live, event.reason, decisions)


def _queue_anew(
    state: State, project: str, task: str, change: Callable[[LiveAction], None]
) -> None:
    """Apply ``change`` to each action of a task, and put who stands in a line where it belongs."""
    for live in _live(state, project, task):
        stood = live.queue is not None
        if stood:
            leave_queue(state, live)
        change(live)
        if stood:
            enqueue(state, live, state.trajectory_of(live))


def _live(state: State, project: str, task: str) -> list[LiveAction]:
    return [
        live
        for live in state.actions.values()
        if (live.action.project, live.action.task) == (project, task)
    ]
