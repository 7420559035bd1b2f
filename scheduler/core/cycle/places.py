"""Where an action may run: the nodes that could take it, best first."""

from __future__ import annotations

from typing import Final

from domain.ids import node_resource
from scheduler.core.residency.restore_costs import done_seconds, may_choose
from scheduler.core.residency.service_turns import KIND, at_home, has_room
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitReason

#: Last of the places in `_for_service`: what is tried where nothing else is left.
_FAILS: Final = 3


def usable_nodes(state: State, key: QueueKey, live: LiveAction | None = None) -> list[LiveNode]:
    """Return the nodes that take actions of the line ``key`` now, best first.

    ``live``, its head: a call goes first where it would be done soonest.
    """
    if key.node is not None:
        bound = state.fleet.nodes[key.node]
        return [bound] if state.fleet.usable(bound) else []
    usable = [node for node in state.fleet.nodes_of(key.pool) if state.fleet.usable(node)]
    if key.needs.gpu_memory_bytes:
        usable = [node for node in usable if _has_memory(node, key.needs.gpu_memory_bytes)]
    if len(usable) > 1:
        place = _places_of_a_call(state, usable, key.needs, live) if key.needs.service else None
        usable.sort(
            key=lambda node: (place[node.name] if place else (), state.fleet.load(node.name))
        )
    return usable


def _places_of_a_call(
    state: State, nodes: list[LiveNode], needs: Needs, live: LiveAction | None
) -> dict[str, tuple[float, ...]]:
    """Order nodes for a call: not where it failed; where it is done soonest, cached, with most room."""
    places: dict[str, tuple[float, ...]] = {node.name: (0, 0.0, 0, 0) for node in nodes}
    chosen = live is not None and needs.key == KIND
    wide = live is not None and chosen and may_choose(state, live)
    for name, place in _for_service(state, nodes, needs).items():
        soon = done_seconds(state, name, live) if live is not None and chosen else 0.0
        free = state.fleet.resident[node_resource(KIND, name)].free if wide else 0
        places[name] = (place == _FAILS, soon, place, -free)
    return places


def kept_away(state: State, key: QueueKey) -> bool:
    """Say whether a service failed on all chunks that are free, and not on all there are.

    Its calls wait for one of the others then, and block nobody (`affinity`, rule 7).
    """
    service = key.needs.service
    if not service:
        return False
    amount, memory_bytes = key.needs.key_amount, key.needs.gpu_memory_bytes
    nodes = (node for node in state.fleet.nodes_of(key.pool) if state.fleet.usable(node))
    found = [state.fleet.resident.get(node_resource(KIND, node.name)) for node in nodes
             if key.node in (None, node.name) and _has_memory(node, memory_bytes)]  # fmt: skip
    ledgers = [ledger for ledger in found if ledger is not None]
    if not any(ledger.shuns(service) for ledger in ledgers):
        return False
    free = [ledger for ledger in ledgers if ledger.fits((amount,))]
    if not free or any(ledger.welcomes(service, amount, now=True) for ledger in free):
        return False
    return any(ledger.welcomes(service, amount, now=False) for ledger in ledgers)


def _for_service(state: State, nodes: list[LiveNode], needs: Needs) -> dict[str, int]:
    """Order nodes: where the service is, where it has room, where others leave, where it failed."""
    order: dict[str, int] = {}
    if not needs.service:
        return order
    for node in nodes:
        ledger = state.fleet.resident.get(node_resource(KIND, node.name))
        if ledger is None:
            continue
        if at_home(state, node.name, needs):
            order[node.name] = 0
        elif ledger.shuns(needs.service):
            fails = not ledger.welcomes(needs.service, needs.key_amount, now=True)
            order[node.name] = _FAILS if fails else 2
        else:
            order[node.name] = 2
    if 0 not in order.values():  # else it goes there, and nobody asks for room
        for name, place in order.items():
            if place == 2 and has_room(state, name, needs):
                order[name] = 1
    return order


def _has_memory(node: LiveNode, memory_bytes: int) -> bool:
    """Say whether a GPU of ``node`` has so much, or does not say how much it has."""
    gpu = node.inventory.resources.get(KIND)
    return gpu is not None and (not gpu.memory_bytes or gpu.memory_bytes >= memory_bytes)


def why_no_node(state: State, key: QueueKey) -> WaitReason:
    """Say why `usable_nodes` found none."""
    if key.node is None and any(
        state.fleet.usable(node) for node in state.fleet.nodes_of(key.pool)
    ):
        return WaitReason("too_large", key.pool)
    if key.node is None:
        code = "nodes_unusable" if state.fleet.nodes_of(key.pool) else "no_node"
        return WaitReason(code, key.pool)
    drained = key.node in state.config.drained_nodes
    return WaitReason("node_drained" if drained else "node_lost", key.node)
