"""Turns of GPU services: the order of calls that keeps restores from taking most of the GPU time.

Strict first come first served changes the service on a chunk with nearly every call, once there are
more services than chunks. Here a service that is cached on a free chunk goes on until none of its calls
waits (polling systems: *exhaustive* service minimises the work that waits); then the oldest call is
served. To bound the delay, a call that has waited too long is *overdue* and goes first. Policies
without `takes_turns` serve calls by arrival.

Rules
1. Among calls of equal priority: overdue ones, then those whose service is cached on a free chunk, then
   all others; each class by arrival, the last two by turn where shorter calls precede longer ones (`steady_counts`, rule
   5). Actions that need GPUs without a service are among the others.
2. A call is overdue after `OVERDUE_ROUNDS` rounds. A round is one restore, as measured for its service, for
   each service with waiting calls, and all waiting calls, at least one for each of these services, divided by
   the chunks. With a limit that does not follow the queue all calls of a crowd become overdue; then nearly each
   needs a restore, and the queue grows although the chunks would suffice.
3. So later calls overtake an earlier one for at most `OVERDUE_ROUNDS` rounds, and one call more, until a
   chunk is free.
4. Services for which no call waits are evicted first.
5. A service that works already is restored onto one more chunk only when its queue, divided by the
   chunks it has, would take longer than a number of restores: `PATIENCE_RESTORES` divided by the
   chunks that are idle beyond those the other services wait for (the least recently used service is
   evicted: the more chunks are idle, the less likely is it called soon), but at least
   `LEAST_RESTORES`; or `SPARE_RESTORES` where a free chunk has room for it without an eviction. Until
   then its calls wait for the chunk that has it, and block no other actions.
6. A service that declares `max_concurrency` serves that many calls at once: they take *seats* on a
   chunk that it holds already. This delays no action behind them, but prolongs the use of the chunk;
   so no call takes a seat while an action ahead of it waits for that resource.
7. Calls of a service that failed to start on all free chunks wait for another chunk, if there is
   one on which it did not fail, and block no other actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import Final

from domain.action import Action, Outcome
from domain.allocation import Allocation
from domain.chunks import level_of
from domain.events import ActionFinished
from domain.ids import ResourceId, node_resource
from domain.resources import MILLI, UnitSet
from domain.services import service_name
from scheduler.core.policies.protocol import Policy
from scheduler.core.residency.policy import NO_PREFERENCE, Rank, ResidentSeat, RestoreTimes
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue

KIND: Final = "gpu"
OVERDUE_ROUNDS: Final = 4.0
PATIENCE_RESTORES: Final = 4.0
SPARE_RESTORES: Final = 1.0
LEAST_RESTORES: Final = 0.75
#: Weight of the newest measurement.
_NEWEST: Final = 0.3

#: Classes of `Rank`.
_OVERDUE: Final = 0
_CACHED: Final = 1
OTHERS: Final = NO_PREFERENCE


def with_service(needs: Needs, action: Action, policy: Policy) -> Needs:
    """Return ``needs`` with the service that is called, so that its calls share a queue."""
    if action.call is None or not policy.takes_turns:
        return needs
    name = service_name(action.call.target)
    return needs if name is None else needs._replace(resident=name)


def rank(state: State, key: QueueKey, live: LiveAction) -> Rank:
    """Return the rank of ``live``, the head of a queue for GPUs (rule 1)."""
    priority, arrival = live.order[0], live.order[-1]
    if state.now - live.submitted_at > overdue_seconds(state, key):
        return priority, _OVERDUE, arrival
    nodes = (node.name for node in state.supply.nodes_of(key.pool))
    service, counts = key.needs.resident, counts_of(state, live)
    cached = bool(service) and any(is_cached(state, node, service, counts) for node in nodes)
    can_start = cached or open_seat(state, key, live) is not None
    config = state.config.pools.get(key.pool)
    turn = live.served if config is not None and config.shadow_pools else (arrival,)
    return priority, _CACHED if can_start else OTHERS, *turn


def counts_of(state: State, live: LiveAction) -> UnitSet:
    """Return the counts of GPUs that the call ``live`` may get: one where they are steady."""
    counts = live.action.cost[KIND]
    if len(counts) > 1 and state.residency.count_of(live.action, live.pool, counts) is not None:
        return (live.needs.key_amount,)
    return counts


def seats_of(state: State, service: str) -> int:
    """Return how many calls ``service`` takes at once on a chunk."""
    declared = state.config.services.get(service)
    return 1 if declared is None else declared.max_concurrency


def open_seat(state: State, key: QueueKey, live: LiveAction) -> ResidentSeat | None:
    """Return a chunk that takes ``live``, of the queue ``key``, beside other calls now (rule 6)."""
    most = seats_of(state, key.needs.resident)
    takes_more = key.needs.in_cluster or len(key.needs.on_node) > 1 or key.memory_bytes
    if most == 1 or takes_more or key.needs.key != KIND:
        return None
    counts = {level_of(count) for count in live.action.cost[KIND]}
    for node in state.supply.nodes_of(key.pool):
        resource = node_resource(KIND, node.name)
        ledger = state.supply.resident.get(resource)
        if ledger is None or not state.supply.usable(node) or key.node not in (None, node.name):
            continue
        for home in ledger.seats(key.needs.resident, most):
            if level_of(len(home.units) * MILLI) in counts:
                return ResidentSeat(node.name, resource, home, most)
    return None


def overdue_seconds(state: State, key: QueueKey) -> float:
    """Return after how many seconds a call in the queue ``key`` is overdue (rule 2)."""
    resident = state.supply.resident
    resources = [node_resource(KIND, node.name) for node in state.supply.nodes_of(key.pool)]
    ledgers = [resident[resource] for resource in resources if resource in resident]
    wanted = {service for ledger in ledgers for service in ledger.wanted}
    chunks = sum(ledger.capacity // max(1, key.needs.key_amount) for ledger in ledgers)
    known = times_of(state, key.needs.resident)
    rounds = ceil(max(1, len(wanted)) / max(1, chunks))
    once = rounds * (known.restore_seconds + known.call_seconds)
    queues = state.queues.active.items()
    waiting = sum(
        each.size for other, each in queues if other.pool == key.pool and other.needs.resident
    )
    whole = rounds * known.restore_seconds + waiting * known.call_seconds / max(1, chunks)
    return OVERDUE_ROUNDS * max(once, whole)


def is_cached(state: State, node: str, service: str, counts: Iterable[int]) -> bool:
    """Return whether a free chunk of ``node``, of one of ``counts`` milli-units, caches ``service``."""
    ledger = state.supply.resident.get(node_resource(KIND, node))
    return ledger is not None and any(ledger.homes(service, count) for count in counts)


def waits_for_chunk(state: State, queue: WaitQueue) -> ResourceId | None:
    """Return where the head of ``queue`` waits for a chunk that has its service (rule 5), else None."""
    service, head = queue.key.needs.resident, queue.head()
    if not service or head is None:
        return None
    working, where = 0, None
    free, wanted = 0, {service}
    for node in state.supply.nodes_of(queue.key.pool):
        resource = node_resource(KIND, node.name)
        ledger = state.supply.resident.get(resource)
        if ledger is None or not state.supply.usable(node):
            continue
        if is_cached(state, node.name, service, counts_of(state, head)):
            return None
        free += ledger.free // max(1, queue.key.needs.key_amount)
        wanted |= ledger.wanted
        if here := ledger.working(service):
            working, where = working + here, resource
    idle = max(1, free + 1 - len(wanted))
    worth, patience = queue_in_restores(state, queue, working), PATIENCE_RESTORES / idle
    if worth > max(LEAST_RESTORES, patience):
        return None
    return None if worth > SPARE_RESTORES and _has_spare(state, queue.key) else where


def queue_in_restores(state: State, queue: WaitQueue, chunks: int) -> float:
    """Return the seconds of calls in ``queue`` per chunk of ``chunks``, as a multiple of one restore."""
    service = queue.key.needs.resident
    known, at_once = times_of(state, service), max(1, chunks) * seats_of(state, service)
    seconds = queue.size * known.call_seconds / at_once
    return seconds / known.restore_seconds if known.restore_seconds > 0 else inf


def _has_spare(state: State, key: QueueKey) -> bool:
    """Return whether a free chunk has room for the service without an eviction."""
    nodes = (node.name for node in state.supply.nodes_of(key.pool) if state.supply.usable(node))
    return any(has_room(state, node, key.needs) for node in nodes)


def has_room(state: State, node: str, needs: Needs) -> bool:
    """Return whether a free chunk of ``node`` has room for the service that is called."""
    ledger, service = state.supply.resident.get(node_resource(KIND, node)), needs.resident
    if ledger is None or not service:
        return False
    declared = state.config.services.get(service)
    gpus = -(-needs.key_amount // MILLI)
    return ledger.has_room(needs.key_amount, 0 if declared is None else declared.memory_bytes(gpus))


def times_of(state: State, service: str) -> RestoreTimes:
    """Return the seconds that restores and calls of ``service`` take, as measured."""
    return state.residency.memory.times.get(service, RestoreTimes())


def learn(state: State, event: ActionFinished, held: Allocation) -> None:
    """Add the seconds that a restore and a call took to the averages of the service."""
    hosting = held.hosting
    if hosting is None or not hosting.service or event.outcome is not Outcome.COMPLETED:
        return
    times = state.residency.memory.times
    known = times.get(hosting.service)
    restore = event.chunk.restore_seconds if event.chunk and not hosting.cached else None
    by_count = dict(known.by_count) if known else {}
    if restore is not None:
        by_count[held.amount] = _mean(by_count.get(held.amount), restore)
    times[hosting.service] = RestoreTimes(
        _mean(known and known.restore_seconds, restore),
        _mean(known and known.call_seconds, event.execution_seconds),
        tuple(sorted(by_count.items())),
    )


def _mean(known: float | None, newest: float | None) -> float:
    if newest is None:
        return RestoreTimes().restore_seconds if known is None else known
    return newest if known is None else known + _NEWEST * (newest - known)
