"""Which services are in the memory of which GPUs, and what evicting them would cost.

Costs and room are kept for every place of every size, so that the best place is found by a few
array operations however many nodes there are. What changes touches one cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from domain.chunks import SIZES
from managers.gpu.buddies import CELL


class Resident(msgspec.Struct, frozen=True):
    """A service in the memory of some GPUs."""

    service: str
    #: The chunk it was restored into; one service may be on several.
    units: tuple[int, ...]
    #: Of each GPU.
    memory_bytes: int
    #: When it was used last, as a count of uses: a larger one is later.
    used: int
    #: It was brought here before anybody was granted the chunk, and nobody was since.
    ahead: bool = False
    #: It is on its way: its node has not said yet that it is there.
    coming: bool = False


#: What it costs to lose a resident; above 0. Asked when it enters and whenever it is used.
Cost = Callable[[Resident], float]


#: Who was brought ahead and called by nobody goes before anybody who was ever used.
_UNUSED: Final = 1e-9


def last_use(resident: Resident) -> float:
    """Cost of the least-recently-used rule."""
    spare = resident.ahead and not resident.coming  # what comes cannot always be stopped
    return resident.used * (_UNUSED if spare else 1.0)


def _zeros(cells: int) -> list[NDArray[np.float64]]:
    return [np.zeros((cells, CELL // size)) for size in SIZES]


class Residents:
    """Services by slot. Slots are those of `Buddies`; all residents lie in one cell."""

    def __init__(self, cells: int, memory_bytes: int, cost: Cost = last_use) -> None:
        """``memory_bytes`` is what each GPU has."""
        self._memory = memory_bytes
        self._cost = cost
        self._at: dict[int, list[Resident]] = defaultdict(list)
        self._slots: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self._homes: dict[tuple[str, int], set[int]] = defaultdict(set)
        #: Who is on the way: few at any time.
        self._coming: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        #: By level: the largest cost of a resident, and the least memory unused, at each place.
        self._costs = _zeros(cells)
        self._room = [np.full_like(each, memory_bytes) for each in self._costs]

    def all(self) -> list[Resident]:
        """Return every resident once, the least recently used first."""
        found = {(each.service, each.units): each for some in self._at.values() for each in some}
        return sorted(found.values(), key=lambda each: each.used)

    def on(self, slots: Iterable[int]) -> list[Resident]:
        """Return who is on any of ``slots``, the cheapest to evict first."""
        found = {
            (each.service, each.units): each for slot in slots for each in self._at.get(slot, ())
        }
        return sorted(found.values(), key=lambda each: (self._cost(each), each.used))

    def find(self, service: str, units: tuple[int, ...]) -> Resident | None:
        """Return ``service`` if it is on just these units."""
        slots = self._slots.get((service, units))
        if slots is None:
            return None
        return next(
            each for each in self._at[slots[0]] if (each.service, each.units) == (service, units)
        )

    def homes(self, service: str, level: int) -> set[int]:
        """Return the places of ``level`` that cache ``service``, as flat indices."""
        return self._homes.get((service, level), set())

    def costs(self, level: int, memory_bytes: int) -> NDArray[np.float64]:
        """Return what it costs at each place of ``level`` to make room; 0 where there is room."""
        room = self._room[level] >= memory_bytes
        costs: NDArray[np.float64] = np.where(room, 0.0, self._costs[level])
        return costs

    def dear(self, services: frozenset[str], level: int) -> NDArray[np.float64]:
        """Return, for each place of ``level``, more than any cost where one of ``services`` is."""
        found = np.zeros_like(self._costs[level])
        most = 1.0 + float(self._costs[-1].max(initial=0.0))
        for (service, _), slots in self._slots.items():
            if service in services:
                found.flat[[slot >> level for slot in slots]] = most
        return found

    def awaited(self, service: str, level: int) -> list[int]:
        """Return the places of ``level`` to which others than ``service`` are on their way."""
        coming = (slots for (name, _), slots in self._coming.items() if name != service)
        return sorted({slot >> level for slots in coming for slot in slots})

    def room(self, slot: int) -> int:
        """Return the bytes of a GPU that no resident needs."""
        return self._memory - sum(each.memory_bytes for each in self._at.get(slot, ()))

    def enter(self, resident: Resident, slots: tuple[int, ...]) -> None:
        """Put a resident on ``slots``; it replaces itself."""
        self.remove(resident)
        for slot in slots:
            self._at[slot].append(resident)
        self._slots[resident.service, resident.units] = slots
        if resident.coming:
            self._coming[resident.service, resident.units] = slots
        level = len(slots).bit_length() - 1
        self._homes[resident.service, level].add(slots[0] >> level)
        self._settle(slots[0] // CELL)

    def remove(self, resident: Resident) -> None:
        """Take a resident away; one that is not there is not an error."""
        slots = self._slots.pop((resident.service, resident.units), None)
        self._coming.pop((resident.service, resident.units), None)
        if slots is None:
            return
        for slot in slots:
            self._at[slot] = [
                each
                for each in self._at[slot]
                if (each.service, each.units) != (resident.service, resident.units)
            ]
        level = len(slots).bit_length() - 1
        self._homes[resident.service, level].discard(slots[0] >> level)
        self._settle(slots[0] // CELL)

    def make_room(self, slots: tuple[int, ...], memory_bytes: int) -> tuple[Resident, ...]:
        """Take away whom it takes for so much room on each of ``slots``, the cheapest first."""
        evicted = []
        for other in self.on(slots):
            short = {slot for slot in slots if self.room(slot) < memory_bytes}
            if short & set(self._slots[other.service, other.units]):
                self.remove(other)
                evicted.append(other)
        return tuple(evicted)

    def _settle(self, cell: int) -> None:
        """Write down costs and room of the places of one cell."""
        slots = range(cell * CELL, (cell + 1) * CELL)
        costs = [
            max((self._cost(each) for each in self._at.get(slot, ())), default=0.0)
            for slot in slots
        ]
        room = [float(self.room(slot)) for slot in slots]
        for level in range(len(SIZES)):
            self._costs[level][cell] = costs
            self._room[level][cell] = room
            costs = [max(pair) for pair in zip(costs[::2], costs[1::2], strict=False)]
            room = [min(pair) for pair in zip(room[::2], room[1::2], strict=False)]
