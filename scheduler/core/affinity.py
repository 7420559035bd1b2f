"""Turns of GPU services: whose calls go first, so that restores do not eat the GPUs.

Strict first come first served changes the service on a chunk with nearly every call, once there are
more services than chunks. Here a service that is on a free chunk is served first while its *turn*
lasts; then the oldest call is served, whoever it is for. All our policies do so; ``paper`` does not.

Rules
1. A turn begins when a service is restored onto a chunk, and lasts `TURN_RESTORES` times as long as its
   restores take, as measured. So restores take at most one part in `TURN_RESTORES` + 1 of a chunk
   for which others wait, and who waits alone never waits for a turn to end.
2. A turn is not prolonged by calls that come meanwhile. So somebody who waits is overtaken for at most
   ⌈services / chunks⌉ · (turn + restore + one call).
3. Priorities come first: a turn only orders calls of equal priority.
4. Where somebody has to leave, those for whom nobody waits leave first.
5. A service that works already is restored onto one more chunk only when its line, shared among the
   chunks it has, would take longer than `PATIENCE_RESTORES` restores. Until then its calls wait for
   the chunk where it is, and block nobody.
"""

from __future__ import annotations

from math import inf
from typing import Final

from domain.action import Action, Outcome
from domain.allocation import Home, Hosting
from domain.events import ActionFinished
from domain.ids import ResourceId, node_resource
from domain.services import service_name
from scheduler.core.needs import Needs
from scheduler.core.queues import QueueKey, WaitQueue
from scheduler.core.state import LiveAction, ServicePace, State

KIND: Final = "gpu"
TURN_RESTORES: Final = 4.0
PATIENCE_RESTORES: Final = 2.0
#: Weight of the newest measurement.
_NEWEST: Final = 0.3
#: Policies that serve calls as they come.
_PLAIN: Final = frozenset({"paper"})

#: Like `LiveAction.order`, with turns in between.
Rank = tuple[int, int, int]


def with_service(needs: Needs, action: Action, policy: str) -> Needs:
    """Let calls of one service stand in a line of their own, where turns are taken."""
    if action.call is None or policy in _PLAIN:
        return needs
    name = service_name(action.call.target)
    return needs if name is None else needs._replace(service=name)


def rank(state: State, key: QueueKey, live: LiveAction) -> Rank:
    """Return when the head of the line ``key`` is looked at: smaller is earlier."""
    priority, arrival = live.order
    has_turn = bool(key.needs.service) and _has_turn(state, key)
    return priority, 0 if has_turn else 1, arrival


def _has_turn(state: State, key: QueueKey) -> bool:
    service = key.needs.service
    lasts = TURN_RESTORES * pace(state, service).restore_seconds
    return any(
        state.now - state.turns.get((resource, home), -inf) < lasts
        for node in state.nodes_of(key.pool)
        for resource, home in _homes(state, node.name, key.needs)
    )


def _homes(state: State, node: str, needs: Needs) -> list[tuple[ResourceId, Home]]:
    resource = node_resource(KIND, node)
    ledger = state.hosting.get(resource)
    if ledger is None:
        return []
    return [(resource, home) for home in ledger.homes(needs.service, needs.key_amount)]


def at_home(state: State, node: str, needs: Needs) -> bool:
    """Say whether a free chunk of ``node`` caches the service that is called."""
    return bool(needs.service) and bool(_homes(state, node, needs))


def note(state: State, resource: ResourceId, units: tuple[int, ...], hosting: Hosting) -> None:
    """A chunk was handed out: turns end and begin."""
    for home in hosting.evicted:
        state.turns.pop((resource, home), None)
    if hosting.service and not hosting.cached:
        state.turns[resource, Home(hosting.service, units)] = state.now


def waits_for_home(state: State, queue: WaitQueue) -> ResourceId | None:
    """Return where the head of a line waits for its service's own chunk; None when it need not."""
    service = queue.key.needs.service
    if not service:
        return None
    working = 0
    where = None
    for node in state.nodes_of(queue.key.pool):
        resource = node_resource(KIND, node.name)
        ledger = state.hosting.get(resource)
        if ledger is None or not state.usable(node):
            continue
        if ledger.homes(service, queue.key.needs.key_amount):
            return None  # it is cached on a free chunk
        if here := ledger.working(service):
            working, where = working + here, resource
    known = pace(state, service)
    backlog_seconds = queue.size * known.call_seconds / max(1, working)
    return where if backlog_seconds <= PATIENCE_RESTORES * known.restore_seconds else None


def keep_wanted(state: State) -> None:
    """Tell the books of GPUs for which services somebody waits (rule 4)."""
    if not state.hosting:
        return
    shut = {name for name, service in state.config.services.items() if service.quarantined}
    called = {key.needs.service for key in state.queues if key.needs.service and not key.held}
    wanted = frozenset(called - shut)
    for ledger in state.hosting.values():
        ledger.wanted = wanted


def pace(state: State, service: str) -> ServicePace:
    """Return how long restores and calls of ``service`` take, as far as was measured."""
    return state.paces.get(service, ServicePace())


def learn(state: State, event: ActionFinished, hosting: Hosting | None) -> None:
    """Take in how long a restore and a call took."""
    if hosting is None or not hosting.service or event.outcome is not Outcome.COMPLETED:
        return
    known = state.paces.get(hosting.service)
    restore = event.chunk.restore_seconds if event.chunk and not hosting.cached else None
    state.paces[hosting.service] = ServicePace(
        _mean(known and known.restore_seconds, restore),
        _mean(known and known.call_seconds, event.execution_seconds),
    )


def _mean(known: float | None, newest: float | None) -> float:
    if newest is None:
        return ServicePace().restore_seconds if known is None else known
    return newest if known is None else known + _NEWEST * (newest - known)
