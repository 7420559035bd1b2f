"""Resident services: which services are in the memory of which GPUs, and what evicting them costs.

Costs and free memory are kept for every place of every size, so that the best place is found by a few
array operations however many nodes there are. A change touches one cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domain.chunks import SIZES
from managers.gpu.ledger.buddies import CELL


class Resident(msgspec.Struct, frozen=True):
    """A service in the memory of some GPUs."""

    service: str
    #: The chunk it was restored into; one service may be on several.
    units: tuple[int, ...]
    #: Of each GPU.
    memory_bytes: int
    #: Time of the last use, as a count of uses: a larger one is later.
    used: int
    #: Restored ahead of a grant, and not granted since.
    prefetched: bool = msgspec.field(name="ahead", default=False)
    #: Still being restored: its node has not confirmed it.
    arriving: bool = msgspec.field(name="coming", default=False)

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Its service and chunk, which identify it."""
        return self.service, self.units


#: Cost of evicting a resident, above 0. Evaluated when it enters and at each use.
Cost = Callable[[Resident], float]

#: Factor for a prefetched and never used service: below the cost of any used one.
_UNUSED: Final = 1e-9


def last_use(resident: Resident) -> float:
    """Cost of the least-recently-used rule."""
    # A restore that is under way cannot always be stopped, so it is not cheap.
    spare = resident.prefetched and not resident.arriving
    return resident.used * (_UNUSED if spare else 1.0)


def _zeros(cells: int) -> list[NDArray[np.float64]]:
    return [np.zeros((cells, CELL // size)) for size in SIZES]


class ResidentTable:
    """Residents by slot. Slots are those of `Buddies`; a resident is within one cell."""

    def __init__(self, cells: int, memory_bytes: int, cost: Cost = last_use) -> None:
        """``memory_bytes``: memory of each GPU."""
        self._memory = memory_bytes
        self._cost = cost
        self._at: dict[int, list[Resident]] = defaultdict(list)
        self._slots: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self._places: dict[tuple[str, int], set[int]] = defaultdict(set)
        #: Slots of arriving residents: few at any time.
        self._arriving: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        #: By level: the largest cost of a resident, and the least free memory, at each place.
        self._costs = _zeros(cells)
        self._room = [np.full_like(each, memory_bytes) for each in self._costs]

    def all(self) -> list[Resident]:
        """Return every resident once, the least recently used first."""
        found = {each.key: each for some in self._at.values() for each in some}
        return sorted(found.values(), key=lambda each: each.used)

    def on(self, slots: Iterable[int]) -> list[Resident]:
        """Return the residents on any of ``slots``, the cheapest to evict first."""
        found = {each.key: each for slot in slots for each in self._at.get(slot, ())}
        return sorted(found.values(), key=lambda each: (self._cost(each), each.used))

    def find(self, service: str, units: tuple[int, ...]) -> Resident | None:
        """Return ``service`` if it is on exactly these units."""
        slots = self._slots.get((service, units))
        if slots is None:
            return None
        return next(each for each in self._at[slots[0]] if each.key == (service, units))

    def places(self, service: str, level: int) -> set[int]:
        """Return the places of ``level`` that cache ``service``, as flat indices."""
        return self._places.get((service, level), set())

    def eviction_costs(self, level: int, memory_bytes: int) -> NDArray[np.float64]:
        """Return the cost of freeing ``memory_bytes`` at each place of ``level``; 0 where it is free."""
        room = self._room[level] >= memory_bytes
        costs: NDArray[np.float64] = np.where(room, 0.0, self._costs[level])
        return costs

    def penalties(self, services: frozenset[str], level: int) -> NDArray[np.float64]:
        """Return, for each place of ``level``, more than any cost where one of ``services`` is."""
        found = np.zeros_like(self._costs[level])
        most = 1.0 + float(self._costs[-1].max(initial=0.0))
        for (service, _), slots in self._slots.items():
            if service in services:
                found.flat[[slot >> level for slot in slots]] = most
        return found

    def places_of_arrivals(self, service: str, level: int) -> list[int]:
        """Return the places of ``level`` where another service than ``service`` is being restored."""
        arriving = (slots for (name, _), slots in self._arriving.items() if name != service)
        return sorted({slot >> level for slots in arriving for slot in slots})

    def free_bytes(self, slot: int) -> int:
        """Return the memory of a GPU that no resident needs."""
        return self._memory - sum(each.memory_bytes for each in self._at.get(slot, ()))

    def add(self, resident: Resident, slots: tuple[int, ...]) -> None:
        """Put a resident on ``slots``, replacing an earlier entry of it."""
        self.remove(resident)
        for slot in slots:
            self._at[slot].append(resident)
        self._slots[resident.key] = slots
        if resident.arriving:
            self._arriving[resident.key] = slots
        level = len(slots).bit_length() - 1
        self._places[resident.service, level].add(slots[0] >> level)
        self._update_cell(slots[0] // CELL)

    def remove(self, resident: Resident) -> None:
        """Remove a resident; an unknown one is ignored."""
        slots = self._slots.pop(resident.key, None)
        self._arriving.pop(resident.key, None)
        if slots is None:
            return
        for slot in slots:
            self._at[slot] = [each for each in self._at[slot] if each.key != resident.key]
        level = len(slots).bit_length() - 1
        self._places[resident.service, level].discard(slots[0] >> level)
        self._update_cell(slots[0] // CELL)

    def make_room(self, slots: tuple[int, ...], memory_bytes: int) -> tuple[Resident, ...]:
        """Evict until ``memory_bytes`` are free on each of ``slots``, the cheapest residents first."""
        evicted = []
        for other in self.on(slots):
            short = {slot for slot in slots if self.free_bytes(slot) < memory_bytes}
            if short & set(self._slots[other.key]):
                self.remove(other)
                evicted.append(other)
        return tuple(evicted)

    def _update_cell(self, cell: int) -> None:
        """Recompute costs and free memory of the places of one cell."""
        slots = range(cell * CELL, (cell + 1) * CELL)
        costs = [
            max((self._cost(each) for each in self._at.get(slot, ())), default=0.0)
            for slot in slots
        ]
        room = [float(self.free_bytes(slot)) for slot in slots]
        for level in range(len(SIZES)):
            self._costs[level][cell] = costs
            self._room[level][cell] = room
            costs = [max(pair) for pair in zip(costs[::2], costs[1::2], strict=False)]
            room = [min(pair) for pair in zip(room[::2], room[1::2], strict=False)]
