"""The ledger of GPUs: which chunk a holder gets, and which services stay in memory.

Rules, lifetimes and invariants: `managers.gpu`. One ledger may cover many nodes: each group of the
inventory is a node, its GPUs in the order in which they are aligned. Who holds what is kept by
`chunks`, who lies in memory by `cached`, where a service goes is chosen by `choice`; here services
come to work for holders, and others leave for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from domain.allocation import Allocation, Home, Hosting
from domain.chunks import SIZES, amount_at, level_of
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.gpu import remembered
from managers.gpu.cached import CachingChunks
from managers.gpu.failed_placements import Shunned
from managers.gpu.residents import Cost, Resident, last_use


class Occupied(NamedTuple):
    """What happens in the memory of a chunk before its holder can work."""

    #: The service is there already.
    cached: bool
    #: Who has to leave first, in this order.
    evicted: tuple[Resident, ...] = ()
    #: It was brought there ahead, for whoever would come.
    ahead: bool = False


class ChunkLedger(CachingChunks):
    """Hands out chunks to services that stay in their memory."""

    def __init__(
        self, resource: ResourceId, inventory: ResourceInventory, cost: Cost = last_use
    ) -> None:
        """``cost`` says what evicting a service costs (rule 4)."""
        super().__init__(resource, inventory, cost)
        #: Holder → the service that works for it; and the one that its chunk was chosen for.
        self._serving: dict[str, str] = {}
        self._meant: dict[str, str] = {}
        self.wanted: frozenset[str] = frozenset()

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
        level, board = level_of(amount), self._board
        if level is None or not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were asked")
        needed = memory_bytes or self.memory_bytes
        homes = board.homes(service, level) if at_home else ()
        place = (
            board.soonest(homes, service, level)
            if homes
            else board.best(level, service, needed, self.wanted, anywhere=at_home)
        )
        if place is None:  # `fits` has said yes
            raise CapacityError(f"{self.resource} has no chunk of {SIZES[level]}")
        allocation = Allocation(self.resource, amount_at(level), self._layout.units(place, level))
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
            needed = min(memory_bytes or self.memory_bytes, self.memory_bytes)
            cached, evicted, ahead = self.occupy(holder, service, needed)
        else:
            needed, cached, evicted, ahead = 0, False, self.vacate(holder), False
        homes = tuple(Home(each.service, each.units) for each in evicted)
        if not service and not homes:
            return given
        hosting = Hosting(service, needed, cached, homes, ahead)
        given = replace(given, shared=seats > 1, hosting=hosting)
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

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked; it replaces what ``holder`` had."""
        super().adopt(holder, allocation)
        if allocation.hosting is not None and allocation.hosting.service:
            self._meant[holder] = allocation.hosting.service

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; its service stays cached. None when it has nothing."""
        self._meant.pop(holder, None)
        allocation = super().release(holder)
        service = self._serving.pop(holder, None)
        if allocation is not None and service is not None:
            resident = self._residents.find(service, allocation.units)
            if resident is not None:
                self._use(resident)
        return allocation

    def occupy(self, holder: str, service: str, memory_bytes: int = 0) -> Occupied:
        """Let ``service`` work for ``holder`` on its chunk; say who has to leave first (rule 6).

        ``memory_bytes`` is needed of each GPU; 0: all of it. Raises CapacityError, changing
        nothing, when GPUs are smaller than that or ``holder`` has no chunk here.
        """
        slots = self._slots_of(holder)
        needed = memory_bytes or self.memory_bytes
        if needed > self.memory_bytes:
            raise CapacityError(
                f"{service} needs {needed} bytes of each GPU, {self.resource} has {self.memory_bytes}"
            )
        units = self._holders[holder].units
        self._serving[holder] = service
        known = self._residents.find(service, units)
        if known is not None:
            self._use(replace(known, ahead=False, coming=False))
            return Occupied(cached=True, ahead=known.ahead)
        evicted = self._residents.make_room(slots, needed)
        self._use(Resident(service, units, needed, 0))
        return Occupied(cached=False, evicted=evicted)

    def vacate(self, holder: str) -> tuple[Resident, ...]:
        """Evict everybody from the chunk of ``holder``, who works on it with its own program."""
        evicted = tuple(self._residents.on(self._slots_of(holder)))
        for resident in evicted:
            self._residents.remove(resident)
        self._serving.pop(holder, None)
        return evicted

    def working(self, service: str) -> int:
        """Return on how many held chunks ``service`` works, or is meant to."""
        meant = (holder for holder, name in self._meant.items() if name == service)
        return len({self._holders[holder].units for holder in meant})

    def found(self, homes: Sequence[Home]) -> None:
        """Keep only residents of ``homes``, and those that work for holders, whose grants stand."""
        self._shunned = Shunned()
        serving = {
            (service, self._holders[holder].units) for holder, service in self._serving.items()
        }
        for resident in self._residents.all():
            if (resident.service, resident.units) not in serving.union(homes):
                self._residents.remove(resident)
        for home in homes:
            slots = self._layout.chunk(home.units)
            if slots and all(self._residents.room(slot) == self.memory_bytes for slot in slots):
                self._use(Resident(home.service, home.units, self.memory_bytes, 0))

    def remember(self) -> bytes:
        """Return what cannot be derived from who has what."""
        return remembered.encode(
            remembered.Remembered(self._uses, self.residents(), self._serving, self._shunned.all())
        )

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; called after holders were adopted."""
        known = remembered.decode(memory)
        self._uses, self._shunned = known.uses, Shunned(known.shunned)
        self._serving = {one: name for one, name in known.serving.items() if one in self._holders}
        self._lay_out(known.residents)
