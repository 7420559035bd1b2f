"""The ledger of GPUs: which chunk a holder gets, and which services stay in memory.

Rules, lifetimes and invariants: `managers.gpu`. One ledger may cover many nodes: each group of the
inventory is a node, its GPUs in the order in which they are aligned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from domain.allocation import Allocation, Home, Hosting
from domain.chunks import SIZES, Counts, amount_at, beside, fit, level_of, source_of
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.operators import ChunksOperator
from domain.resources import MILLI
from managers.gpu.buddies import CELL, Buddies
from managers.gpu.residents import Cost, Resident, Residents, last_use


class Occupied(NamedTuple):
    """What happens in the memory of a chunk before its holder can work."""

    #: The service is there already.
    cached: bool
    #: Who has to leave first, in this order.
    evicted: tuple[Resident, ...] = ()


class Memory(msgspec.Struct, frozen=True):
    """What a ledger cannot derive from its holders."""

    uses: int
    residents: list[Resident]
    #: Holder → the service that works for it.
    serving: dict[str, str]


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Memory).decode


class ChunkLedger:
    """Hands out aligned chunks of 1, 2, 4 and 8 GPUs."""

    def __init__(
        self, resource: ResourceId, inventory: ResourceInventory, cost: Cost = last_use
    ) -> None:
        """``cost`` says what evicting a service costs (rule 4)."""
        self.resource = resource
        self._cost = cost
        self._holders: dict[str, Allocation] = {}
        #: Unit → how many holders it has (more than one only by `adopt`).
        self._held: dict[int, int] = {}
        self._held_milli = 0
        self._serving: dict[str, str] = {}
        #: Holder → the service that its chunk was chosen for.
        self._meant: dict[str, str] = {}
        self._uses = 0
        self._residents = Residents(0, 0)
        self.wanted: frozenset[str] = frozenset()
        self.resize_capacity(inventory)

    @property
    def capacity(self) -> int:
        """Milli-units of healthy GPUs."""
        return self._capacity

    @property
    def free(self) -> int:
        """Milli-units not held, cached ones included."""
        return self._capacity - self._held_milli

    @property
    def counts(self) -> Counts:
        """Free chunks of 1, 2, 4 and 8 GPUs, each as large as it can be."""
        return self._buddies.counts

    @property
    def memory_bytes(self) -> int:
        """Bytes of each GPU; 1 where none are declared, and every service takes it."""
        return self._memory

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        level = level_of(amount)
        return level is not None and fit(self._most, (level,))

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether chunks for all ``amounts`` could be allocated now, at once."""
        if not amounts:
            return True
        levels = [level_of(amount) for amount in amounts]
        known = [level for level in levels if level is not None]
        return (
            len(known) == len(levels)
            and sum(map(amount_at, known)) <= self.free
            and fit(self._buddies.counts, known)
        )

    def operator(self, claims: Sequence[int]) -> ChunksOperator:
        """Say what could be handed out beside ``claims``, which fit."""
        return ChunksOperator(beside(self.counts, claims))

    def allocate(
        self,
        holder: str,
        amount: int,
        service: str = "",
        memory_bytes: int = 0,
        *,
        at_home: bool = False,
    ) -> Allocation:
        """Hand out the best chunk (rule 3), all of whose GPUs count as held.

        ``memory_bytes`` is what ``service`` needs of each GPU; 0: all of it. ``at_home``: where it
        is cached, even in a larger block than need be. Raises CapacityError when there is no chunk
        or ``holder`` has one.
        """
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        level = level_of(amount)
        if level is None or not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were asked")
        homes = self._free_homes(service, level) if at_home else []
        place = min(homes) if homes else self._best(level, service, memory_bytes)
        units = self._units(place, level)
        allocation = Allocation(self.resource, amount_at(level), units)
        self.adopt(holder, allocation)
        if service:
            self._meant[holder] = service
        return allocation

    def host(
        self, holder: str, amount: int, service: str = "", memory_bytes: int = 0, *, seats: int = 1
    ) -> Allocation:
        """Hand out the best chunk for good: who is in the way there is evicted.

        Without a ``service`` the holder brings its own program, and the chunk is emptied. A service
        that is larger than the GPUs takes all of them; it is for its node to say that it fails.
        With several ``seats`` others may `join` it there.
        """
        given = self.allocate(holder, amount, service, memory_bytes, at_home=True)
        if service:
            needed = min(memory_bytes or self._memory, self._memory)
            cached, evicted = self.occupy(holder, service, needed)
        else:
            needed, cached, evicted = 0, False, self.vacate(holder)
        homes = tuple(Home(each.service, each.units) for each in evicted)
        if not service and not homes:
            return given
        given = replace(given, shared=seats > 1, hosting=Hosting(service, needed, cached, homes))
        self._holders[holder] = given
        return given

    def seats(self, service: str, most: int) -> list[Home]:
        """Return the chunks where ``service`` works for some, but less than ``most``, who share it."""
        guests: Counter[tuple[int, ...]] = Counter()
        for holder, name in self._serving.items():
            if name == service and self._holders[holder].shared:
                guests[self._holders[holder].units] += 1
        return sorted(
            Home(service, units)
            for units, count in guests.items()
            if count < most and self._residents.find(service, units) is not None
        )

    def join(self, holder: str, home: Home, most: int) -> Allocation:
        """Let ``holder`` have ``home`` together with those whom its service works for already.

        Raises CapacityError when there is no seat (`seats`), or ``holder`` has something.
        """
        if holder in self._holders or home not in self.seats(home.service, most):
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
        self._use(resident)
        return allocation

    def take(self, holder: str, units: Sequence[int]) -> Allocation:
        """Hand out just these GPUs; raise CapacityError when they are no free chunk."""
        slots = self._chunk(units)
        free = all(self._buddies.free(slot) for slot in slots) and len(slots) * MILLI <= self.free
        if not slots or not free or holder in self._holders:
            raise CapacityError(f"{tuple(units)} of {self.resource} are no free chunk for {holder}")
        allocation = Allocation(self.resource, len(slots) * MILLI, tuple(units))
        self.adopt(holder, allocation)
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked; it replaces what ``holder`` had."""
        self.release(holder)
        self._holders[holder] = allocation
        if not self._joins(allocation):
            self._held_milli += allocation.amount
        if allocation.hosting is not None and allocation.hosting.service:
            self._meant[holder] = allocation.hosting.service
        for unit in allocation.units:
            self._held[unit] = self._held.get(unit, 0) + 1
            self._settle(unit)

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; its service stays cached. None when it has nothing."""
        allocation = self._holders.pop(holder, None)
        self._meant.pop(holder, None)
        if allocation is None:
            return None
        for unit in allocation.units:
            self._held[unit] -= 1
            if not self._held[unit]:
                del self._held[unit]
            self._settle(unit)
        if not self._joins(allocation):
            self._held_milli -= allocation.amount
        service = self._serving.pop(holder, None)
        resident = service and self._residents.find(service, allocation.units)
        if resident:
            self._use(resident)
        return allocation

    def occupy(self, holder: str, service: str, memory_bytes: int = 0) -> Occupied:
        """Let ``service`` work for ``holder`` on its chunk; say who has to leave first (rule 6).

        ``memory_bytes`` is needed of each GPU; 0: all of it. Raises CapacityError, changing
        nothing, when GPUs are smaller than that or ``holder`` has no chunk here.
        """
        slots = self._slots_of(holder)
        needed = memory_bytes or self._memory
        if needed > self._memory:
            raise CapacityError(
                f"{service} needs {needed} bytes of each GPU, {self.resource} has {self._memory}"
            )
        units = self._holders[holder].units
        self._serving[holder] = service
        known = self._residents.find(service, units)
        if known is not None:
            self._use(known)
            return Occupied(cached=True)
        evicted = []
        for other in self._residents.on(slots):
            short = {slot for slot in slots if self._residents.room(slot) < needed}
            if short & {self._slot_of[unit] for unit in other.units}:
                self._residents.remove(other)
                evicted.append(other)
        self._use(Resident(service, units, needed, 0))
        return Occupied(cached=False, evicted=tuple(evicted))

    def vacate(self, holder: str) -> tuple[Resident, ...]:
        """Evict everybody from the chunk of ``holder``, who works on it with its own program."""
        evicted = tuple(self._residents.on(self._slots_of(holder)))
        for resident in evicted:
            self._residents.remove(resident)
        self._serving.pop(holder, None)
        return evicted

    def homes(self, service: str, amount: int) -> list[Home]:
        """Return the free chunks of ``amount`` that cache ``service``."""
        level = level_of(amount)
        places = [] if level is None else sorted(self._free_homes(service, level))
        return [Home(service, self._units(place, level or 0)) for place in places]

    def evict(self, service: str) -> tuple[Home, ...]:
        """Let ``service`` leave every free chunk; return from where it left."""
        homes = []
        for each in self._residents.all():
            if each.service == service and all(map(self._buddies.free, self._chunk(each.units))):
                self._residents.remove(each)
                homes.append(Home(service, each.units))
        return tuple(homes)

    def spare(self, amount: int, memory_bytes: int) -> bool:
        """Say whether there is a free chunk of ``amount`` with room beside whoever is there."""
        level = level_of(amount)
        source = None if level is None else source_of(self._buddies.counts, level)
        if level is None or source is None:
            return False
        room = self._residents.costs(level, memory_bytes) == 0.0
        return bool((self._buddies.places(level, source) & room).any())

    def working(self, service: str) -> int:
        """Return on how many held chunks ``service`` works, or is meant to."""
        meant = (holder for holder, name in self._meant.items() if name == service)
        return len({self._holders[holder].units for holder in meant})

    def _joins(self, allocation: Allocation) -> bool:
        """Say whether others than ``allocation`` share its GPUs, which count once."""
        return allocation.shared and any(unit in self._held for unit in allocation.units)

    def _free_homes(self, service: str, level: int) -> list[int]:
        homes = self._residents.homes(service, level) if service else ()
        size = SIZES[level]
        return [
            place
            for place in homes
            if all(self._buddies.free(slot) for slot in range(place * size, (place + 1) * size))
        ]

    def drop(self, service: str, units: Sequence[int]) -> None:
        """``service`` is no longer in the memory of ``units``: it crashed, or never got there."""
        resident = self._residents.find(service, tuple(units))
        if resident is not None:
            self._residents.remove(resident)

    def found(self, homes: Sequence[Home]) -> None:
        """Keep only residents of ``homes``, and those that work for holders, whose grants stand."""
        serving = {
            (service, self._holders[holder].units) for holder, service in self._serving.items()
        }
        for resident in self._residents.all():
            if (resident.service, resident.units) not in serving.union(homes):
                self._residents.remove(resident)
        for home in homes:
            slots = self._chunk(home.units)
            if slots and all(self._residents.room(slot) == self._memory for slot in slots):
                self._use(Resident(home.service, home.units, self._memory, 0))

    def residents(self) -> list[Resident]:
        """Return which services are in memory, the least recently used first."""
        return self._residents.all()

    def holders(self) -> dict[str, Allocation]:
        """Return who has what."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have, lost GPUs lose residents."""
        limit = max(0, inventory.capacity) // MILLI
        groups = inventory.groups or (tuple(range(limit)),)
        self._slot_of: dict[int, int] = {}
        cells = 0
        for group in groups:
            known = len(self._slot_of)
            for position, unit in enumerate(group[: limit - known]):
                self._slot_of.setdefault(unit, cells * CELL + position)
            cells += -(-len(group) // CELL)
        self._unit_at = {slot: unit for unit, slot in self._slot_of.items()}
        self._healthy = set(self._slot_of) - set(inventory.unhealthy)
        self._capacity = len(self._healthy) * MILLI
        self._buddies = Buddies(cells)
        for slot in map(self._slot_of.__getitem__, self._healthy):
            self._buddies.set(slot, free=True)
        self._most = self._buddies.counts
        for unit in self._held:
            self._settle(unit)
        self._memory = max(1, inventory.memory_bytes)
        self._lay_out(cells, self._residents.all())

    def remember(self) -> bytes:
        """Return what cannot be derived from who has what."""
        return _encode(Memory(self._uses, self.residents(), self._serving))

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; called after holders were adopted."""
        known = _decode(memory)
        self._uses = known.uses
        self._serving = {one: name for one, name in known.serving.items() if one in self._holders}
        self._lay_out(len(self._buddies.places(0, 0)), known.residents)

    def _lay_out(self, cells: int, residents: list[Resident]) -> None:
        """Put residents where they are, as far as those GPUs are healthy and large enough."""
        self._residents = Residents(cells, self._memory, self._cost)
        for each in sorted(residents, key=lambda one: -one.used):
            slots = self._chunk(each.units)
            if slots and all(self._residents.room(slot) >= each.memory_bytes for slot in slots):
                self._residents.enter(each, slots)

    def _best(self, level: int, service: str, memory_bytes: int) -> int:
        """Return the best place as a flat index (rule 3)."""
        source = source_of(self._buddies.counts, level)
        if source is None:  # `fits` has said yes
            raise CapacityError(f"{self.resource} has no chunk of {SIZES[level]}")
        places = self._buddies.places(level, source)
        homes = self._residents.homes(service, level) if service else ()
        cached = [place for place in homes if places.flat[place]]
        if cached:
            return min(cached)
        costs = self._residents.costs(level, memory_bytes or self._memory)
        if service and self.wanted:
            costs = costs + self._residents.dear(self.wanted - {service}, level) * (costs > 0)
        return int(np.where(places, costs, np.inf).argmin())

    def _units(self, place: int, level: int) -> tuple[int, ...]:
        first = place << level
        return tuple(self._unit_at[slot] for slot in range(first, first + SIZES[level]))

    def _slots_of(self, holder: str) -> tuple[int, ...]:
        allocation = self._holders.get(holder)
        slots = self._chunk(allocation.units) if allocation is not None else ()
        if not slots:
            raise CapacityError(f"{holder} has no healthy chunk of {self.resource}")
        return slots

    def _chunk(self, units: Sequence[int]) -> tuple[int, ...]:
        """Return the slots of a healthy chunk; none when ``units`` are not one."""
        slots = tuple(self._slot_of[unit] for unit in units if unit in self._healthy)
        if len(slots) != len(units) or len(slots) not in SIZES or slots[0] % len(slots):
            return ()
        return slots if slots == tuple(range(slots[0], slots[0] + len(slots))) else ()

    def _use(self, resident: Resident) -> None:
        self._uses += 1
        slots = tuple(self._slot_of[unit] for unit in resident.units)
        self._residents.enter(msgspec.structs.replace(resident, used=self._uses), slots)

    def _settle(self, unit: int) -> None:
        """Make ``unit`` free or not, as its health and holders say."""
        slot = self._slot_of.get(unit)
        if slot is not None:
            self._buddies.set(slot, free=unit in self._healthy and unit not in self._held)
