"""One scheduling cycle: scan, block, claim at minimum units (design of the algorithm: §4.2).

Recipe
1. Heads: the first action of every wait queue, merged in order (priority, then arrival).
2. For each head, find a place: its node, or the least memory-loaded node that fits now.
3. It fits → grant, and the next of its queue becomes head.
4. It does not → the resources it is short of are *blocked* for everybody later in the scan, and it
   *claims* its minimum on its other resources: later ones may use those only beyond the claims.
   Its queue leaves the scan, since its equals cannot fit either.

Consequences. An action is overtaken only on resources that it does not wait for; nobody starves;
grants are atomic over all resources, so nothing deadlocks. An action that may run on any node
saves up on one node at a time and keeps to that one while it is head; a place that frees elsewhere
is taken first.

Two exceptions, or the system could stand still. Environments keep memory for their whole life and
end only by running: who waits for memory blocks memory alone, and claims nothing. And who is
larger than everything that is there now (a limit was lowered, the large node is away) blocks and
claims nothing, for no action that ends would help it.

Cost: O(lines + admitted · log lines) per cycle, however long the lines are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from domain.decisions import Decision
from scheduler.core.lifecycle import grant
from scheduler.core.places import large_enough, usable_nodes, why_no_node
from scheduler.core.queues import QueueKey, WaitQueue, WaitReason
from scheduler.core.scan import Scan
from scheduler.core.state import LiveAction, LiveNode, Order, State


def run_cycle(state: State, decisions: list[Decision]) -> None:
    """Admit whatever can be admitted now."""
    if not state.dirty:
        return
    state.dirty = False
    scan = Scan()
    heads = _heads(state)
    while heads:
        _, key = heads[0]
        queue = state.queues[key]
        live = queue.head()
        if live is not None and _try_admit(state, scan, queue, live, decisions):
            following = queue.head()
            if following is not None:
                heapreplace(heads, (following.order, key))
                continue
            del state.queues[key]
        heappop(heads)


def _heads(state: State) -> list[tuple[Order, QueueKey]]:
    heads: list[tuple[Order, QueueKey]] = []
    for key, queue in list(state.queues.items()):
        live = queue.head()
        if live is None:
            del state.queues[key]
        else:
            heads.append((live.order, key))
    heapify(heads)
    return heads


def _try_admit(
    state: State, scan: Scan, queue: WaitQueue, live: LiveAction, decisions: list[Decision]
) -> bool:
    """Grant ``live``, the head of ``queue``, or give the queue a reason to wait."""
    key = queue.key
    pool = state.config.pools.get(key.pool)
    if pool is not None and pool.paused:
        queue.reason = WaitReason("pool_paused", key.pool)
        return False
    nodes = usable_nodes(state, key) if key.needs.wants_node else []
    if key.needs.wants_node and not nodes:
        queue.reason = why_no_node(state, key)
        return False
    if scan.admits(state.ledgers, queue.in_cluster):
        if not key.needs.wants_node:
            grant(state, live, None, decisions)
            return True
        for node in nodes:
            if scan.admits(state.ledgers, queue.on_node(node.name)):
                grant(state, live, node.name, decisions)
                queue.sticky_node = None
                return True
    queue.reason = _wait(state, scan, queue, live, nodes)
    return False


def _wait(
    state: State, scan: Scan, queue: WaitQueue, live: LiveAction, nodes: list[LiveNode]
) -> WaitReason:
    """Let the head of ``queue`` wait, and save up where that can help it."""
    for need in queue.in_cluster:
        if not large_enough(state, [need]):
            return WaitReason("too_large", need[0])
    if not queue.key.needs.wants_node:
        return scan.refuse(state.ledgers, live.id, queue.in_cluster)
    large = [node.name for node in nodes if large_enough(state, queue.on_node(node.name))]
    if not large:
        queue.sticky_node = None
        return WaitReason("too_large", queue.key.node or queue.key.pool)
    if queue.sticky_node not in large:
        queue.sticky_node = large[0]
    needs = queue.on_node(queue.sticky_node or large[0])
    return scan.refuse(state.ledgers, live.id, needs + queue.in_cluster)
