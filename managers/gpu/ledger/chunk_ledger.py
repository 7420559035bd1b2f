"""The ledger of GPUs: which chunk a holder gets, and which services stay in memory.

Rules, lifetimes and invariants: `managers.gpu`. One ledger may cover many nodes: each group of the
inventory is a node, its GPUs in the order in which they are aligned. `chunk_holders` keeps the
allocations, `residents` the services in memory, `chunk_choice` picks a chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from domain.allocation import Allocation, Home, Hosting
from domain.chunks import SIZES, Counts, amount_at, beside, fit, level_of
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.operators import ChunksOperator
from domain.resources import MILLI
from managers.gpu.ledger import snapshot
from managers.gpu.ledger.chunk_choice import ChunkChoice
from managers.gpu.ledger.chunk_holders import ChunkHolders
from managers.gpu.ledger.failed_placements import FailedPlacements
from managers.gpu.ledger.residents import Cost, Resident, ResidentTable, last_use


class Occupied(NamedTuple):
    """Changes in the memory of a chunk before its holder can work."""

    #: The service is there already.
    cached: bool
    #: Residents to evict first, in this order.
    evicted: tuple[Resident, ...] = ()
    #: It was restored there ahead of the grant.
    ahead: bool = False


class ChunkLedger:
    """Allocates chunks to services that stay in their memory."""

    def __init__(
        self, resource: ResourceId, inventory: ResourceInventory, cost: Cost = last_use
    ) -> None:
        """``cost`` is the cost of evicting a service (rule 4)."""
        self.resource = resource
        self.wanted: frozenset[str] = frozenset()
        self._chunks = ChunkHolders(inventory)
        self._cost = cost
        self._uses = 0
        self._failed = FailedPlacements()
        #: Holder → the service that works for it; and the one for which its chunk was chosen.
        self._serving: dict[str, str] = {}
        self._intended: dict[str, str] = {}
        self._place_residents([])

    @property
    def capacity(self) -> int:
        """Milli-units of healthy GPUs."""
        return self._chunks.layout.capacity

    @property
    def free(self) -> int:
        """Milli-units not held, cached ones included."""
        return self._chunks.free

    @property
    def counts(self) -> Counts:
        """Free chunks of 1, 2, 4 and 8 GPUs, each as large as it can be."""
        return self._chunks.buddies.counts

    @property
    def memory_bytes(self) -> int:
        """Memory of each GPU; 1 where none is declared, and every service takes it."""
        return self._chunks.layout.memory_bytes

    def holders(self) -> dict[str, Allocation]:
        """Return the allocation of each holder."""
        return dict(self._chunks.allocations)

    def residents(self) -> list[Resident]:
        """Return the services in memory, the least recently used first."""
        return self._residents.all()

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        level = level_of(amount)
        return level is not None and fit(self._chunks.capacity_counts, (level,))

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether chunks for all ``amounts`` could be allocated now, at once."""
        if not amounts:
            return True
        levels = [level_of(amount) for amount in amounts]
        known = [level for level in levels if level is not None]
        return (
            len(known) == len(levels)
            and sum(map(amount_at, known)) <= self.free
            and fit(self.counts, known)
        )

    def operator(self, claims: Sequence[int]) -> ChunksOperator:
        """Return the chunks that are free beside ``claims``, which fit."""
        return ChunksOperator(beside(self.counts, claims))

    def take(self, holder: str, units: Sequence[int]) -> Allocation:
        """Allocate exactly these GPUs. Raises CapacityError when they are no free chunk."""
        slots = self._chunks.layout.chunk(units)
        free = all(map(self._chunks.buddies.free, slots)) and len(slots) * MILLI <= self.free
        if not slots or not free or holder in self._chunks.allocations:
            raise CapacityError(f"{tuple(units)} of {self.resource} are no free chunk for {holder}")
        allocation = Allocation(self.resource, len(slots) * MILLI, tuple(units))
        self.adopt(holder, allocation)
        return allocation

    def allocate(
        self,
        holder: str,
        amount: int,
        service: str = "",
        memory_bytes: int = 0,
        *,
        at_home: bool = False,
    ) -> Allocation:
        """Allocate the best chunk (rule 3), all of whose GPUs count as held.

        ``memory_bytes`` is what ``service`` needs of each GPU; 0: all of it. ``at_home``: prefer a
        chunk that caches it even to a smaller block. Raises CapacityError when there is no chunk or
        ``holder`` has one.
        """
        if holder in self._chunks.allocations:
            raise CapacityError(f"{holder} already holds {self.resource}")
        level, choice = level_of(amount), self._choice
        if level is None or not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were requested")
        needed = memory_bytes or self.memory_bytes
        places = choice.places_caching(service, level) if at_home else ()
        place = (
            choice.first_present(places, service, level)
            if places
            else choice.best(level, service, needed, self.wanted, anywhere=at_home)
        )
        if place is None:  # excluded by `fits`
            raise CapacityError(f"{self.resource} has no chunk of {SIZES[level]}")
        units = self._chunks.layout.units(place, level)
        allocation = Allocation(self.resource, amount_at(level), units)
        self.adopt(holder, allocation)
        if service:
            self._intended[holder] = service
        return allocation

    def host(
        self, holder: str, amount: int, service: str = "", memory_bytes: int = 0, *, seats: int = 1
    ) -> Allocation:
        """Allocate the best chunk and evict the services that are in the way there.

        Without a ``service`` the holder brings its own program, and the chunk is emptied. A service
        that is larger than the GPUs takes all of them; its node reports the failure. With several
        ``seats`` other holders may `join`.
        """
        given = self.allocate(holder, amount, service, memory_bytes, at_home=True)
        if service:
            needed = min(memory_bytes or self.memory_bytes, self.memory_bytes)
            cached, evicted, ahead = self.occupy(holder, service, needed)
        else:
            needed, cached, evicted, ahead = 0, False, self.vacate(holder), False
        homes = tuple(Home(each.service, each.units) for each in evicted)
        if not service and not homes:
            return given
        hosting = Hosting(service, needed, cached, homes, ahead)
        given = replace(given, shared=seats > 1, hosting=hosting)
        self._chunks.allocations[holder] = given
        return given

    def seats(self, service: str, most: int) -> list[Home]:
        """Return the chunks where ``service`` works for fewer than ``most`` holders that share it."""
        guests: Counter[tuple[int, ...]] = Counter()
        for holder, name in self._serving.items():
            allocation = self._chunks.allocations[holder]
            if name == service and allocation.shared:
                guests[allocation.units] += 1
        return sorted(
            Home(service, units)
            for units, count in guests.items()
            if count < most and self._residents.find(service, units) is not None
        )

    def join(self, holder: str, home: Home, most: int) -> Allocation:
        """Let ``holder`` share ``home`` with its present holders.

        Raises CapacityError when there is no seat (`seats`), or ``holder`` has a chunk.
        """
        if holder in self._chunks.allocations or home not in self.seats(home.service, most):
            raise CapacityError(f"{self.resource} has no seat at {home} for {holder}")
        resident = self._residents.find(*home)
        assert resident is not None  # else there would be no seat
        allocation = Allocation(
            self.resource,
            len(home.units) * MILLI,
            home.units,
            shared=True,
            hosting=Hosting(home.service, resident.memory_bytes, cached=True),
        )
        self.adopt(holder, allocation)
        self._serving[holder] = home.service
        self._touch(resident)
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, without a check; it replaces that of ``holder``."""
        self.release(holder)
        self._chunks.add(holder, allocation)
        if allocation.hosting is not None and allocation.hosting.service:
            self._intended[holder] = allocation.hosting.service

    def release(self, holder: str) -> Allocation | None:
        """Release the chunk of ``holder``; its service stays cached. None when it has none."""
        self._intended.pop(holder, None)
        allocation = self._chunks.remove(holder)
        service = self._serving.pop(holder, None)
        if allocation is not None and service is not None:
            resident = self._residents.find(service, allocation.units)
            if resident is not None:
                self._touch(resident)
        return allocation

    def occupy(self, holder: str, service: str, memory_bytes: int = 0) -> Occupied:
        """Let ``service`` work for ``holder`` on its chunk; return what is evicted first (rule 6).

        ``memory_bytes`` is needed of each GPU; 0: all of it. Raises CapacityError, changing
        nothing, when GPUs are smaller than that or ``holder`` has no chunk here.
        """
        slots = self._chunks.slots(holder)
        needed = memory_bytes or self.memory_bytes
        if needed > self.memory_bytes:
            raise CapacityError(
                f"{service} needs {needed} bytes of each GPU, {self.resource} has {self.memory_bytes}"
            )
        units = self._chunks.allocations[holder].units
        self._serving[holder] = service
        known = self._residents.find(service, units)
        if known is not None:
            self._touch(replace(known, prefetched=False, arriving=False))
            return Occupied(cached=True, ahead=known.prefetched)
        evicted = self._residents.make_room(slots, needed)
        self._touch(Resident(service, units, needed, 0))
        return Occupied(cached=False, evicted=evicted)

    def vacate(self, holder: str) -> tuple[Resident, ...]:
        """Evict all services from the chunk of ``holder``, which runs its own program there."""
        evicted = tuple(self._residents.on(self._chunks.slots(holder)))
        for resident in evicted:
            self._residents.remove(resident)
        self._serving.pop(holder, None)
        return evicted

    def working(self, service: str) -> int:
        """Return on how many held chunks ``service`` works, or will work."""
        holders = (holder for holder, name in self._intended.items() if name == service)
        return len({self._chunks.allocations[holder].units for holder in holders})

    def homes(self, service: str, amount: int) -> list[Home]:
        """Return the free chunks of ``amount`` that cache ``service``, restores under way left out."""
        level, choice = level_of(amount), self._choice
        if level is None:
            return []
        return [
            Home(service, self._chunks.layout.units(place, level))
            for place in sorted(choice.places_caching(service, level))
            if not choice.is_arriving(service, place, level)
        ]

    def prefetch(self, service: str, amount: int, memory_bytes: int) -> Home | None:
        """Enter ``service`` as arriving on a free chunk of ``amount`` that has room (rule 8).

        ``memory_bytes`` is what it needs of each GPU; 0: all of it. None: there is no such chunk.
        """
        needed, level = memory_bytes or self.memory_bytes, level_of(amount)
        if level is None or needed > self.memory_bytes:
            return None
        failed = self._failed.places(service, level, self._chunks.layout)
        places = self._choice.with_room(level, needed, failed)
        if places is None or not places.any():
            return None
        home = Home(service, self._chunks.layout.units(int(places.argmax()), level))
        self._touch(Resident(service, home.units, needed, 0, prefetched=True, arriving=True))
        return home

    def finish_prefetch(self, service: str, units: Sequence[int]) -> None:
        """Record that the restore of ``service`` on ``units`` has finished."""
        known = self._residents.find(service, tuple(units))
        if known is not None:
            present = replace(known, arriving=False)
            self._residents.add(present, self._chunks.layout.chunk(known.units))

    def evict(self, service: str) -> tuple[Home, ...]:
        """Evict ``service`` from every free chunk; return these chunks."""
        evicted = [
            each
            for each in self._residents.all()
            if each.service == service
            and all(map(self._chunks.buddies.free, self._chunks.layout.chunk(each.units)))
        ]
        for each in evicted:
            self._residents.remove(each)
        return tuple(Home(service, each.units) for each in evicted)

    def has_room(self, amount: int, memory_bytes: int) -> bool:
        """Say whether there is a free chunk of ``amount`` with ``memory_bytes`` beside its residents."""
        places = self._choice.with_room(level_of(amount), memory_bytes)
        return places is not None and bool(places.any())

    def drop(self, service: str, units: Sequence[int]) -> None:
        """Record that ``service`` is no longer on ``units``: it crashed, or its restore failed."""
        resident = self._residents.find(service, tuple(units))
        if resident is not None:
            self._residents.remove(resident)

    def mark_failed(self, service: str, units: Sequence[int]) -> None:
        """Record that ``service`` failed to start on ``units``, which it then avoids (rule 9)."""
        self._failed.add(Home(service, tuple(units)))

    def clear_failures(self, service: str, units: Sequence[int] = ()) -> None:
        """Forget the failure of ``service`` on ``units``; without units, all of its failures."""
        self._failed.clear(service, units)

    def has_failed(self, service: str) -> bool:
        """Say whether ``service`` has failed on any chunk."""
        return self._failed.concerns(service)

    def accepts(self, service: str, amount: int, *, now: bool) -> bool:
        """Say whether ``service`` has not failed on some chunk of ``amount`` (free ``now``)."""
        level, most = level_of(amount), self._chunks.capacity_counts
        return level is not None and self._choice.has_unfailed(service, level, most, now=now)

    def reset_residents(self, homes: Sequence[Home]) -> None:
        """Keep only residents of ``homes`` and those that work for holders; forget failures."""
        self._failed = FailedPlacements()
        serving = {
            (service, self._chunks.allocations[holder].units)
            for holder, service in self._serving.items()
        }
        for resident in self._residents.all():
            if resident.key not in serving.union(homes):
                self._residents.remove(resident)
        for home in homes:
            slots = self._chunks.layout.chunk(home.units)
            if slots and all(
                self._residents.free_bytes(each) == self.memory_bytes for each in slots
            ):
                self._touch(Resident(home.service, home.units, self.memory_bytes, 0))

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have, lost GPUs lose residents."""
        self._chunks.resize(inventory)
        self._place_residents(self._residents.all())

    def remember(self) -> bytes:
        """Return the state that does not follow from the allocations."""
        residents, failed = self.residents(), self._failed.all()
        return snapshot.encode(
            snapshot.ChunkLedgerSnapshot(self._uses, residents, self._serving, failed)
        )

    def recall(self, memory: bytes) -> None:
        """Restore the state of `remember`; holders were adopted before."""
        known = snapshot.decode(memory)
        self._uses, self._failed = known.uses, FailedPlacements(known.failed)
        self._serving = {
            holder: name
            for holder, name in known.serving.items()
            if holder in self._chunks.allocations
        }
        self._place_residents(known.residents)

    @property
    def _choice(self) -> ChunkChoice:
        return ChunkChoice(self._chunks.layout, self._chunks.buddies, self._residents, self._failed)

    def _place_residents(self, residents: list[Resident]) -> None:
        """Keep ``residents`` whose GPUs are healthy and large enough, the last used first."""
        layout = self._chunks.layout
        self._residents = ResidentTable(layout.cells, self.memory_bytes, self._cost)
        for each in sorted(residents, key=lambda one: -one.used):
            slots = layout.chunk(each.units)
            if slots and all(
                self._residents.free_bytes(slot) >= each.memory_bytes for slot in slots
            ):
                self._residents.add(each, slots)

    def _touch(self, resident: Resident) -> None:
        """Enter ``resident`` as the last used one."""
        self._uses += 1
        slots = tuple(self._chunks.layout.slot_of[unit] for unit in resident.units)
        self._residents.add(replace(resident, used=self._uses), slots)
