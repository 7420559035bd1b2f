"""Which services lie in the memory of which chunks, who is on the way there, and who is not let in.

Rules, lifetimes and invariants: `managers.gpu`. Nobody works for a holder here: that is `ledger`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from domain.allocation import Home
from domain.chunks import level_of
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from managers.gpu.chunk_choice import Board
from managers.gpu.chunks import Chunks
from managers.gpu.failed_placements import Shunned
from managers.gpu.residents import Cost, Resident, Residents


class CachingChunks(Chunks):
    """Chunks in whose memory services stay."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory, cost: Cost) -> None:
        """``cost`` says what evicting a service costs (rule 4)."""
        super().__init__(resource, inventory)
        self._cost = cost
        self._uses = 0
        self._shunned = Shunned()
        self._lay_out([])

    def homes(self, service: str, amount: int) -> list[Home]:
        """Return the free chunks of ``amount`` that cache ``service``; it is not still on its way."""
        level, board = level_of(amount), self._board
        if level is None:
            return []
        return [
            Home(service, self._layout.units(place, level))
            for place in sorted(board.homes(service, level))
            if not board.comes(service, place, level)
        ]

    def bring(self, service: str, amount: int, memory_bytes: int) -> Home | None:
        """Enter ``service`` on a free chunk of ``amount`` that has room (rule 8).

        ``memory_bytes`` is what it needs of each GPU; 0: all of it. None: there is no such chunk.
        """
        needed, level = memory_bytes or self.memory_bytes, level_of(amount)
        if level is None or needed > self.memory_bytes:
            return None
        shunned = self._shunned.places(service, level, self._layout)
        places = self._board.with_room(level, needed, shunned)
        if places is None or not places.any():
            return None
        home = Home(service, self._layout.units(int(places.argmax()), level))
        self._use(Resident(service, home.units, needed, 0, ahead=True, coming=True))
        return home

    def arrived(self, service: str, units: Sequence[int]) -> None:
        """``service``, if it is still on its way to ``units``, is there."""
        known = self._residents.find(service, tuple(units))
        if known is not None:
            self._residents.enter(replace(known, coming=False), self._layout.chunk(known.units))

    def evict(self, service: str) -> tuple[Home, ...]:
        """Let ``service`` leave every free chunk; return from where it left."""
        leaving = [
            each
            for each in self._residents.all()
            if each.service == service
            and all(map(self._buddies.free, self._layout.chunk(each.units)))
        ]
        for each in leaving:
            self._residents.remove(each)
        return tuple(Home(service, each.units) for each in leaving)

    def spare(self, amount: int, memory_bytes: int) -> bool:
        """Say whether there is a free chunk of ``amount`` with room beside whoever is there."""
        places = self._board.with_room(level_of(amount), memory_bytes)
        return places is not None and bool(places.any())

    def drop(self, service: str, units: Sequence[int]) -> None:
        """``service`` is no longer in the memory of ``units``: it crashed, or never got there."""
        resident = self._residents.find(service, tuple(units))
        if resident is not None:
            self._residents.remove(resident)

    def shun(self, service: str, units: Sequence[int]) -> None:
        """``service`` could not be brought to ``units``: it goes elsewhere as long as it can (rule 9)."""
        self._shunned.add(Home(service, tuple(units)))

    def cure(self, service: str, units: Sequence[int] = ()) -> None:
        """``service`` may go to ``units`` like anywhere else; without any, to all of them."""
        self._shunned.cure(service, units)

    def shuns(self, service: str) -> bool:
        """Say whether ``service`` is shunned anywhere."""
        return self._shunned.concerns(service)

    def welcomes(self, service: str, amount: int, *, now: bool) -> bool:
        """Say whether ``service`` is not shunned on some chunk of ``amount`` (free ``now``)."""
        level = level_of(amount)
        return level is not None and self._board.welcomes(service, level, self._most, now=now)

    def residents(self) -> list[Resident]:
        """Return which services are in memory, the least recently used first."""
        return self._residents.all()

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have, lost GPUs lose residents."""
        self._lay_out_gpus(inventory)
        self._lay_out(self._residents.all())

    @property
    def _board(self) -> Board:
        return Board(self._layout, self._buddies, self._residents, self._shunned)

    def _lay_out(self, residents: list[Resident]) -> None:
        """Put residents where they are, as far as those GPUs are healthy and large enough."""
        self._residents = Residents(self._layout.cells, self.memory_bytes, self._cost)
        for each in sorted(residents, key=lambda one: -one.used):
            slots = self._layout.chunk(each.units)
            if slots and all(self._residents.room(slot) >= each.memory_bytes for slot in slots):
                self._residents.enter(each, slots)

    def _use(self, resident: Resident) -> None:
        self._uses += 1
        slots = tuple(self._layout.slot_of[unit] for unit in resident.units)
        self._residents.enter(replace(resident, used=self._uses), slots)
