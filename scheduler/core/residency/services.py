"""GPU services: the residency policy for models that stay in GPU memory between calls.

Rules
1. A chunk is chosen for the service that is called: a reservation evicts no service; with the grant
   the ledger returns the services to evict, and the node receives them with the allocation.
2. An action that brings its own program gets an empty chunk.
3. Nodes of a pool may have GPUs of different memory: a call goes only to a node where its service fits.
4. Reports of nodes override the ledger: a service that is gone is cached no more, and GPUs whose
   memory was not released are unhealthy until the node joins again.
5. A chunk on which a service failed to start is used last for it, and its calls wait for another
   chunk if there is one (`service_turns`, rule 7), until it worked there or is declared otherwise.
6. An eager service is prepared in host memory on every feasible chunk when a node joins or the
   service is declared (paper §5.3), without GPU memory, as far as host memory suffices.

`service_turns` decides the order of calls, `placement` the node, `steady_counts` or `restore_costs` the count, and
`prefetch` what is restored before it is called. `parallelism` chooses the degree of services that a selector steers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from domain.action import Action, Outcome
from domain.allocation import Allocation
from domain.decisions import Decision, Evict, Prepare
from domain.events import ActionFinished, ChunkReport, ServiceEvictionAsked, ServicePrepared
from domain.host_memory import eager_copies
from domain.ids import ResourceId, node_resource
from domain.inventory import Config, NodeInventory
from domain.ports.residency import HostingLedger
from domain.resources import MILLI, UnitSet
from domain.rollouts import Rollout, RolloutResult
from domain.services import GpuService, service_name
from scheduler.core.policies.choices import Choices
from scheduler.core.policies.protocol import Policy
from scheduler.core.residency import (
    placement,
    prefetch,
    restore_costs,
    selector_handlers,
    service_turns,
    steady_counts,
)
from scheduler.core.residency.narrowing import narrow
from scheduler.core.residency.policy import Rank, ResidencyPolicy, ResidentSeat
from scheduler.core.residency.service_turns import KIND
from scheduler.core.state.demand import Needs, QueueKey
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue, WaitReason


class ServiceMemory(NamedTuple):
    """A service that shall work on a chunk, and the memory of each GPU that it needs."""

    service: str = ""
    memory_bytes: int = 0


class ServiceResidency(ResidencyPolicy):
    """Residency of the GPU services that the configuration declares."""

    def __init__(self, state: State) -> None:
        super().__init__(state.supply)
        self._state = state
        #: A chunk was granted whose service takes more calls at once, since the last scan.
        self._seats_opened = False

    def needs(self, needs: Needs, action: Action, policy: Policy) -> Needs:
        """Queue calls by service where services take turns, and require its memory of each GPU.

        The memory suffices for each count that the action may get.
        """
        needs = service_turns.with_service(needs, action, policy)
        service = service_of(self._state, action)
        if service is None or needs.key != KIND:
            return needs
        counts = [count for count in action.cost[KIND] if count >= needs.key_amount]
        sizes = (service.memory_bytes(-(-count // MILLI)) for count in counts)
        return needs._replace(unit_memory_bytes=max(sizes, default=0))

    def count_of(self, action: Action, pool: str, counts: UnitSet) -> int | None:
        """Return the steady count for an elastic call (`steady_counts`)."""
        if action.call is None or KIND not in action.cost:
            return None
        return steady_counts.count_of(self._state, action, pool, counts)

    def head_start(self, live: LiveAction) -> float:
        """Return how many arrivals a call precedes longer ones (`steady_counts`, rule 5)."""
        return steady_counts.head_start(self._state, live)

    def begin_cycle(self) -> None:
        """Choose steady counts, and tell ledgers for which services calls wait: they are evicted last."""
        state = self._state
        steady_counts.begin_cycle(state)
        shut = {name for name, service in state.config.services.items() if service.quarantined}
        queues = state.queues.active
        called = {key.needs.resident for key in queues if key.needs.resident and not key.held}
        wanted = frozenset(called - shut)
        for ledger in self._ledgers():
            ledger.wanted = wanted

    def rank(self, key: QueueKey, live: LiveAction) -> Rank:
        """Return the rank of ``live``: overdue calls first, then calls of cached services."""
        if key.needs.key != KIND:
            return live.order[0], service_turns.OTHERS, *live.served
        return service_turns.rank(self._state, key, live)

    def seat(self, key: QueueKey, live: LiveAction) -> ResidentSeat | None:
        """Return a chunk where the service that ``live`` calls works and takes one more call."""
        return service_turns.open_seat(self._state, key, live)

    def halted(self, key: QueueKey) -> WaitReason | None:
        """Return the quarantine of the service, if there is one."""
        known = self._state.config.services.get(key.needs.resident)
        if known is None or not known.quarantined:
            return None
        return WaitReason("service_quarantined", key.needs.resident)

    def held_back(self, queue: WaitQueue) -> WaitReason | None:
        """Return the chunk for which a call waits: one that has its service, or where it did not fail."""
        if (busy := service_turns.waits_for_chunk(self._state, queue)) is not None:
            return WaitReason("deferred", busy)
        if placement.only_failed_chunks_free(self._state, queue.key):
            return WaitReason("kept_away", queue.key.needs.resident)
        return None

    def chooses_places(self, key: QueueKey) -> bool:
        """Return whether the queue calls a service, or needs GPUs with enough memory."""
        return bool(key.needs.resident or key.needs.unit_memory_bytes)

    def places(
        self, key: QueueKey, nodes: list[LiveNode], live: LiveAction | None
    ) -> list[LiveNode]:
        """Return the nodes with enough GPU memory, best first (`placement`)."""
        return placement.places(self._state, key, nodes, live)

    def scan_again(self) -> bool:
        """Return whether seats were opened: calls that wait may take them."""
        opened, self._seats_opened = self._seats_opened, False
        return opened

    def end_cycle(self, decisions: list[Decision]) -> None:
        """Prefetch services for calls that wait for something else than a chunk."""
        prefetch.prefetch(self._state, decisions)

    def choices(
        self, resource: ResourceId, lives: Sequence[LiveAction], choices: Sequence[Choices]
    ) -> list[Choices]:
        """Add the seconds of a restore to each choice that needs one (`restore_costs`, rule 1)."""
        return restore_costs.with_restores(self._state, resource, lives, choices)

    def reserve(
        self,
        action: Action,
        holder: str,
        resource: ResourceId,
        amount: int,
        beside: Sequence[int] = (),
    ) -> None:
        """Reserve a chunk that caches the service, even if that splits a larger block than necessary.

        If ``beside`` no longer fits then, reserve the smallest block that suffices.
        """
        ledger = self.supply.resident[resource]
        wanted = self._wanted(action, amount)
        ledger.allocate(holder, amount, *wanted, at_home=True)
        if beside and not ledger.fits(beside):
            ledger.release(holder)
            ledger.allocate(holder, amount, *wanted)

    def on_grant(self, live: LiveAction, resource: ResourceId, amount: int) -> Allocation:
        """Allocate the best chunk for the service that ``live`` calls, which may evict others."""
        wanted = self._wanted(live.action, amount)
        self._state.residency.memory.prefetched.discard(wanted.service)
        seats = service_turns.seats_of(self._state, wanted.service)
        self._seats_opened |= seats > 1
        return self.supply.resident[resource].host(live.holder, amount, *wanted, seats=seats)

    def _ledgers(self) -> Iterator[HostingLedger]:
        prefix = f"{KIND}:"
        return (each for name, each in self.supply.resident.items() if name.startswith(prefix))

    def _wanted(self, action: Action, amount: int) -> ServiceMemory:
        service = service_of(self._state, action)
        if service is None or action.call is None:
            return ServiceMemory()
        name = service_name(action.call.target) or ""
        return ServiceMemory(name, service.memory_bytes(-(-amount // MILLI)))

    def on_finished(self, event: ActionFinished) -> None:
        """Learn how long the restore and the call took."""
        live = self._state.actions.get(event.action_id)
        if live is not None:
            steady_counts.learn(self._state, event, live)
        for held in () if live is None else live.allocations:
            service_turns.learn(self._state, event, held)
            ledger, hosting = self.supply.resident.get(held.resource), held.hosting
            if ledger and hosting and hosting.service and event.outcome is Outcome.COMPLETED:
                ledger.clear_failures(hosting.service, held.units)

    def on_report(self, node: str, report: ChunkReport) -> None:
        """Drop services that are gone, remember failed chunks, and retire GPUs that are stuck."""
        ledger = self.supply.resident.get(node_resource(KIND, node))
        if ledger is None:
            return
        holders = ledger.holders().values()
        serving = {(held.hosting.service, held.units) for held in holders if held.hosting}
        for home in report.gone:
            if home not in serving:  # else it is being restored there for another call
                ledger.drop(*home)
        for home in report.failed:
            ledger.mark_failed(*home)
        live = self.supply.nodes.get(node)
        if report.stuck and live is not None:
            have = live.inventory.resources[KIND]
            unhealthy = tuple(sorted({*have.unhealthy, *report.stuck}))
            have = replace(have, unhealthy=unhealthy)
            resources = {**live.inventory.resources, KIND: have}
            live.inventory = replace(live.inventory, resources=resources)
            ledger.resize_capacity(have)
            self._state.capacity_changed()

    def on_node_joined(self, inventory: NodeInventory, decisions: list[Decision]) -> None:
        """Follow what the node says is in memory, and prepare all eager services (rule 6)."""
        ledger = self.supply.resident.get(node_resource(KIND, inventory.name))
        have = inventory.resources.get(KIND)
        if ledger is not None and have is not None:
            ledger.reset_residents(have.residents)
        decisions += _eager(inventory, self._state.config.services)

    def on_config(self, before: Config, decisions: list[Decision]) -> None:
        """Let services that are declared otherwise use every chunk, and prepare eager ones."""
        if before.selectors != self._state.config.selectors:
            selector_handlers.configure(self._state, decisions)
        services = self._state.config.services
        if services != before.services or self._state.config.pools != before.pools:
            steady_counts.forget(self._state)
        changed = {
            name: each for name, each in services.items() if before.services.get(name) != each
        }
        for name in changed:
            for ledger in self._ledgers():
                ledger.clear_failures(name)
        for node in self.supply.nodes.values():
            if self.supply.usable(node):
                decisions += _eager(node.inventory, changed)

    def load(self) -> None:
        """Open the selectors of the configuration."""
        selector_handlers.load_selectors(self._state)

    def on_submitted(
        self, action: Action, pool: str, decisions: list[Decision]
    ) -> tuple[Action, UnitSet]:
        """Let a call of a steered service have the selected count (`narrowing`)."""
        state = self._state
        if action.call is not None and steady_counts.is_steady(state, pool):
            steady_counts.follow(state, action, pool)
        return selector_handlers.arrived(state, action, pool, decisions)

    def on_requeued(self, live: LiveAction) -> None:
        """Let a call have the count that is selected now."""
        if self._state.residency.memory.selectors.steering:
            narrow(self._state, live)

    def on_usage(self, live: LiveAction, event: ActionFinished) -> None:
        """Count the context of an observed call."""
        selector_handlers.call_ended(self._state, live, event)

    def on_rollout(self, rollout: Rollout, decisions: list[Decision]) -> None:
        """Note that a batch of observed rollouts may begin."""
        selector_handlers.rollout_arrived(self._state, rollout, decisions)

    def on_rollout_ended(self, rollout: Rollout, result: RolloutResult) -> None:
        """Count the context of an observed rollout."""
        selector_handlers.rollout_ended(self._state, rollout, result)

    def on_nodes_changed(self) -> None:
        """Let waiting calls have the selected count where their pool has it now."""
        steady_counts.forget(self._state)
        selector_handlers.refresh_all(self._state)


def service_of(state: State, action: Action) -> GpuService | None:
    """Return the service that ``action`` calls, if it is declared."""
    name = service_name(action.call.target) if action.call is not None else None
    return None if name is None else state.config.services.get(name)


def _eager(inventory: NodeInventory, services: Mapping[str, GpuService]) -> Iterator[Prepare]:
    """Yield every chunk of a node's healthy GPUs for every eager service and count that fits."""
    have = inventory.resources.get(KIND)
    if have is not None:
        for copy in eager_copies(have, services):
            yield Prepare(inventory.name, copy.home, copy.memory_bytes, awake=False)


def prepared(state: State, event: ServicePrepared, decisions: list[Decision]) -> None:
    """Record that a prepared service is in memory, or failed to start there."""
    if event.chunk is not None:
        state.residency.on_report(event.node, event.chunk)
    ledger = state.supply.resident.get(node_resource(KIND, event.node))
    if ledger is not None and event.awake and not event.failed:
        ledger.finish_prefetch(*event.home)
        ledger.clear_failures(*event.home)
        state.dirty = True


def eviction_asked(state: State, event: ServiceEvictionAsked, decisions: list[Decision]) -> None:
    """Evict a service from the chunks where it does not work; where it works it stays cached."""
    for node in state.supply.nodes.values():
        ledger = state.supply.resident.get(node_resource(KIND, node.name))
        if ledger is None or not state.supply.usable(node):
            continue
        decisions += [Evict(node.name, home) for home in ledger.evict(event.service)]
    state.dirty = True
