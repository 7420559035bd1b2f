"""The wait queues as people see them: what each line waits for. Computed when asked."""

from __future__ import annotations

from collections.abc import Collection
from heapq import nlargest

from contract.responses import QueueDetails, QueuesResponse
from domain.resources import units
from scheduler.core.advice.explain import explain
from scheduler.core.state.model import LiveAction, State
from scheduler.core.state.queues import WaitQueue


def lines(state: State, limit: int, projects: Collection[str] | None = None) -> QueuesResponse:
    """Return the ``limit`` longest lines, or of lines what belongs to ``projects``.

    Actions that wait for their own trajectory are in none. Asking for projects looks at every
    waiting action, a fraction of a microsecond each.
    """
    standing = [(queue, queue.size, queue.head()) for queue in state.queues.values() if queue.size]
    if projects is not None:
        standing = [part for queue, _, _ in standing if (part := _part(queue, projects))]
    longest = nlargest(limit, standing, key=lambda line: line[1])
    seen = [view for line in longest if (view := _view(state, *line)) is not None]
    return QueuesResponse(seen, len(standing), sum(size for _, size, _ in standing))


def _part(
    queue: WaitQueue, projects: Collection[str]
) -> tuple[WaitQueue, int, LiveAction | None] | None:
    """Return how many of a line belong to ``projects``, and the first of them; None: nobody."""
    theirs = [live for live in queue.in_order() if live.action.project in projects]
    return (queue, len(theirs), theirs[0]) if theirs else None


def _view(
    state: State, queue: WaitQueue, waiting: int, head: LiveAction | None
) -> QueueDetails | None:
    standing = None if head is None else explain(state, head.id)
    if head is None or standing is None or (why := standing.why()) is None:
        return None
    key, action = queue.key, head.action
    needs = (*key.needs.on_node, *key.needs.in_cluster)
    return QueueDetails(
        pool=key.pool,
        node=key.node,
        needs={name: units(amount) for name, amount in needs if name != "memory"},
        memory_bytes=key.memory_bytes,
        waiting=waiting,
        head=action.id,
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        waited_seconds=max(0.0, state.now - head.submitted_at),
        why=why,
    )
