"""Generations: the declared fleets, their workers and their placement, and the generations that have no worker yet.

A generation passes: *unrouted*, in no queue, while its fleet waits for its batch, for a transfer or for a usable worker;
*queued* at its worker by priority, rank and arrival; *held* by the gateway that has its connection, from its grant until its end.

Rules
1. The fleet is asked for a route when a generation is submitted or returned, never by the scheduling cycle. The route is in the needs
   of the action (the slots of one worker) and in its order (the rank).
2. A worker that gets no further generation returns those that wait for it: they are unrouted, then routed again. Those that
   were granted end by a report of their gateway.
3. The placement gets each request, grant and end once. It is part of the snapshot, as are the numbers of workers.
4. Groups, batches and trajectories of two projects are different ones.
5. Another policy or profile begins with no knowledge of trajectories; their waiting generations are routed by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from domain.action import QUEUED, Action
from domain.errors import InvalidRequest
from domain.fleets import (
    FleetSpec,
    FleetWorker,
    TokenUsage,
    TransferAdapter,
    check_worker_url,
    fleet_name,
    fleet_of,
    fleet_resource,
    worker_resource,
)
from domain.ids import ActionId, ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from placement.facts import GenerationRoute, WorkerFacts
from scheduler.core.state.demand import Needs
from scheduler.core.state.live import LiveAction
from scheduler.core.state.supply import Supply

if TYPE_CHECKING:
    from placement.fleet import LlmFleet

#: Nothing is known about the tokens of a generation that did not run, or failed.
NO_USAGE = TokenUsage()


class StoredFleet(msgspec.Struct, frozen=True):
    """A fleet in a snapshot."""

    name: str
    workers: tuple[FleetWorker, ...]
    next_number: int
    #: None: it is not declared any more.
    placement: bytes | None


@dataclass(slots=True)
class LiveFleet:
    """A declared fleet."""

    name: str
    spec: FleetSpec
    placement: LlmFleet
    #: By number.
    workers: tuple[FleetWorker, ...] = ()
    #: Number of the worker that is added next.
    next_number: int = 1
    #: When the timer rings that was set last.
    rings_at: float | None = None

    def named(self, name: str) -> FleetWorker | None:
        """Return the worker ``name``."""
        return next((each for each in self.workers if each.name == name), None)

    def numbered(self, number: int) -> FleetWorker | None:
        """Return the worker with ``number``; None: it was removed."""
        return next((each for each in self.workers if each.number == number), None)

    def start_over(self, spec: FleetSpec) -> None:
        """Begin with a placement that has received no events."""
        self.placement, self.rings_at = make_placement(spec), None

    def put(self, worker: FleetWorker) -> None:
        """Add a worker, which replaces the one of its name: at the same address with its number, health and weights."""
        before = self.named(worker.name)
        same = before is not None and _address(before.url) == _address(worker.url)
        if before is not None and same:
            worker = msgspec.structs.replace(
                worker, number=before.number, drained=before.drained, unhealthy=before.unhealthy,
                weights_version=max(before.weights_version, worker.weights_version),
                priorities=before.priorities, moves=before.moves,
            )  # fmt: skip
        else:
            worker = msgspec.structs.replace(worker, number=self.next_number)
            self.next_number += 1
        others = [each for each in self.workers if each.name != worker.name]
        self.workers = tuple(sorted([*others, worker], key=lambda each: each.number))

    def follow(self, spec: FleetSpec) -> None:
        """Follow a declaration: declared workers are added, changed and removed; workers of our own stay."""
        former = {each.name: each.drained for each in self.spec.workers}
        self.spec = spec
        declared = {each.name for each in spec.workers}
        self.workers = tuple(each for each in self.workers if each.own or each.name in declared)
        for each in spec.workers:
            self.put(
                FleetWorker(
                    name=each.name, url=each.url, slots=each.slots, degree=each.degree, drained=each.drained
                )
            )  # fmt: skip
            if former.get(each.name, each.drained) != each.drained:
                self._set_drained(each.name, each.drained)

    def _set_drained(self, name: str, drained: bool) -> None:
        self.workers = tuple(
            msgspec.structs.replace(each, drained=drained) if each.name == name else each
            for each in self.workers
        )

    def decides_otherwise(self, spec: FleetSpec) -> bool:
        """Return whether a declaration has another policy or other times."""
        before, after = ((each.policy, each.profile, each.modelled) for each in (self.spec, spec))
        return before != after

    @property
    def moves_caches(self) -> bool:
        """Whether caches may be movable: as declared, and as far as workers were probed."""
        if self.spec.transfer is TransferAdapter.NONE:
            return False
        return any(each.usable and each.moves is not TransferAdapter.NONE for each in self.workers)

    def has_times(self, degree: int) -> bool:
        """Return whether the times of workers of a degree are known."""
        profile = self.spec.profile
        return profile is None or any(each.degree == degree for each in profile.degrees)

    def facts(self) -> list[WorkerFacts]:
        """Return the workers as placement takes them."""
        return [
            WorkerFacts(each.number, each.slots, each.degree, each.usable, each.weights_version)
            for each in self.workers
        ]

    def resources(self) -> dict[ResourceId, FleetWorker]:
        """Return the resource of each worker's slots."""
        return {worker_resource(self.name, each.number): each for each in self.workers}


