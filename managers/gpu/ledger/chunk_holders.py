"""Holders of chunks: which GPUs are granted, and which blocks the free ones form.

A GPU is free when it is healthy and has no holder; free GPUs are read as the largest aligned blocks
that they form (`buddies`).
"""

from __future__ import annotations

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.inventory import ResourceInventory
from managers.gpu.ledger.buddies import Buddies
from managers.gpu.ledger.layout import ChunkLayout


class ChunkHolders:
    """Allocations by holder, over the GPUs of one inventory."""

    def __init__(self, inventory: ResourceInventory) -> None:
        self.allocations: dict[str, Allocation] = {}
        #: Unit → number of its holders (above one for a shared chunk, or by `add`).
        self._counts: dict[int, int] = {}
        self._held_milli = 0
        self.resize(inventory)

    @property
    def free(self) -> int:
        """Milli-units without a holder; negative after the capacity shrank below what is held."""
        return self.layout.capacity - self._held_milli

    def add(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation, replacing that of ``holder``."""
        self.remove(holder)
        self.allocations[holder] = allocation
        if not self._shares(allocation):
            self._held_milli += allocation.amount
        for unit in allocation.units:
            self._counts[unit] = self._counts.get(unit, 0) + 1
            self._update(unit)

    def remove(self, holder: str) -> Allocation | None:
        """Remove and return the allocation of ``holder``; None when there is none."""
        allocation = self.allocations.pop(holder, None)
        if allocation is None:
            return None
        for unit in allocation.units:
            self._counts[unit] -= 1
            if not self._counts[unit]:
                del self._counts[unit]
            self._update(unit)
        if not self._shares(allocation):
            self._held_milli -= allocation.amount
        return allocation

    def slots(self, holder: str) -> tuple[int, ...]:
        """Return the slots of a holder's chunk. Raises CapacityError without a healthy chunk."""
        allocation = self.allocations.get(holder)
        slots = self.layout.chunk(allocation.units) if allocation is not None else ()
        if not slots:
            raise CapacityError(f"{holder} has no healthy chunk")
        return slots

    def resize(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep their allocations."""
        self.layout = ChunkLayout(inventory)
        self.buddies = Buddies(self.layout.cells)
        for unit in self.layout.healthy:
            self.buddies.set(self.layout.slot_of[unit], free=True)
        #: Free blocks if there were no holder.
        self.capacity_counts = self.buddies.counts
        for unit in self._counts:
            self._update(unit)

    def _shares(self, allocation: Allocation) -> bool:
        """Say whether other holders share the GPUs of ``allocation``, which then count once."""
        return allocation.shared and any(unit in self._counts for unit in allocation.units)

    def _update(self, unit: int) -> None:
        """Mark ``unit`` free or not, from its health and its holders."""
        slot = self.layout.slot_of.get(unit)
        if slot is not None:
            free = unit in self.layout.healthy and unit not in self._counts
            self.buddies.set(slot, free=free)
