"""Where an action may run: the nodes that could take it, best first."""

from __future__ import annotations

from scheduler.core.affinity import KIND, at_home
from scheduler.core.queues import Need, QueueKey, WaitReason
from scheduler.core.state import LiveNode, State


def usable_nodes(state: State, key: QueueKey) -> list[LiveNode]:
    """Return the nodes that take actions of the line ``key`` now, best first."""
    if key.node is not None:
        node = state.nodes[key.node]
        return [node] if state.usable(node) else []
    usable = [node for node in state.nodes_of(key.pool) if state.usable(node)]
    if key.needs.gpu_memory_bytes:
        usable = [node for node in usable if _has_memory(node, key.needs.gpu_memory_bytes)]
    if len(usable) > 1:
        usable.sort(
            key=lambda node: (
                not at_home(state, node.name, key.needs),
                load(state, node.name),
            )
        )
    return usable


def _has_memory(node: LiveNode, memory_bytes: int) -> bool:
    """Say whether a GPU of ``node`` has so much, or does not say how much it has."""
    gpu = node.inventory.resources.get(KIND)
    return gpu is not None and (not gpu.memory_bytes or gpu.memory_bytes >= memory_bytes)


def why_no_node(state: State, key: QueueKey) -> WaitReason:
    """Say why `usable_nodes` found none."""
    if key.node is None and any(state.usable(node) for node in state.nodes_of(key.pool)):
        return WaitReason("too_large", key.pool)
    if key.node is None:
        code = "nodes_unusable" if state.nodes_of(key.pool) else "no_node"
        return WaitReason(code, key.pool)
    drained = key.node in state.config.drained_nodes
    return WaitReason("node_drained" if drained else "node_lost", key.node)


def load(state: State, node: str) -> tuple[float, float, str]:
    """Order nodes: least memory-loaded, then most free cores, then by name."""
    return (_held_share(state, "memory", node), _held_share(state, "cpu", node), node)


def _held_share(state: State, kind: str, node: str) -> float:
    ledger = state.node_ledger(kind, node)
    if ledger is None or ledger.capacity <= 0:
        return 0.0
    return 1.0 - ledger.free / ledger.capacity


def large_enough(state: State, needs: list[Need]) -> bool:
    """Say whether ``needs`` could be had if nothing were held."""
    for resource, amount in needs:
        ledger = state.ledgers.get(resource)
        if ledger is None or not ledger.feasible(amount):
            return False
    return True
