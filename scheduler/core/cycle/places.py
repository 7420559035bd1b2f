"""Places: the nodes on which an action may run, best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.core.state.demand import QueueKey
from scheduler.core.state.live import READY, LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitReason
from scheduler.core.state.supply import Supply


class UsableNodes:
    """The nodes of a pool that take actions, least loaded first; an admission looks at few of them.

    Each iteration goes over the nodes as they are at its begin.
    """

    def __init__(self, supply: Supply, pool: str) -> None:
        self._supply = supply
        self._pool = pool

    def __iter__(self) -> Iterator[LiveNode]:
        usable = self._supply.usable
        return (node for node in self._supply.least_loaded(self._pool) if usable(node))

    def __bool__(self) -> bool:
        return any(True for _ in self)


def usable_nodes(state: State, key: QueueKey, live: LiveAction | None = None) -> Iterable[LiveNode]:
    """Return the nodes that take actions of the queue ``key`` now, best first for ``live``, its head."""
    if key.node is not None:
        bound = state.supply.nodes[key.node]
        return [bound] if state.supply.continues(bound) else []
    usable = UsableNodes(state.supply, key.pool)
    if not state.residency.chooses_places(key):
        return usable
    return state.residency.places(key, list(usable), live)


def why_no_node(state: State, key: QueueKey) -> WaitReason:
    """Return why `usable_nodes` is empty."""
    if key.node is None and any(
        state.supply.usable(node) for node in state.supply.nodes_of(key.pool)
    ):
        return WaitReason("too_large", key.pool)
    if key.node is None:
        return WaitReason(_why_not(state, key.pool), key.pool)
    if key.node in state.config.drained_nodes - state.config.finishing_nodes:
        return WaitReason("node_drained", key.node)
    node = state.supply.nodes[key.node]
    if node.refuses:
        return WaitReason("node_refuses", key.node)
    if node.state is READY and not node.orphans:
        return WaitReason("node_unconfined", key.node)
    return WaitReason("node_lost", key.node)


def _why_not(state: State, pool: str) -> str:
    """Return why no node of ``pool`` is usable."""
    supply, nodes = state.supply, state.supply.nodes_of(pool)
    if not nodes:
        return "no_node"
    if any(node.state is READY and not supply.confines(node) for node in nodes):
        return "pool_unconfined"
    return "nodes_unusable"
