"""Status of the wait queues. Computed on request."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nlargest
from typing import NamedTuple

from scheduler.core.advice.explain import explain
from scheduler.core.advice.facts import QueuesStatus, QueueStatus
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue


class _Selection(NamedTuple):
    """The actions of a queue that belong to the requested projects."""

    queue: WaitQueue
    waiting: int
    head: LiveAction | None


def queues_status(
    state: State, limit: int, projects: Collection[str] | None = None
) -> QueuesStatus:
    """Return the ``limit`` longest queues; with ``projects`` their actions in each queue alone.

    Actions that wait for their own trajectory are in no queue. A selection by project scans every
    waiting action, a fraction of a microsecond each.
    """
    selected = [_Selection(each, each.size, each.head()) for each in state.queues.active.values()]
    if projects is not None:
        selected = [_of_projects(each.queue, projects) for each in selected]
    selected = [each for each in selected if each.waiting]
    longest = nlargest(limit, selected, key=lambda each: each.waiting)
    items = [item for each in longest if (item := _status(state, each)) is not None]
    return QueuesStatus(items, len(selected), sum(each.waiting for each in selected))


def _of_projects(queue: WaitQueue, projects: Collection[str]) -> _Selection:
    members = [live for live in queue.in_order() if live.action.project in projects]
    return _Selection(queue, len(members), members[0] if members else None)


def _status(state: State, selection: _Selection) -> QueueStatus | None:
    queue, waiting, head = selection
    status = None if head is None else explain(state, head.id)
    if head is None or status is None or status.waiting is None:
        return None
    return QueueStatus(queue.key, waiting, status, max(0.0, state.now - head.submitted_at))
