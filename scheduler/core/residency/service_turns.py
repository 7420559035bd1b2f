"""Turns of GPU services: whose calls go first, so that restores do not eat the GPUs.

Strict first come first served changes the service on a chunk with nearly every call, once there are
more services than chunks. Here a service that is on a free chunk goes on until nobody waits for it
(polling systems: *exhaustive* service has the least work to wait for); then the oldest call is
served. So that this ends, who has waited too long is *overdue* and goes first. All our policies do
so; ``paper`` does not.

Rules
1. Among calls of equal priority, first the overdue, then those whose service is on a free chunk, then
   the others; each by arrival. Whatever needs GPUs without a service counts among the others.
2. Overdue is who has waited for `OVERDUE_ROUNDS` rounds. A round is one restore and one call, as
   measured for its service, for each of the services that anybody waits for, shared among the chunks.
3. So later calls overtake an earlier one for at most `OVERDUE_ROUNDS` · ⌈services / chunks⌉ ·
   (restore + call), and one call more, until a chunk is free.
4. Where somebody has to leave, those for whom nobody waits leave first.
5. A service that works already is restored onto one more chunk only when its line, shared among the
   chunks it has, would take longer than so many restores: `PATIENCE_RESTORES`, shared among the chunks
   that are idle beyond what the other services wait for (who leaves was used longest ago: the more of
   them are idle, the less likely is it that somebody misses it), but `LEAST_RESTORES` at least; than
   `SPARE_RESTORES` where a free chunk has room beside whoever is there, and nobody has to leave. Until
   then its calls wait for the chunk where it is, and block nobody.
6. A service that declares `max_concurrency` works for so many calls at once: they take *seats* on a
   chunk that it holds already. That takes nothing from anybody who waits behind; from those who
   wait ahead it would take the chunk's end, so nobody sits down while one of them is short of it.
7. Calls of a service that could not be brought to any of the free chunks wait for another one, if there
   is one to which it could be brought, and block nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import Final, NamedTuple

from domain.action import Action, Outcome
from domain.allocation import Allocation, Home
from domain.chunks import level_of
from domain.events import ActionFinished
from domain.ids import ResourceId, node_resource
from domain.resources import MILLI
from domain.services import service_name
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import ServicePace, State
from scheduler.core.state.queues import WaitQueue

KIND: Final = "gpu"
OVERDUE_ROUNDS: Final = 4.0
PATIENCE_RESTORES: Final = 4.0
SPARE_RESTORES: Final = 1.0
LEAST_RESTORES: Final = 0.75
#: Weight of the newest measurement.
_NEWEST: Final = 0.3
#: Policies that serve calls as they come.
_PLAIN: Final = frozenset({"paper"})

#: Like `LiveAction.order`, with turns in between.
Rank = tuple[int, int, int]
_OVERDUE, _CACHED, _OTHERS = range(3)


class Seat(NamedTuple):
    """A place beside others on a chunk where a service works."""

    node: str
    resource: ResourceId
    home: Home
    most: int


def with_service(needs: Needs, action: Action, policy: str) -> Needs:
    """Let calls of one service stand in a line of their own, where turns are taken."""
    if action.call is None or policy in _PLAIN:
        return needs
    name = service_name(action.call.target)
    return needs if name is None else needs._replace(service=name)


def rank(state: State, key: QueueKey, live: LiveAction) -> Rank:
    """Return when the head of the line ``key`` is looked at: smaller is earlier."""
    priority, arrival = live.order
    if key.needs.key != KIND:
        return priority, _OTHERS, arrival  # on cores, as nearly everybody
    if state.now - live.submitted_at > overdue_seconds(state, key):
        return priority, _OVERDUE, arrival
    nodes = (node.name for node in state.fleet.nodes_of(key.pool))
    service, counts = key.needs.service, live.action.cost[KIND]
    cached = bool(service) and any(_caches(state, node, service, counts) for node in nodes)
    sits = cached or open_seat(state, key, live) is not None
    return priority, _CACHED if sits else _OTHERS, arrival


def seats_of(state: State, service: str) -> int:
    """Return how many calls ``service`` takes at once on a chunk."""
    declared = state.config.services.get(service)
    return 1 if declared is None else declared.max_concurrency


def open_seat(state: State, key: QueueKey, live: LiveAction) -> Seat | None:
    """Return where ``live``, of the line ``key``, may work beside others of its service now."""
    most = seats_of(state, key.needs.service)
    takes_more = key.needs.in_cluster or len(key.needs.on_node) > 1 or key.memory_bytes
    if most == 1 or takes_more or key.needs.key != KIND:
        return None
    counts = {level_of(count) for count in live.action.cost[KIND]}
    for node in state.fleet.nodes_of(key.pool):
        resource = node_resource(KIND, node.name)
        ledger = state.fleet.resident.get(resource)
        if ledger is None or not state.fleet.usable(node) or key.node not in (None, node.name):
            continue
        for home in ledger.seats(key.needs.service, most):
            if level_of(len(home.units) * MILLI) in counts:
                return Seat(node.name, resource, home, most)
    return None


def overdue_seconds(state: State, key: QueueKey) -> float:
    """Return after how long somebody in the line ``key`` is overdue (rule 2)."""
    resources = [node_resource(KIND, node.name) for node in state.fleet.nodes_of(key.pool)]
    ledgers = [
        state.fleet.resident[resource] for resource in resources if resource in state.fleet.resident
    ]
    wanted = {service for ledger in ledgers for service in ledger.wanted}
    chunks = sum(ledger.capacity // max(1, key.needs.key_amount) for ledger in ledgers)
    rounds = OVERDUE_ROUNDS * ceil(max(1, len(wanted)) / max(1, chunks))
    known = pace(state, key.needs.service)
    return rounds * (known.restore_seconds + known.call_seconds)


def new_seats(state: State) -> bool:
    """Say whether seats were opened since this was asked last: those in line may sit down."""
    opened, state.seats_opened = state.seats_opened, False
    return opened


def _caches(state: State, node: str, service: str, counts: Iterable[int]) -> bool:
    """Say whether a free chunk of ``node`` of one of ``counts`` milli-units caches ``service``."""
    ledger = state.fleet.resident.get(node_resource(KIND, node))
    return ledger is not None and any(ledger.homes(service, count) for count in counts)


def at_home(state: State, node: str, needs: Needs) -> bool:
    """Say whether a free chunk of ``node`` caches the service that is called."""
    return bool(needs.service) and _caches(state, node, needs.service, (needs.key_amount,))


def waits_for_home(state: State, queue: WaitQueue) -> ResourceId | None:
    """Return where the head of a line waits for its service's own chunk; None when it need not."""
    service, head = queue.key.needs.service, queue.head()
    if not service or head is None:
        return None
    working, where = 0, None
    free, wanted = 0, {service}
    for node in state.fleet.nodes_of(queue.key.pool):
        resource = node_resource(KIND, node.name)
        ledger = state.fleet.resident.get(resource)
        if ledger is None or not state.fleet.usable(node):
            continue
        if _caches(state, node.name, service, head.action.cost[KIND]):
            return None  # it is cached on a free chunk
        free += ledger.free // max(1, queue.key.needs.key_amount)
        wanted |= ledger.wanted
        if here := ledger.working(service):
            working, where = working + here, resource
    idle = max(1, free + 1 - len(wanted))
    worth, patience = line_restores(state, queue, working), PATIENCE_RESTORES / idle
    if worth > max(LEAST_RESTORES, patience):
        return None
    return None if worth > SPARE_RESTORES and _has_spare(state, queue.key) else where


