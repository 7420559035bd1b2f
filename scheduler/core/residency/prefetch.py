"""Restores ahead: a service comes to an idle chunk before the call that waits for other things.

Rules
1. It is brought for the head of a line that waits, and not for free GPUs: for its project's share, a
   quota or another resource, or for the chunk where its service works already (`affinity`, rule 5).
2. It comes to a free chunk that has room for it, so nobody leaves, on a node for whose GPUs nobody
   waits. Not at all where it is on a free chunk, or on its way to one.
3. It takes nothing: the chunk stays free, and whoever is granted it goes first.
4. One for each service, until a call of it was granted a chunk. So each that nobody came for follows a
   call, and a service that cannot be brought is not tried again and again.
5. What comes counts as there when its node says so. A call that is granted before is sent there as
   well, and waits for the rest of the restore.

Policy ``paper`` brings nothing ahead.
"""

from __future__ import annotations

from typing import Final

from domain.decisions import Decision, Prepare
from domain.ids import ResourceId, node_resource
from domain.resources import MILLI
from scheduler.core.cycle.places import usable_nodes
from scheduler.core.residency.service_turns import KIND, line_restores, waits_for_home
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue

#: A line that waits for its service's own chunk is worth so much of a restore, as measured.
AHEAD_RESTORES: Final = 0.5
#: Reasons to wait for units, which may be those of GPUs.
_FOR_UNITS: Final = frozenset({"short_of", "behind"})


def restore_ahead(state: State, decisions: list[Decision]) -> None:
    """Let services come to idle chunks for those who wait for something else."""
    lines = [queue for key, queue in state.queues.active.items() if key.needs.service]
    if not any(queue.key.needs.service not in state.ahead for queue in lines):
        return
    wanted = _gpus_waited_for(state)
    for queue in lines:
        if queue.key.needs.service not in state.ahead and _waits_beside(state, queue):
            _bring(state, queue, wanted, decisions)


def _gpus_waited_for(state: State) -> set[ResourceId]:
    """Return the GPUs, by node, that some line is short of, or that a policy holds back."""
    reasons = [queue.reason for queue in state.queues.active.values() if queue.reason is not None]
    short = {ResourceId(why.subject or "") for why in reasons if why.code in _FOR_UNITS}
    return short.union(state.queues.deferrals)


def _waits_beside(state: State, queue: WaitQueue) -> bool:
    """Say whether the head of ``queue`` waits for something that is not a free chunk (rule 1)."""
    reason = queue.reason
    if reason is None or queue.head() is None:
        return False
    if reason.code in _FOR_UNITS:
        return not (reason.subject or "").startswith(f"{KIND}:")
    return reason.code == "share" or (reason.code == "deferred" and _comes_soon(state, queue))


def _comes_soon(state: State, queue: WaitQueue) -> bool:
    """Say whether a line that waits for its service's own chunk is worth enough of a restore (rule 1)."""
    service = queue.key.needs.service
    if service not in state.paces or waits_for_home(state, queue) is None:
        return False
    working = sum(ledger.working(service) for ledger in state.fleet.resident.values())
    return line_restores(state, queue, working) > AHEAD_RESTORES


def _bring(
    state: State, queue: WaitQueue, wanted: set[ResourceId], decisions: list[Decision]
) -> None:
    """Bring the service of ``queue`` to the first node that has a chunk for it (rule 2)."""
    name, amount = queue.key.needs.service, queue.key.needs.key_amount
    live, service = queue.head(), state.config.services.get(name)
    if live is None or service is None or service.quarantined:
        return
    nodes = [node for node in usable_nodes(state, queue.key)
             if node_resource(KIND, node.name) in state.fleet.resident]  # fmt: skip
    ledgers = {node.name: state.fleet.resident[node_resource(KIND, node.name)] for node in nodes}
    if any(ledger.homes(name, n) for ledger in ledgers.values() for n in live.action.cost[KIND]):
        return
    memory_bytes = service.memory_bytes(-(-amount // MILLI))
    for node, ledger in ledgers.items():
        if node_resource(KIND, node) in wanted:
            continue
        home = ledger.bring(name, amount, memory_bytes)
        if home is not None:
            state.ahead.add(name)
            decisions.append(Prepare(node, home, memory_bytes))
            return
