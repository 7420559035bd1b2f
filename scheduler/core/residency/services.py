"""GPU services and the chunks they work on: what the core tells the books of GPUs.

Rules
1. A chunk is chosen for the service that is called: while a policy decides (`reserve`) nobody is
   evicted; with the grant (`hand_out`) the books say who leaves, and the node is told.
2. An action that brings its own program gets an empty chunk.
3. A pool's nodes may have GPUs of different memory. A call goes only where its service fits: `places`.
4. What a node reports against the books is believed (`heed`): a service that is gone is cached no
   more, and GPUs whose memory did not become free are unhealthy until the node joins anew.
5. Where a service could not be brought it goes last, and its calls wait for another chunk if there is
   one (`affinity`, rule 7), until it worked there or is declared otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from domain.action import Action, Outcome
from domain.allocation import Allocation
from domain.decisions import Decision, Evict
from domain.events import ActionFinished, ChunkNews, ServiceEvictionAsked, ServicePrepared
from domain.ids import ResourceId, node_resource
from domain.inventory import NodeInventory
from domain.resources import MILLI
from domain.services import GpuService, service_name
from scheduler.core.residency import service_turns
from scheduler.core.residency.service_turns import KIND
from scheduler.core.state.demand import Needs
from scheduler.core.state.model import State


class Wanted(NamedTuple):
    """Which service shall work on a chunk, and the memory of each GPU that it needs."""

    service: str = ""
    memory_bytes: int = 0


def service_of(state: State, action: Action) -> GpuService | None:
    """Return the service that ``action`` calls, if it is declared."""
    name = service_name(action.call.target) if action.call is not None else None
    return None if name is None else state.config.services.get(name)


def with_memory(state: State, needs: Needs, action: Action) -> Needs:
    """Let a call go to no GPU that is too small for its service, on any count that it may get."""
    service = service_of(state, action)
    if service is None or needs.key != KIND:
        return needs
    counts = [count for count in action.cost[KIND] if count >= needs.key_amount]
    return needs._replace(
        gpu_memory_bytes=max((service.memory_bytes(-(-n // MILLI)) for n in counts), default=0)
    )


def hand_out(
    state: State, action: Action, holder: str, resource: ResourceId, amount: int
) -> Allocation:
    """Allocate ``amount`` of ``resource`` to ``holder`` for good; the caller has checked it fits."""
    ledger = state.fleet.resident.get(resource)
    if ledger is None:
        return state.fleet.ledgers[resource].allocate(holder, amount)
    wanted = _wanted(state, action, amount)
    state.ahead.discard(wanted.service)
    seats = service_turns.seats_of(state, wanted.service)
    state.seats_opened |= seats > 1
    return ledger.host(holder, amount, *wanted, seats=seats)


def reserve(
    state: State,
    action: Action,
    holder: str,
    resource: ResourceId,
    amount: int,
    *,
    at_home: bool = False,
) -> None:
    """Allocate ``amount`` where ``action`` would work, until the reservation is released.

    ``at_home``: even where that splits a larger block than need be.
    """
    ledger = state.fleet.resident.get(resource)
    if ledger is None:
        state.fleet.ledgers[resource].allocate(holder, amount)
    else:
        ledger.allocate(holder, amount, *_wanted(state, action, amount), at_home=at_home)


def reserve_beside(
    state: State,
    action: Action,
    holder: str,
    resource: ResourceId,
    amount: int,
    others: Sequence[int],
) -> None:
    """As `reserve`, at home if chunks of all ``others`` can be had beside that.

    Else where the smallest block suffices, which is what was counted with.
    """
    reserve(state, action, holder, resource, amount, at_home=True)
    ledger = state.fleet.resident.get(resource)
    if ledger is not None and not ledger.fits(others):
        ledger.release(holder)
        reserve(state, action, holder, resource, amount)


def _wanted(state: State, action: Action, amount: int) -> Wanted:
    service = service_of(state, action)
    if service is None or action.call is None:
        return Wanted()
    name = service_name(action.call.target) or ""
    return Wanted(name, service.memory_bytes(-(-amount // MILLI)))


def learn(state: State, event: ActionFinished) -> None:
    """Take in how long the restore for an action took, while it still holds its chunk."""
    live = state.actions.get(event.action_id)
    for held in () if live is None else live.allocations:
        service_turns.learn(state, event, held)
        ledger = state.fleet.resident.get(held.resource)
        if ledger and held.hosting and held.hosting.service and event.outcome is Outcome.COMPLETED:
            ledger.cure(held.hosting.service, held.units)


def heed(state: State, name: str, news: ChunkNews) -> None:
    """Let the books follow what the node ``name`` says of the memory of its GPUs."""
    ledger = state.fleet.resident.get(node_resource(KIND, name))
    if ledger is None:
        return
    serving = {
        (held.hosting.service, held.units) for held in ledger.holders().values() if held.hosting
    }
    for home in news.gone:
        if home not in serving:  # else it is being brought there for somebody else
            ledger.drop(*home)
    for home in news.failed:
        ledger.shun(*home)
    node = state.fleet.nodes.get(name)
    if news.stuck and node is not None:
        have = node.inventory.resources[KIND]
        unhealthy = tuple(sorted({*have.unhealthy, *news.stuck}))
        have = replace(have, unhealthy=unhealthy)
        node.inventory = replace(node.inventory, resources={**node.inventory.resources, KIND: have})
        ledger.resize_capacity(have)
        state.pools.feasible.clear()
        state.queues.deferrals.clear()
        state.dirty = True


def prepared(state: State, event: ServicePrepared, decisions: list[Decision]) -> None:
    """A service that was got ready is there, or is not to be had there."""
    if event.chunk is not None:
        heed(state, event.node, event.chunk)
    ledger = state.fleet.resident.get(node_resource(KIND, event.node))
    if ledger is not None and event.awake and not event.failed:
        ledger.arrived(*event.home)
        ledger.cure(*event.home)
        state.dirty = True


def eviction_asked(state: State, event: ServiceEvictionAsked, decisions: list[Decision]) -> None:
    """Let a service leave where it does not work; where it works it stays, and is cached then."""
    for node in state.fleet.nodes.values():
        ledger = state.fleet.resident.get(node_resource(KIND, node.name))
        if ledger is None or not state.fleet.usable(node):
            continue
        decisions += [Evict(node.name, home) for home in ledger.evict(event.service)]
    state.dirty = True


def redeclared(state: State, before: Mapping[str, GpuService]) -> None:
    """Let services that are declared otherwise than ``before`` go wherever they failed."""
    for name, service in state.config.services.items():
        for ledger in state.fleet.resident.values() if before.get(name) != service else ():
            ledger.cure(name)


def joined(state: State, inventory: NodeInventory) -> None:
    """A node worker begins anew: what its predecessor had in memory counts as it says."""
    ledger = state.fleet.resident.get(node_resource(KIND, inventory.name))
    have = inventory.resources.get(KIND)
    if ledger is not None and have is not None:
        ledger.found(have.residents)
