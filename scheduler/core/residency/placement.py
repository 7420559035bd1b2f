"""Placement of calls: the nodes on which a GPU service can be called, best first."""

from __future__ import annotations

from typing import Final

from domain.ids import node_resource
from scheduler.core.residency.restore_costs import done_seconds, may_widen
from scheduler.core.residency.service_turns import KIND, has_room, is_cached
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State

#: Preference of nodes: the service is cached, fits beside others, evicts others, or failed there.
_CACHED: Final = 0
_ROOM: Final = 1
_EVICTS: Final = 2
_FAILED: Final = 3


def places(
    state: State, key: QueueKey, nodes: list[LiveNode], live: LiveAction | None
) -> list[LiveNode]:
    """Return those of ``nodes`` that have the memory ``key`` needs, best first, then least loaded, as they come.

    ``live`` is the head of the queue: a call prefers the node where it ends soonest.
    """
    needs = key.needs
    if needs.unit_memory_bytes:
        nodes = [node for node in nodes if _has_memory(node, needs.unit_memory_bytes)]
    if len(nodes) < 2 or not needs.resident:
        return nodes
    preferred = _preferences(state, nodes, needs, live)
    return sorted(nodes, key=lambda node: preferred[node.name])


def _preferences(
    state: State, nodes: list[LiveNode], needs: Needs, live: LiveAction | None
) -> dict[str, tuple[float, ...]]:
    """Return a sort key for each node: not failed there, ends soonest, state of the service, most room."""
    keys: dict[str, tuple[float, ...]] = {node.name: (0, 0.0, 0, 0) for node in nodes}
    call = live if needs.key == KIND else None
    wide = call is not None and may_widen(state, call)
    for name, preference in _by_service(state, nodes, needs).items():
        seconds = done_seconds(state, name, call) if call is not None else 0.0
        free = state.supply.resident[node_resource(KIND, name)].free if wide else 0
        keys[name] = (preference == _FAILED, seconds, preference, -free)
    return keys


def _by_service(state: State, nodes: list[LiveNode], needs: Needs) -> dict[str, int]:
    """Return the preference of each node that has GPUs."""
    found: dict[str, int] = {}
    for node in nodes:
        ledger = state.supply.resident.get(node_resource(KIND, node.name))
        if ledger is None:
            continue
        if is_cached(state, node.name, needs.resident, (needs.key_amount,)):
            found[node.name] = _CACHED
        elif ledger.has_failed(needs.resident):
            fails = not ledger.accepts(needs.resident, needs.key_amount, now=True)
            found[node.name] = _FAILED if fails else _EVICTS
        else:
            found[node.name] = _EVICTS
    if _CACHED not in found.values():  # else the call goes there, and room elsewhere is irrelevant
        for name, preference in found.items():
            if preference == _EVICTS and has_room(state, name, needs):
                found[name] = _ROOM
    return found


def _has_memory(node: LiveNode, memory_bytes: int) -> bool:
    """Return whether a GPU of ``node`` has so much memory, or declares no size."""
    have = node.inventory.resources.get(KIND)
    return have is not None and (not have.memory_bytes or have.memory_bytes >= memory_bytes)


def only_failed_chunks_free(state: State, key: QueueKey) -> bool:
    """Return whether the service failed on all free chunks, but not on all chunks.

    Its calls then wait for another chunk without blocking others (`service_turns`, rule 7).
    """
    service, amount, supply = key.needs.resident, key.needs.key_amount, state.supply
    if not service:
        return False
    found = [
        supply.resident.get(node_resource(KIND, node.name))
        for node in supply.nodes_of(key.pool)
        if supply.usable(node)
        and key.node in (None, node.name)
        and _has_memory(node, key.needs.unit_memory_bytes)
    ]
    ledgers = [ledger for ledger in found if ledger is not None]
    if not any(ledger.has_failed(service) for ledger in ledgers):
        return False
    free = [ledger for ledger in ledgers if ledger.fits((amount,))]
    if not free or any(ledger.accepts(service, amount, now=True) for ledger in free):
        return False
    return any(ledger.accepts(service, amount, now=False) for ledger in ledgers)
