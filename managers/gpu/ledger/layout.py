"""Layout of an inventory's GPUs: unit ↔ slot, and the slots of a chunk. Pure; never changes.

Each group of the inventory is a node; its GPUs fill cells of 8 slots in the order in which they are
aligned. A *place* of a level is the flat index of an aligned run of 2^level slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.chunks import SIZES
from domain.inventory import ResourceInventory
from domain.resources import MILLI
from managers.gpu.ledger.buddies import CELL


class ChunkLayout:
    """The slots of one inventory."""

    def __init__(self, inventory: ResourceInventory) -> None:
        limit = max(0, inventory.capacity) // MILLI
        groups = inventory.groups or (tuple(range(limit)),)
        #: Unit → slot.
        self.slot_of: dict[int, int] = {}
        #: Number of cells; the last of a node may be partly empty.
        self.cells = 0
        for group in groups:
            known = len(self.slot_of)
            for position, unit in enumerate(group[: limit - known]):
                self.slot_of.setdefault(unit, self.cells * CELL + position)
            self.cells += -(-len(group) // CELL)
        self._unit_at = {slot: unit for unit, slot in self.slot_of.items()}
        self.healthy = set(self.slot_of) - set(inventory.unhealthy)
        #: Bytes of each GPU; 1 where none are declared.
        self.memory_bytes = max(1, inventory.memory_bytes)

    @property
    def capacity(self) -> int:
        """Milli-units of healthy GPUs."""
        return len(self.healthy) * MILLI

    def units(self, place: int, level: int) -> tuple[int, ...]:
        """Return the units of a place."""
        first = place << level
        return tuple(self._unit_at[slot] for slot in range(first, first + SIZES[level]))

    def chunk(self, units: Sequence[int]) -> tuple[int, ...]:
        """Return the slots of a healthy chunk; empty when ``units`` are not one."""
        slots = tuple(self.slot_of[unit] for unit in units if unit in self.healthy)
        if len(slots) != len(units) or len(slots) not in SIZES or slots[0] % len(slots):
            return ()
        return slots if slots == tuple(range(slots[0], slots[0] + len(slots))) else ()
