"""Prefetch: a service is restored onto an idle chunk before the call that waits for something else.

Rules
1. It is prefetched for the head of a queue that waits for something else than a free chunk: for its
   project's share, a quota or another resource, or for the chunk where its service works already
   (`service_turns`, rule 5).
2. It goes to a free chunk that has room, so no service is evicted, on a node for whose GPUs no queue
   waits; not at all while a free chunk caches it or receives it.
3. It reserves nothing: the chunk stays free, and an action that is granted it goes first.
4. One prefetch for each service, until a call of it is granted a chunk. So a prefetch that fails is
   not repeated at once, and unused prefetches do not add up.
5. The service is cached there when the node reports it. A call that is granted before is sent there
   as well, and waits for the rest of the restore.

Policy ``paper`` prefetches nothing.
"""

from __future__ import annotations

from typing import Final

from domain.decisions import Decision, Prepare
from domain.ids import ResourceId, node_resource
from domain.resources import MILLI
from scheduler.core.cycle.places import usable_nodes
from scheduler.core.residency.service_turns import (
    KIND,
    counts_of,
    queue_in_restores,
    waits_for_chunk,
)
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue

#: A queue that waits for its service's chunk must be worth this part of a restore, as measured.
PREFETCH_RESTORES: Final = 0.5
#: Reasons to wait for units, which may be GPUs.
_FOR_UNITS: Final = frozenset({"short_of", "behind"})


def prefetch(state: State, decisions: list[Decision]) -> None:
    """Prefetch services for the heads of queues that wait for something else (rule 1)."""
    prefetched = state.residency.memory.prefetched
    queues = [queue for key, queue in state.queues.active.items() if key.needs.resident]
    if all(queue.key.needs.resident in prefetched for queue in queues):
        return
    wanted = _gpus_waited_for(state)
    for queue in queues:
        if queue.key.needs.resident not in prefetched and _waits_beside(state, queue):
            _prefetch_for(state, queue, wanted, decisions)


def _gpus_waited_for(state: State) -> set[ResourceId]:
    """Return the GPUs, by node, that some queue is short of, or that a policy holds back."""
    reasons = [q.reason for q in state.queues.active.values() if q.reason is not None]
    short = {ResourceId(why.subject or "") for why in reasons if why.code in _FOR_UNITS}
    return short.union(state.queues.deferrals)


def _waits_beside(state: State, queue: WaitQueue) -> bool:
    """Return whether the head of ``queue`` waits for something that is not a free chunk (rule 1)."""
    reason = queue.reason
    if reason is None or queue.head() is None:
        return False
    if reason.code in _FOR_UNITS:
        return not (reason.subject or "").startswith(f"{KIND}:")
    return reason.code == "share" or (reason.code == "deferred" and _worth_a_restore(state, queue))


def _worth_a_restore(state: State, queue: WaitQueue) -> bool:
    """Return whether a queue that waits for its service's chunk is long enough (rule 1)."""
    service = queue.key.needs.resident
    if service not in state.residency.memory.times or waits_for_chunk(state, queue) is None:
        return False
    working = sum(ledger.working(service) for ledger in state.supply.resident.values())
    return queue_in_restores(state, queue, working) > PREFETCH_RESTORES


def _prefetch_for(
    state: State, queue: WaitQueue, wanted: set[ResourceId], decisions: list[Decision]
) -> None:
    """Prefetch the service of ``queue`` to the first node that has a chunk for it (rule 2)."""
    name, amount, resident = (
        queue.key.needs.resident,
        queue.key.needs.key_amount,
        state.supply.resident,
    )
    live, service = queue.head(), state.config.services.get(name)
    if live is None or service is None or service.quarantined:
        return
    nodes = [node.name for node in usable_nodes(state, queue.key)]
    ledgers = {
        node: resident[node_resource(KIND, node)]
        for node in nodes
        if node_resource(KIND, node) in resident
    }
    if any(ledger.homes(name, n) for ledger in ledgers.values() for n in counts_of(state, live)):
        return
    memory_bytes = service.memory_bytes(-(-amount // MILLI))
    for node, ledger in ledgers.items():
        if node_resource(KIND, node) in wanted:
            continue
        home = ledger.prefetch(name, amount, memory_bytes)
        if home is not None:
            state.residency.memory.prefetched.add(name)
            decisions.append(Prepare(node, home, memory_bytes))
            return