def line_restores(state: State, queue: WaitQueue, chunks: int) -> float:
    """Return how many restores a line is worth: how often one fits into the calls of each of its chunks."""
    service = queue.key.needs.service
    known, at_once = pace(state, service), max(1, chunks) * seats_of(state, service)
    seconds = queue.size * known.call_seconds / at_once
    return seconds / known.restore_seconds if known.restore_seconds > 0 else inf


def _has_spare(state: State, key: QueueKey) -> bool:
    """Say whether a free chunk has room for the service of a line beside whoever is there."""
    nodes = (node.name for node in state.fleet.nodes_of(key.pool) if state.fleet.usable(node))
    return any(has_room(state, node, key.needs) for node in nodes)


def has_room(state: State, node: str, needs: Needs) -> bool:
    """Say whether a free chunk of ``node`` has room for the service that is called."""
    ledger, service = state.fleet.resident.get(node_resource(KIND, node)), needs.service
    if ledger is None or not service:
        return False
    declared = state.config.services.get(service)
    gpus = -(-needs.key_amount // MILLI)
    return ledger.spare(needs.key_amount, 0 if declared is None else declared.memory_bytes(gpus))


def keep_wanted(state: State) -> None:
    """Tell the books of GPUs for which services somebody waits (rule 4)."""
    if not state.fleet.resident:
        return
    shut = {name for name, service in state.config.services.items() if service.quarantined}
    called = {
        key.needs.service for key in state.queues.active if key.needs.service and not key.held
    }
    wanted = frozenset(called - shut)
    for ledger in state.fleet.resident.values():
        ledger.wanted = wanted


def pace(state: State, service: str) -> ServicePace:
    """Return how long restores and calls of ``service`` take, as far as was measured."""
    return state.paces.get(service, ServicePace())


def learn(state: State, event: ActionFinished, held: Allocation) -> None:
    """Take in how long a restore and a call took."""
    hosting = held.hosting
    if hosting is None or not hosting.service or event.outcome is not Outcome.COMPLETED:
        return
    known = state.paces.get(hosting.service)
    restore = event.chunk.restore_seconds if event.chunk and not hosting.cached else None
    by_count = dict(known.by_count) if known else {}
    if restore is not None:
        by_count[held.amount] = _mean(by_count.get(held.amount), restore)
    state.paces[hosting.service] = ServicePace(
        _mean(known and known.restore_seconds, restore),
        _mean(known and known.call_seconds, event.execution_seconds),
        tuple(sorted(by_count.items())),
    )


def _mean(known: float | None, newest: float | None) -> float:
    if newest is None:
        return ServicePace().restore_seconds if known is None else known
    return newest if known is None else known + _NEWEST * (newest - known)
