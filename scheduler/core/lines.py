"""The wait queues as people see them: what each line waits for. Computed when asked."""

from __future__ import annotations

from heapq import nlargest

from domain.resources import units
from domain.wire import QueuesView, QueueView
from scheduler.core.explain import explain
from scheduler.core.queues import WaitQueue
from scheduler.core.state import State


def lines(state: State, limit: int) -> QueuesView:
    """Return the ``limit`` longest lines. Actions that wait for their own trajectory are in none."""
    standing = [queue for queue in state.queues.values() if queue.size]
    longest = nlargest(limit, standing, key=lambda queue: queue.size)
    seen = [view for queue in longest if (view := _view(state, queue)) is not None]
    return QueuesView(seen, len(standing), sum(queue.size for queue in standing))


def _view(state: State, queue: WaitQueue) -> QueueView | None:
    head = queue.head()
    standing = None if head is None else explain(state, head.id)
    if head is None or standing is None or (why := standing.why()) is None:
        return None
    key, action = queue.key, head.action
    needs = (*key.needs.on_node, *key.needs.in_cluster)
    return QueueView(
        pool=key.pool,
        node=key.node,
        needs={name: units(amount) for name, amount in needs if name != "memory"},
        memory_bytes=key.memory_bytes,
        waiting=queue.size,
        head=action.id,
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        waited_seconds=max(0.0, state.now - head.submitted_at),
        why=why,
    )