def _address(url: str) -> str:
    """Return an address in one form."""
    try:
        return check_worker_url(url, "")
    except InvalidRequest:
        return url


@dataclass(slots=True)
class Generations:
    """All fleets and the generations without a route."""

    fleets: dict[str, LiveFleet] = field(default_factory=dict)
    #: Unrouted generations by arrival, with their fleets.
    unrouted: dict[ActionId, str] = field(default_factory=dict)
    #: Fleets that may have routes, moves or a timer to fetch.
    changed: set[str] = field(default_factory=set)
    #: Next numbers of fleets that are not declared any more.
    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, action: Action) -> LiveFleet | None:
        """Return the fleet of a generation; None: it is not declared any more."""
        name = None if action.call is None else fleet_name(action.call.target)
        return None if name is None else self.fleets.get(name)

    def open(self, name: str, spec: FleetSpec) -> LiveFleet:
        """Add a fleet without workers."""
        fleet = LiveFleet(name, spec, make_placement(spec))
        fleet.next_number = self.numbers.pop(name, 1)
        self.fleets[name] = fleet
        return fleet

    def close(self, name: str) -> None:
        """Remove a fleet; its numbers stay used."""
        fleet = self.fleets.pop(name)
        self.numbers[name] = fleet.next_number

    def request(self, fleet: LiveFleet, live: LiveAction, now: float) -> GenerationRoute | None:
        """Ask for the route of a generation; None: it is unrouted."""
        action, asked = live.action, live.action.generation
        assert asked is not None  # it is a generation
        self.changed.add(fleet.name)
        route = fleet.placement.request(
            action.trajectory_key or "",
            now,
            generation=action.id,
            group=_of_project(action, action.group or ""),
            batch=_of_project(action, asked.batch),
            batch_size=asked.batch_size,
            priority=-int(live.order[0]),
            prompt_tokens=asked.prompt_tokens,
        )
        if route is None:
            self.unrouted[action.id] = fleet.name
        return route

    def begin(self, live: LiveAction, now: float) -> None:
        """Note that a generation is granted."""
        fleet = self.of(live.action)
        if fleet is not None:
            fleet.placement.begin(live.id, now)

    def end(self, live: LiveAction, now: float, usage: TokenUsage | None = None) -> None:
        """Note the end of a generation, or its withdrawal."""
        self.unrouted.pop(live.id, None)
        fleet = self.of(live.action)
        if fleet is None:
            return
        tokens = usage or NO_USAGE
        fleet.placement.end(
            live.id, now, tokens.prompt_tokens, tokens.sampled_tokens, tokens.cached_tokens
        )
        self.changed.add(fleet.name)

    def finish_trajectory(self, key: str, now: float) -> None:
        """Note the end of a trajectory."""
        for fleet in self.fleets.values():
            fleet.placement.finish(key, now)
            self.changed.add(fleet.name)

    def remember(self) -> list[StoredFleet]:
        """Return what a snapshot needs."""
        live = [
            StoredFleet(each.name, each.workers, each.next_number, each.placement.remember())
            for _, each in sorted(self.fleets.items())
        ]
        return live + [
            StoredFleet(name, (), number, None) for name, number in sorted(self.numbers.items())
        ]

    def recall(self, stored: Iterable[StoredFleet]) -> None:
        """Restore what `remember` returned, beside the declared fleets."""
        for each in stored:
            if each.placement is None:
                self.numbers[each.name] = each.next_number
                continue
            fleet = self.fleets[each.name]
            fleet.workers, fleet.next_number = each.workers, each.next_number
            fleet.placement.recall(each.placement)
            fleet.rings_at = fleet.placement.due()


def _of_project(action: Action, name: str) -> str:
    return name and f"{action.project}/{name}"


def make_placement(spec: FleetSpec) -> LlmFleet:
    """Return the placement of a fleet that has received no events."""
    # Imported here: numpy is loaded where a fleet is declared, and nowhere else.
    from placement.fleet import LlmFleet
    from placement.policies.registry import make_policy
    from placement.roofline import declared_times

    return LlmFleet(make_policy(spec.policy.value), declared_times(spec.profile, spec.modelled))


def unrouted_needs(action: Action) -> Needs:
    """Return the needs of a generation that has no worker yet: no queue has them."""
    name = "" if action.call is None else fleet_name(action.call.target) or ""
    return Needs((), ((fleet_resource(name), MILLI),), False)


def needs_at(fleet: LiveFleet, worker: int) -> Needs:
    """Return the needs of a generation of ``fleet`` at its worker: one slot."""
    return Needs((), ((worker_resource(fleet.name, worker), MILLI),), False)


def set_slots(fleet: LiveFleet, supply: Supply) -> None:
    """Let the ledgers of a fleet follow its workers: one that gets no further generation has no slots."""
    for resource, worker in fleet.resources().items():
        slots = worker.slots * MILLI if worker.usable else 0
        supply.set_inventory(resource, ResourceInventory(slots))


def is_unrouted(live: LiveAction) -> bool:
    """Return whether a waiting generation has no worker."""
    waits = live.action.generation is not None and live.state is QUEUED
    return waits and worker_of(live) is None


def worker_of(live: LiveAction) -> int | None:
    """Return the number of the worker that a generation is routed to; None: to none."""
    if live.action.generation is None or not live.needs.in_cluster:
        return None
    found = fleet_of(live.needs.in_cluster[0][0])
    return None if found is None else found[1]
